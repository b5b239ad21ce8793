# SPDX-License-Identifier: LGPL-2.1-only
"""Our place among the storage drivers that xapi accepts: one drop-in, which repeats what all other files say.

xapi takes the last sm-plugins line as the whole list (conf.py). Who adds a driver must say the list once more
and say it last, so the list is computed anew whenever another file may have changed it:

    base      the list that wins without us: every file of xapi, our blocks taken out of them
    drop-in   /etc/xapi.conf.d/zz-relvmoiscsi.conf; where another file with a list sorts after that, its name in front
    block     our lines in the drop-in, from one mark to the other; whatever else is in there is the administrator's

        # relvmoiscsi begin: ...
        # list: ext nfs iscsi relvmoiscsi relvmohba         what we wrote last time: base and our types
        sm-plugins = ext nfs iscsi relvmoiscsi relvmohba    what xapi reads; where it differs, it was changed by hand
        # relvmoiscsi end

Without a base nothing is written: a list of our types alone would turn everything else off on a host whose xapi is
installed later. Where the base takes us already, * for one, no block is needed.

xapi parses whatever lies in xapi.conf.d, so new content is written to /etc/.relvmoiscsi.new, flushed, and renamed into
place: at any moment the directory holds the old file or the new one. What a killed run leaves in /etc, the next one
removes. Two runs at a time wait for each other, by an flock on /etc.
"""

import os
import re
from contextlib import contextmanager
from typing import Callable, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host import files, flock
from relvmoiscsi.host.xapi import conf
from relvmoiscsi.host.xapi.conf import (
    CONF,
    CONF_D,
    SM_PLUGINS,
    Setting,
    allows,
    folded,
    under,
)

OURS = ("relvmoiscsi", "relvmohba")  #: our SR types
_OURS = frozenset(map(folded, OURS))
DROP_IN = "zz-relvmoiscsi.conf"
NEW_FILE = "/etc/.relvmoiscsi.new"  #: beside xapi.conf.d, never in it
WAIT_SECONDS = 10.0

_BEGIN = "# relvmoiscsi begin"
_END = "# relvmoiscsi end"
_LIST = "# list:"
_MADE_DIRECTORY = "# The directory was made for this file."
_BLOCK = re.compile(
    f"^{re.escape(_BEGIN)}[^\n]*\n(.*?)^{re.escape(_END)}[^\n]*(?:\n|\\Z)".encode(), re.DOTALL | re.MULTILINE
)
_NAME_MAX = 255

_EXPLANATION = """\
{begin}: kept up to date by /usr/share/relvmoiscsi/sm-whitelist sync
# xapi takes the last {setting} line it reads as the whole list of storage drivers, and this file is read last.
# So the line repeats the list of the other files, and adds relvmoiscsi and relvmohba. It is made anew when they change.
# A driver that you add to the line or take out of it stays so.
# The list was found in {source}.
"""


class Block(NamedTuple):
    """Our lines in a drop-in, as found."""

    listed: Optional[Tuple[str, ...]]  #: what we wrote; None if that line is gone
    line: Optional[Tuple[str, ...]]  #: what xapi reads; None if that line is gone, or a comment now
    made_directory: bool


class Fragment(NamedTuple):
    """A file of xapi.conf.d."""

    path: str  #: without the root
    content: bytes
    block: Optional[Block]
    rest: bytes  #: the content without our block

    @property
    def name(self) -> str:
        """The name within the directory."""
        return os.path.basename(self.path)


class Edits(NamedTuple):
    """What was done to our line by hand."""

    added: Tuple[str, ...] = ()
    removed: FrozenSet[bytes] = frozenset()  #: folded names


class Outcome(NamedTuple):
    """What became of it, in sentences for an administrator."""

    changed: bool  #: xapi will read something else than before
    sentences: Tuple[str, ...]


def sync(root: str = "/") -> Outcome:
    """Bring our drop-in up to date with the other files under `root`. Doing it twice equals doing it once.

    Raises NotFound or Refused when a file cannot be read or written; then nothing has changed.
    """
    with _alone(root):
        outcome = _sync(root)
        return outcome._replace(sentences=outcome.sentences + tuple(map(_warning, conf.obstacles(root))))


