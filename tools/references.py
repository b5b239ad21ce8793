#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-only
"""Does everything exist that comments, docstrings, messages and pages of this repository point to?

    docs/host.rst                                       a page
    docs/host.rst, "Adapters"                           a section of it
    relvmoiscsi/cli/map.py                              a file or a directory; `*` stands for any name
    `host.hba.scan`                                     a module of the package; an attribute of it may follow
    tests/unit/cli/test_help.py::test_version           a test
    fleet/checks.yml                                    in a page: a file below ansible/examples

And nothing points to notes that are not in the repository. Run by tools/check.sh; prints a line for each that fails.
"""

import io
import re
import sys
import tokenize
from pathlib import Path
from typing import Iterator, List, Match, NamedTuple, Set, Tuple

TOP = Path(__file__).resolve().parent.parent

#: what is looked through; data of tests speaks of other things
ROOTS = ("acceptance", "bench", "docs", "drivers", "relvmoiscsi", "supp-pack", "tests", "tools", "udev", ".ci")
SUFFIXES = ("", ".py", ".rst", ".sh", ".rules", ".conf", ".spec", ".toml", ".in", ".8", ".txt")
#: other projects have directories of the same names, as in "QEMU docs/interop/qcow2.rst"
UPSTREAM = ("blktap", "LVM2", "open-iscsi", "QEMU", "SM", "systemd", "xen-api")

POINTER = re.compile(
    r"(?<![\w./<$-])"
    r"(?P<path>(?:docs|tests|tools|relvmoiscsi|drivers(?=/ReLV|/plugins)|udev|supp-pack|bench|ansible)/[\w*/.-]*[\w*])"
    r'(?:::(?P<test>test_\w+)|,\s+"(?P<section>[^"]+)")?'
)
#: a page shows how Ansible is called there
PLAYED = re.compile(r"(?<![\w./<*-])(?:\$PWD/)?(?P<path>[\w-][\w/-]*\.yml|(?<=ansible-playbook -i )[\w/.-]+)")
EXAMPLES = "ansible/examples"
#: no call of xapi, such as host.call_plugin
MODULE = re.compile(r"`(?!host\.call_)(?P<name>(?:cli|direct|doctor|formats|host|resignature|sr_driver)(?:\.\w+)+)`")
OUTSIDE = re.compile(r"\bfacts[/]|\bdesign\.md|\bstyle\.md|\bbrief/|\.\./shared|\b[Ii]ssues? \d+\b")
#: a line end within a comment or docstring, with what the next line begins with
LINE_END = re.compile(r"\n[ \t]*(?:#:?|\|)?[ \t]*")


class Problem(NamedTuple):
    """Something that points nowhere."""

    path: Path
    line: int
    says: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.says}"


def text_files(top: Path) -> Iterator[Path]:
    """Every file of the repository that people read and write."""
    for path in sorted([*top.glob("*"), *(path for root in ROOTS for path in (top / root).rglob("*"))]):
        hidden = any(part in ("__pycache__", "data") for part in path.relative_to(top).parts)
        if path.is_file() and not hidden and path.suffix in SUFFIXES:
            yield path


def problems(top: Path) -> Iterator[Problem]:
    """Whatever points nowhere, in the order of the files."""
    for path in text_files(top):
        name, text = path.relative_to(top), path.read_text(encoding="utf-8")
        is_test = name.parts[0] == "tests" and name.suffix == ".py"
        for line, says in problems_in(text, remarks(text) if is_test else text, top):
            yield Problem(name, line, says)
        for match in PLAYED.finditer(text if name.parts[0] == "docs" else ""):
            if not (top / EXAMPLES / match.group("path")).is_file():
                line = text.count("\n", 0, match.start()) + 1
                yield Problem(name, line, f"there is no {match.group('path')} in {EXAMPLES}")


def remarks(source: str) -> str:
    """The comments and docstrings of a module, where they stand; the rest is blank. Tests make names up."""
    lines = [" " * len(line) for line in source.split("\n")]
    starts = (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENCODING)
    before, depth = tokenize.ENCODING, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and before in starts and not depth):
            first, indent = token.start[0] - 1, token.start[1]
            for number, part in enumerate(token.string.split("\n")):
                lines[first + number] = (lines[first + number][:indent] if not number else "") + part
        before = token.type
        depth += (token.string in ("(", "[", "{")) - (token.string in (")", "]", "}"))
    return "\n".join(lines)


def problems_in(text: str, said: str, top: Path) -> List[Tuple[int, str]]:
    """The problems of one text, and of what is said in it: (line, sentence)."""
    flat = LINE_END.sub(lambda end: " " * len(end.group()), said)
    found = []
    for match in POINTER.finditer(flat):
        if not flat[: match.start()].rstrip().endswith(UPSTREAM):
            found += [(match.start(), says) for says in _of_pointer(match, top)]
    for match in MODULE.finditer(flat):
        if not _is_module(match.group("name").split("."), top):
            found.append((match.start(), f"there is no module {match.group('name')}"))
    problems = [(said.count("\n", 0, at) + 1, says) for at, says in found]
    for match in OUTSIDE.finditer(text):
        problems.append((text.count("\n", 0, match.start()) + 1, f"{match.group()!r} leads out of the repository"))
    return sorted(problems)


def _of_pointer(match: Match[str], top: Path) -> Iterator[str]:
    name = match.group("path")
    if not any(top.glob(name)):
        yield f"there is no {name}"
    elif match.group("test") and match.group("test") not in tests_in(top / name):
        yield f"there is no test {match.group('test')} in {name}"
    elif match.group("section") and " ".join(match.group("section").split()) not in sections_of(top / name):
        yield f'there is no section "{match.group("section")}" in {name}'


def tests_in(path: Path) -> Set[str]:
    """The names of the tests in a file."""
    return set(re.findall(r"^\s*def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def sections_of(path: Path) -> Set[str]:
    """The titles in a page."""
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = zip(lines, lines[1:])
    return {title for title, line in pairs if title and len(line) >= len(title) and re.match(r"([=~^-])\1+$", line)}


def _is_module(parts: List[str], top: Path) -> bool:
    """Whether the names lead to a module, or to something that may be in one."""
    place = top / "relvmoiscsi"
    for number, part in enumerate(parts):
        if (place / (part + ".py")).is_file():
            return len(parts) - number <= 3
        place = place / part
        if not place.is_dir():
            return False
    return True


def main() -> int:
    found = list(problems(TOP))
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
