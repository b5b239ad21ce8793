# SPDX-License-Identifier: LGPL-2.1-only
"""The product's drop-in for xapi's list of storage drivers: one file that repeats the list of all other files.

xapi takes the last sm-plugins line as the whole list (conf.py). The drop-in must name every driver, and xapi must read
it last. So `sync` writes the drop-in anew whenever another file may have changed the list:

    base   the list that xapi would read without drop-ins
    name   /etc/xapi.conf.d/zz-relvmoiscsi.conf. If a file with a list sorts later, its name becomes a prefix
    list   the base and the product's SR types. An administrator changes another file, and the drop-in follows

Without a base `sync` writes nothing: a list of the product's types alone would turn all other drivers off. If the base
accepts the product's types, there is no drop-in. An editor's copy that begins with _WRITTEN is a drop-in.

xapi reads every file in xapi.conf.d. So `sync` writes new content to a file in /etc, flushes and renames that file.
"""

import os
from contextlib import contextmanager
from typing import Dict, Iterable, Iterator, List, Tuple

from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host import files
from relvmoiscsi.host.own_path import make_directory
from relvmoiscsi.host.run_directory import only_one
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.host.xapi import conf
from relvmoiscsi.host.xapi.conf import CONF, CONF_D, SM_PLUGINS
from relvmoiscsi.sr_types import OWN_TYPES
from relvmoiscsi.wording import printable

DROP_IN = "zz-relvmoiscsi.conf"
NEW_FILE = "/etc/.relvmoiscsi.new"  #: beside xapi.conf.d, never inside
WAIT_SECONDS = 10.0

_WRITTEN = "# Written by /usr/share/relvmoiscsi/sm-whitelist"
_NAME_MAX = 255  #: bytes
_TEXT = """\
{written}, and written anew at each start of xapi: make your changes in {source}.
# xapi takes the last {setting} line as the whole list of storage drivers, and reads this file last. The line repeats
# the list of {source}, and adds {own}.
{setting} = {plugins}
"""

Files = Dict[str, bytes]  #: content by path without the root, in the order in which xapi reads the files


def sync(host: Host = THIS_HOST) -> Tuple[bool, str]:
    """Bring the drop-in up to date with the other files of xapi on `host`. A second call changes nothing.

    Return whether xapi will read another list than before, and a sentence for an administrator.

    Raises NotFound or Refused if a file cannot be read or written; xapi then reads the earlier list.
    """
    with _alone(host):
        ours, others = _files(host)
        settings = [setting for path, content in others.items() for setting in conf.settings_of(path, content)]
        if not settings:
            return False, f"Neither {CONF} nor {CONF_D} sets {SM_PLUGINS}: nothing was written."
        base = settings[-1]
        plugins = base.plugins + tuple(name for name in OWN_TYPES if not base.allows(name))
        source = printable(base.path)
        if plugins == base.plugins:
            return _unlink(host, ours), f"{source} accepts {' and '.join(OWN_TYPES)} already."
        path = os.path.join(CONF_D, _name(list(others), settings))
        words = {"written": _WRITTEN, "setting": SM_PLUGINS, "source": source, "own": " and ".join(OWN_TYPES)}
        content = os.fsencode(_TEXT.format(plugins=" ".join(plugins), **words))
        if [setting.plugins for setting in conf.settings_of("", content)] != [plugins]:
            problem = "The {} of {} cannot be repeated in another file: {}. Change it, then try again."
            raise Refused(problem.format(SM_PLUGINS, source, printable(" ".join(base.plugins))))
        changed = ours != {path: content}
        if changed:
            directory = host.at(CONF_D)
            if not os.path.isdir(directory):
                make_directory(directory, 0o755)
            try:
                files.replace(host.at(path), content, host.at(NEW_FILE))
                files.sync_directory(directory)
            except OSError as error:
                raise _unchanged(path, error) from error
            _unlink(host, [name for name in ours if name != path])
        was = "was written" if changed else "is up to date"
        return changed, f"{printable(path)} {was}: the drivers of {source}, {' and '.join(OWN_TYPES)}."


def remove(host: Host = THIS_HOST) -> Tuple[bool, str]:
    """Remove the drop-ins on `host`. Return, and raise, as `sync` does."""
    with _alone(host):
        ours, _others = _files(host)
        return _unlink(host, ours), " ".join(f"{printable(path)} was removed." for path in ours)


def _name(others: List[str], settings: List[conf.Setting]) -> str:
    """Return a name that sorts behind every other file with a list. Raises Refused if there is none."""
    last = max((os.fsencode(each.path) for each in settings if each.path != CONF), default=b"")
    prefix = os.path.basename(os.fsdecode(last))
    for name in (DROP_IN, f"{prefix}-{DROP_IN}"):
        path = os.path.join(CONF_D, name)
        if last < os.fsencode(path) and path not in others and len(os.fsencode(name)) <= _NAME_MAX:
            return name
    problem = "{} sets {}, and no name of ours sorts behind its name. Rename that file: 200 characters at most."
    raise Refused(problem.format(printable(os.fsdecode(last)), SM_PLUGINS))


# --- the files


def _files(host: Host) -> Tuple[Files, Files]:
    """Return the drop-ins, and all other files."""
    found, _obstacles = conf.conf_files(host)
    ours = {path: text for path, text in found.items() if text.startswith(_WRITTEN.encode())}
    return ours, {path: text for path, text in found.items() if path not in ours}


def _unlink(host: Host, paths: Iterable[str]) -> bool:
    """Remove these files. Return whether there were any. Raises Refused."""
    names = list(paths)
    for path in names:
        try:
            os.unlink(host.at(path))
            files.sync_directory(os.path.dirname(host.at(path)))
        except OSError as error:
            raise _unchanged(path, error) from error
    return bool(names)


def _unchanged(path: str, error: OSError) -> Refused:
    return Refused(f"{printable(path)} cannot be changed: {error.strerror}.").advising(files.remedy(error))


@contextmanager
def _alone(host: Host) -> Iterator[None]:
    """Hold the lock on these files, and remove a file that a killed run left in /etc."""
    etc = host.at("/etc")
    try:
        os.stat(etc)
    except OSError as error:
        raise NotFound(f"{etc} cannot be opened: {error.strerror}.") from error

    with only_one("whitelist.lock", host, WAIT_SECONDS, f"sm-whitelist waited {WAIT_SECONDS:g} seconds for"):
        if os.path.lexists(host.at(NEW_FILE)):
            _unlink(host, [NEW_FILE])
        yield