def remove(root: str = "/") -> Outcome:
    """Take our part out of xapi.conf.d under `root`, and nothing else. Doing it twice equals doing it once.

    Raises NotFound or Refused when a file cannot be read or written.
    """
    with _alone(root):
        return _remove(root)


# --- what should be there


def _sync(root: str) -> Outcome:
    fragments = _fragments(root)
    base = _base(root, fragments)
    ours = _drop_in_of(fragments)
    if base is None:
        return Outcome(False, (_no_base(root),))
    if ours is not None and ours.block is not None and ours.block.line is None:
        return Outcome(False, (f"{ours.path} has no {SM_PLUGINS} line any more: left so.",))
    edits = edits_of(ours.block if ours is not None else None, base.plugins)
    plugins = merged(base.plugins, edits)
    is_needed = plugins != base.plugins or bool(edits.removed)
    copies = [each for each in fragments if each.block is not None and (each is not ours or not is_needed)]
    sentences = [_taken_out(root, each, each.rest) for each in copies]
    if not is_needed:
        _leave_no_directory(root, copies)
        return Outcome(bool(copies), (*sentences, _not_needed(base)))
    path = os.path.join(CONF_D, wanted_name(fragments, ours))
    changed = _write(root, ours, path, base, plugins)
    return Outcome(changed or bool(copies), (*sentences, _written(path, base, plugins, changed)))


def merged(base: Tuple[str, ...], edits: Edits) -> Tuple[str, ...]:
    """The list for our line: the base and our types, changed as it was changed by hand before."""
    kept = tuple(name for name in base if folded(name) not in edits.removed)
    kept += tuple(name for name in edits.added if not _names(kept, name))
    return kept + tuple(name for name in _lacking(kept) if folded(name) not in edits.removed)


def _lacking(plugins: Tuple[str, ...]) -> Tuple[str, ...]:
    """Those of our types that xapi would not take by this list."""
    return tuple(name for name in OURS if not allows(plugins, name))


def _without_ours(plugins: Tuple[str, ...], base: Tuple[str, ...] = ()) -> Tuple[str, ...]:
    """Without our types, but those that another file has as well."""
    return tuple(name for name in plugins if folded(name) not in _OURS or _names(base, name))


def edits_of(block: Optional[Block], base: Tuple[str, ...]) -> Edits:
    """What was added to the line of `block` and taken out of it since we wrote it, as far as it still matters."""
    if block is None or block.line is None:
        return Edits()
    # Where "list" is gone nobody knows what was taken out; what is in the line and nowhere else was added.
    listed = (*base, *OURS) if block.listed is None else block.listed
    added = tuple(name for name in block.line if not _names(listed, name))
    if block.listed is None:
        return Edits(added)
    gone = frozenset(folded(name) for name in listed if not _names(block.line, name))
    return Edits(added, gone & frozenset(map(folded, (*base, *OURS))))


def wanted_name(fragments: Sequence[Fragment], ours: Optional[Fragment]) -> str:
    """The name under which our drop-in is read after every other file that sets the list.

    Raises Refused where no name can be.
    """
    others = [each for each in fragments if each is not ours]
    last = max((os.fsencode(each.name) for each in others if _sets_the_list(each)), default=b"")
    names = [DROP_IN, os.fsdecode(last) + "-" + DROP_IN] + ([ours.name] if ours is not None else [])
    taken = [each.name for each in others]
    for name in names:
        if last < os.fsencode(name) and name not in taken and len(os.fsencode(name)) <= _NAME_MAX:
            return name
    raise Refused(
        f"{printable(os.path.join(CONF_D, os.fsdecode(last)))} sets {SM_PLUGINS}, and no name for a file sorts after "
        "its. Give it a shorter one."
    )


def _sets_the_list(fragment: Fragment) -> bool:
    return bool(conf.settings_of(fragment.path, fragment.rest))


def _names(plugins: Tuple[str, ...], name: str) -> bool:
    return folded(name) in map(folded, plugins)


def _base(root: str, fragments: Sequence[Fragment]) -> Optional[Setting]:
    """The setting that wins without us; None if no file has one."""
    settings = conf.settings_of(CONF, conf.read_conf(root, CONF))
    for fragment in fragments:
        settings += conf.settings_of(fragment.path, fragment.rest)
    return settings[-1] if settings else None


