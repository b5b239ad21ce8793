# SPDX-License-Identifier: LGPL-2.1-only
"""The configuration of xapi, read as xapi reads it; here: which storage drivers it accepts, the setting sm-plugins.

    /etc/xapi.conf       first, if it exists
    /etc/xapi.conf.d/*   then every entry in byte order of its name: .rpmsave, ~ and hidden files are no exception

A line is `key = value`. What follows a # is a comment, even between quotes; blanks around are ignored, and so is what
stands before the key; one pair of quotes around the value goes. Each sm-plugins line replaces all that were before it,
so the last one holds the whole list. Its names are separated by white space, upper and lower case are the same, and *
stands for every driver. Without such a line xapi accepts none.

Source: xen-api ocaml/xapi-idl/lib/xcp_service.ml, Config_file and read_config_file; ocaml/xapi/xapi_globs.ml,
gen_list_option and accept_sm_plugin.
"""

import os
import re
import stat
from typing import List, NamedTuple, Optional, Tuple

from relvmoiscsi.errors import NotFound

CONF = "/etc/xapi.conf"
CONF_D = "/etc/xapi.conf.d"
SM_PLUGINS = "sm-plugins"
ALL = "*"

_LINE = re.compile(rb"([^=\\ \t]+)[\\ \t]*=[\\ \t]*(.*)", re.DOTALL)
_SPACES = re.compile(rb"[ \t\r\n\f]+")
_SHORTEST_QUOTED = 2


class Setting(NamedTuple):
    """One sm-plugins line."""

    path: str  #: of the file it is in, without the root
    plugins: Tuple[str, ...]  #: as written, in their order


class Whitelist(NamedTuple):
    """Which storage drivers xapi accepts, and who says so."""

    plugins: Tuple[str, ...]  #: as written, in their order; empty: none
    source: Optional[str]  #: the file whose line won, without the root; None: no file has one
    sources: Tuple[Setting, ...]  #: every sm-plugins line, in the order in which xapi reads them

    def allows(self, name: str) -> bool:
        """Whether xapi takes the driver of SR type `name` ("relvmoiscsi")."""
        return allows(self.plugins, name)


def read_whitelist(root: str = "/") -> Whitelist:
    """The list that xapi would have if it started now, with the files under `root`.

    Raises NotFound when a file is there and cannot be read.
    """
    sources = tuple(setting for path in conf_files(root) for setting in settings_of(path, read_conf(root, path)))
    return Whitelist(sources[-1].plugins if sources else (), sources[-1].path if sources else None, sources)


def allows(plugins: Tuple[str, ...], name: str) -> bool:
    """Whether an sm-plugins list takes the driver of SR type `name`."""
    return ALL in plugins or folded(name) in map(folded, plugins)


def folded(name: str) -> bytes:
    """What xapi compares of a name: its bytes, with the ASCII letters in lower case."""
    return os.fsencode(name).lower()


def conf_files(root: str) -> List[str]:
    """The files that xapi reads, in its order, without the root. What only blocks its way is left out."""
    found = [CONF] if os.path.exists(under(root, CONF)) else []
    return found + [path for path in _fragments(root) if not _is_obstacle(under(root, path))]


def obstacles(root: str = "/") -> List[str]:
    """Directories, pipes and dangling links in xapi.conf.d, without the root: with them xapi does not start."""
    return [path for path in _fragments(root) if _is_obstacle(under(root, path))]


def _fragments(root: str) -> List[str]:
    try:
        names = os.listdir(os.fsencode(under(root, CONF_D)))
    except (FileNotFoundError, NotADirectoryError):  # xapi as well takes this for an empty one
        return []
    return [os.path.join(CONF_D, os.fsdecode(name)) for name in sorted(names)]


def _is_obstacle(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
        return stat.S_ISDIR(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
    except OSError:  # a link to nowhere, or to itself
        return os.path.islink(path)


def read_conf(root: str, path: str) -> bytes:
    """The content of a file of the configuration, empty if it is gone. Raises NotFound when it cannot be read."""
    try:
        with open(under(root, path), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise NotFound(f"{under(root, path)} cannot be read: {error.strerror}.") from error


def settings_of(path: str, content: bytes) -> List[Setting]:
    """The sm-plugins lines in the content of the file `path`."""
    values = (value_of(line) for line in content.split(b"\n"))
    return [Setting(path, names) for names in values if names is not None]


def value_of(line: bytes) -> Optional[Tuple[str, ...]]:
    """The names in a line of the configuration; None if it does not set sm-plugins."""
    found = _LINE.search(line.split(b"#")[0].rstrip(b" \t"))
    if found is None or found.group(1) != SM_PLUGINS.encode():
        return None
    value = found.group(2)
    if len(value) >= _SHORTEST_QUOTED and value[:1] == value[-1:] and value[:1] in (b"'", b'"'):
        value = value[1:-1]
    return names_in(value)


def names_in(value: bytes) -> Tuple[str, ...]:
    """The names in a list as sm-plugins has it."""
    return tuple(os.fsdecode(name) for name in _SPACES.split(value) if name)


def under(root: str, path: str) -> str:
    """The absolute `path` as found when `root` is the root directory."""
    return os.path.join(root, path.lstrip("/"))
