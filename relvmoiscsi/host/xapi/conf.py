# SPDX-License-Identifier: LGPL-2.1-only
"""The configuration of xapi, read as xapi reads it. Used here: the setting sm-plugins, the storage drivers of xapi.

    /etc/xapi.conf       first, if it exists
    /etc/xapi.conf.d/*   then every entry in byte order of its name: .rpmsave, ~ and hidden files are no exception

A line is `key = value`. xapi ignores text behind a #, even between quotes. xapi also ignores blanks around key and
value, and text before the key. xapi removes one pair of quotes around the value. Each sm-plugins line replaces all
earlier lines, so the last line has the whole list. White space separates the names. Upper and lower case are the same.
The name * stands for every driver. Without an sm-plugins line xapi accepts no driver.

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
    """An sm-plugins line."""

    path: str  #: of the file with the line, without the root
    plugins: Tuple[str, ...]  #: as written, in the order of the line


class Whitelist(NamedTuple):
    """The storage drivers that xapi accepts, and the file that lists them."""

    plugins: Tuple[str, ...]  #: as written, in the order of the line; empty: no driver
    source: Optional[str]  #: the file of the last sm-plugins line, without the root; None: no file has a line
    sources: Tuple[Setting, ...]  #: every sm-plugins line, in the order in which xapi reads them

    def allows(self, name: str) -> bool:
        """Return whether xapi accepts the driver of SR type `name` ("relvmoiscsi")."""
        return allows(self.plugins, name)


def read_whitelist(root: str = "/") -> Whitelist:
    """Return the list that xapi would read if it started now, from the files under `root`.

    Raises NotFound if a file exists and cannot be read.
    """
    sources = tuple(setting for path in conf_files(root) for setting in settings_of(path, read_conf(root, path)))
    return Whitelist(sources[-1].plugins if sources else (), sources[-1].path if sources else None, sources)


def allows(plugins: Tuple[str, ...], name: str) -> bool:
    """Return whether an sm-plugins list has the driver of SR type `name`. xapi compares bytes, ASCII in any case."""
    return ALL in plugins or os.fsencode(name).lower() in [os.fsencode(plugin).lower() for plugin in plugins]


def conf_files(root: str) -> List[str]:
    """Return the files that xapi reads, in its order, without the root. Obstacles (see `obstacles`) are left out."""
    found = [CONF] if os.path.exists(under(root, CONF)) else []
    return found + [path for path in _fragments(root) if not _is_obstacle(under(root, path))]


def obstacles(root: str = "/") -> List[str]:
    """Return directories, pipes and dangling links in xapi.conf.d, without the root. With any of them xapi fails."""
    return [path for path in _fragments(root) if _is_obstacle(under(root, path))]


def _fragments(root: str) -> List[str]:
    try:
        names = os.listdir(os.fsencode(under(root, CONF_D)))
    except (FileNotFoundError, NotADirectoryError):  # xapi too reads this as an empty directory
        return []
    return [os.path.join(CONF_D, os.fsdecode(name)) for name in sorted(names)]


def _is_obstacle(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
        return stat.S_ISDIR(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
    except OSError:  # a link to nowhere, or to itself
        return os.path.islink(path)


def read_conf(root: str, path: str) -> bytes:
    """Return the content of a configuration file, b"" if it is gone. Raises NotFound if it cannot be read."""
    try:
        with open(under(root, path), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise NotFound(f"{under(root, path)} cannot be read: {error.strerror}.") from error


def settings_of(path: str, content: bytes) -> List[Setting]:
    """Return the sm-plugins lines in the content of the file `path`."""
    values = (value_of(line) for line in content.split(b"\n"))
    return [Setting(path, names) for names in values if names is not None]


def value_of(line: bytes) -> Optional[Tuple[str, ...]]:
    """Return the names in a configuration line; None if the line does not set sm-plugins."""
    found = _LINE.search(line.split(b"#")[0].rstrip(b" \t"))
    if found is None or found.group(1) != SM_PLUGINS.encode():
        return None
    value = found.group(2)
    if len(value) >= _SHORTEST_QUOTED and value[:1] == value[-1:] and value[:1] in (b"'", b'"'):
        value = value[1:-1]
    return tuple(os.fsdecode(name) for name in _SPACES.split(value) if name)


def under(root: str, path: str) -> str:
    """Return the absolute `path` below the directory `root`."""
    return os.path.join(root, path.lstrip("/"))