def _drop_in_of(fragments: Sequence[Fragment]) -> Optional[Fragment]:
    """The file that is ours by its name. One that has a copy of our block only, as editors leave them, is not."""
    ours = [fragment for fragment in fragments if _is_ours(fragment.name)]
    ours = [fragment for fragment in ours if fragment.block is not None] or ours
    return ours[-1] if ours else None


def _is_ours(name: str) -> bool:
    return name == DROP_IN or name.endswith("-" + DROP_IN)


# --- the text of a drop-in


def parse(path: str, content: bytes) -> Fragment:
    """A file of xapi.conf.d, our block told apart from the rest of it."""
    blocks = _BLOCK.findall(content)
    return Fragment(path, content, _parse_block(blocks[-1]) if blocks else None, _BLOCK.sub(b"", content))


def _parse_block(text: bytes) -> Block:
    settings = conf.settings_of("", text)
    lists = [line for line in text.split(b"\n") if line.startswith(_LIST.encode())]
    listed = conf.names_in(lists[-1][len(_LIST) :]) if lists else None
    return Block(listed, settings[-1].plugins if settings else None, _MADE_DIRECTORY.encode() in text)


def block_text(base: Setting, plugins: Tuple[str, ...], made_directory: bool) -> bytes:
    """The lines of our block. Raises Refused if xapi would read something else from them than `plugins`."""
    listed = base.plugins + _lacking(base.plugins)
    lines = _EXPLANATION.format(begin=_BEGIN, setting=SM_PLUGINS, source=printable(base.path)).split("\n")[:-1]
    lines += [_MADE_DIRECTORY] if made_directory else []
    lines += [" ".join((_LIST, *listed)), "{} = {}".format(SM_PLUGINS, " ".join(plugins)), _END, ""]
    text = os.fsencode("\n".join(lines))
    if parse("", text).block != Block(listed, plugins, made_directory):
        problem = "The {} of {} cannot be said in another file: {}. Change it, then try again."
        raise Refused(problem.format(SM_PLUGINS, printable(base.path), printable(" ".join(base.plugins))))
    return text


def printable(text: str) -> str:
    """`text` in ASCII: names of files and drivers may hold anything."""
    return text.encode("unicode_escape").decode("ascii")


# --- what is there


def _fragments(root: str) -> List[Fragment]:
    return [parse(path, conf.read_conf(root, path)) for path in conf.conf_files(root) if path != CONF]


def _write(root: str, ours: Optional[Fragment], path: str, base: Setting, plugins: Tuple[str, ...]) -> bool:
    """Put our block into the drop-in at `path`. True if that changed anything."""
    rest = ours.rest if ours is not None else b""
    had_no_directory = not os.path.isdir(under(root, CONF_D))
    made_directory = had_no_directory or (ours is not None and ours.block is not None and ours.block.made_directory)
    block = block_text(base, plugins, made_directory)
    # A list that somebody wrote into our file by hand must come before ours; everything else may follow it as it is.
    by_hand = conf.settings_of(path, rest)
    content = rest + (b"" if rest.endswith(b"\n") else b"\n") + block if by_hand else block + rest
    if ours is not None and ours.path == path and ours.content == content:
        return False
    if had_no_directory:
        _changing(CONF_D, lambda: _make_directory(root))
    if ours is not None and ours.path != path:
        old = under(root, ours.path)
        _changing(path, lambda: os.rename(old, under(root, path)))
    _replace(root, path, content)
    return True


def _remove(root: str) -> Outcome:
    fragments = _fragments(root)
    base = _base(root, fragments)
    ours = [fragment for fragment in fragments if _without_us(fragment, base) != fragment.content]
    sentences = [_taken_out(root, fragment, _without_us(fragment, base)) for fragment in ours]
    _leave_no_directory(root, ours)
    return Outcome(bool(ours), tuple(sentences))


def _taken_out(root: str, fragment: Fragment, left: bytes) -> str:
    """Leave what is not ours in the file; says what became of it."""
    if _leave(root, fragment.path, left):
        return f"{printable(fragment.path)} was changed by hand: it stays, without our part."
    return f"{printable(fragment.path)} was removed."


def _leave_no_directory(root: str, removed: Sequence[Fragment]) -> None:
    """Remove xapi.conf.d if we had made it for these files, and nothing else has come into it."""
    made_directory = any(each.block is not None and each.block.made_directory for each in removed)
    if made_directory and not os.listdir(under(root, CONF_D)):
        _changing(CONF_D, lambda: os.rmdir(under(root, CONF_D)))


