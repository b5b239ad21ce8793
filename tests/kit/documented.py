# SPDX-License-Identifier: LGPL-2.1-only
"""Runs that a page of docs/ shows: their words and lines, made comparable with what the command prints."""

import re
import shlex

UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
FINGERPRINT = re.compile("fingerprint of the records is [0-9a-f]{16}")
DATE = re.compile(r"20\d\d-\d\d-\d\d(?:T\d\d:\d\d:\d\dZ)?")


def shown(page):
    """(argv, lines) of each run on a page (a path), in its order."""
    for _, argv, lines in shown_in(page.read_text(encoding="utf-8")):
        yield argv, lines


def shown_in(text):
    """(program, argv, lines) of each run in the text of a page, in its order."""
    for block in re.findall(r"::\n\n((?:(?:    .*)?\n)+)", text):
        for part in re.split(r"^    \$ ", block, flags=re.MULTILINE)[1:]:
            words, _, rest = part.replace("\\\n    >", "").partition("\n")
            program, *argv = shlex.split(words)
            yield program, argv, [line[4:] for line in rest.splitlines() if line.strip()]


def comparable(lines, names):
    """With a number for each UUID, in the order in which they come, and no date."""
    for line in lines:
        said = FINGERPRINT.sub("fingerprint of the records is DIGITS", line)
        yield DATE.sub("DATE", UUID.sub(lambda found: names.setdefault(found.group(), f"<{len(names)}>"), said))


def is_in_order(lines, printed):
    """Does each line stand in what was printed, after the one before it?"""
    rest = iter(printed)
    return all(line in rest for line in lines)