def _without_us(fragment: Fragment, base: Optional[Setting]) -> bytes:
    """The content of a file of xapi.conf.d after our removal."""
    if fragment.block is None:
        return _without_our_name(fragment.content) if _is_ours(fragment.name) else fragment.content
    if base is None or not _is_ours(fragment.name):
        return fragment.rest
    edits = edits_of(fragment.block, base.plugins)
    kept = _without_ours(merged(base.plugins, edits), base.plugins)
    if kept == base.plugins:
        return fragment.rest
    return _setting_line(kept) + fragment.rest


def _without_our_name(content: bytes) -> bytes:
    """The content of a drop-in whose marks are gone: whoever took them away owns the file, and we only our name."""
    lines = content.split(b"\n")
    for number, line in enumerate(lines):
        plugins = conf.value_of(line)
        if plugins is not None and _without_ours(plugins) != plugins:
            lines[number] = _setting_line(_without_ours(plugins)).rstrip(b"\n")
    return b"\n".join(lines)


def _setting_line(plugins: Tuple[str, ...]) -> bytes:
    return os.fsencode("{} = {}\n".format(SM_PLUGINS, " ".join(plugins)))


# --- changing files


def _leave(root: str, path: str, content: bytes) -> bool:
    """Leave `content` in the file, or no file if that is blank. True if there is still a file."""
    if content.strip():
        _replace(root, path, content)
        return True
    _changing(path, lambda: os.unlink(under(root, path)))
    _changing(CONF_D, lambda: files.sync_directory(under(root, CONF_D)))
    return False


def _replace(root: str, path: str, content: bytes) -> None:
    """Give the file new content, all of it or none; its owner and mode stay."""
    target, new = under(root, path), under(root, NEW_FILE)

    def change() -> None:
        files.replace(target, content, new)
        files.sync_directory(under(root, CONF_D))

    _changing(path, change)


def _make_directory(root: str) -> None:
    directory = under(root, CONF_D)
    os.mkdir(directory)
    os.chmod(directory, 0o755)
    files.sync_directory(os.path.dirname(directory))


def _discard(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:  # it was renamed, or never made
        pass


def _changing(path: str, change: Callable[[], None]) -> None:
    try:
        change()
    except OSError as error:
        raise Refused(f"{printable(path)} cannot be changed: {error.strerror}.") from error


@contextmanager
def _alone(root: str) -> Iterator[None]:
    """Nobody else is at work on these files; what a killed run left is gone."""
    etc = under(root, "/etc")

    def taken(_owner: str) -> Refused:
        return Refused(f"Another run of sm-whitelist did not end within {WAIT_SECONDS:g} seconds.")

    def unusable(error: OSError) -> NotFound:
        return NotFound(f"{etc} cannot be opened: {error.strerror}.")

    with flock.directory(etc, WAIT_SECONDS, taken, unusable):
        if os.path.lexists(under(root, NEW_FILE)):
            _changing(NEW_FILE, lambda: _discard(under(root, NEW_FILE)))
        yield


# --- sentences


def _written(path: str, base: Setting, plugins: Tuple[str, ...], changed: bool) -> str:
    out = _lacking(plugins)
    taken = [name for name in OURS if name not in out]
    if out:
        names, is_or_are = " and ".join(out), "it" if len(out) == 1 else "them"
        return f"{names}: taken out of {printable(path)} by hand. Left so, xapi does not accept {is_or_are}."
    if not changed:
        return "{} is up to date: xapi accepts {}.".format(printable(path), " and ".join(taken))
    return "{} was written: the drivers of {}, {}.".format(printable(path), printable(base.path), " and ".join(taken))


def _not_needed(base: Setting) -> str:
    return "xapi accepts {} already: {} has `{} = {}`.".format(
        " and ".join(OURS), printable(base.path), SM_PLUGINS, printable(" ".join(base.plugins))
    )


def _no_base(root: str) -> str:
    if os.path.exists(under(root, CONF)):
        return f"Neither {CONF} nor {CONF_D} sets {SM_PLUGINS}: nothing was written."
    return f"There is no {CONF} yet: nothing was written. It is done when xapi is installed, or starts."


def _warning(path: str) -> str:
    return f"{printable(path)} is not a file: xapi cannot read it and does not start."
