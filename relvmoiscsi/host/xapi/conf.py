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
from typing import Dict, List, NamedTuple, Optional, Tuple

from relvmoiscsi.errors import NotFound
from relvmoiscsi.host.files import content_of
from relvmoiscsi.host.this_host import THIS_HOST, Host

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
    plugins: Tuple[str, ...]  #: as written, in the order of the line; empty: no driver

    def allows(self, name: str) -> bool:
        """Return whether the line has the driver of SR type `name`. xapi compares bytes, ASCII in any case."""
        return ALL in self.plugins or os.fsencode(name).lower() in [os.fsencode(each).lower() for each in self.plugins]


def sm_plugins(host: Host = THIS_HOST) -> List[Setting]:
    """Return the sm-plugins lines that xapi would read if it started now, in its order. The last line counts.

    Raises NotFound if a file exists and cannot be read.
    """
    files, _obstacles = conf_files(host)
    return [setting for path, content in files.items() for setting in settings_of(path, content)]


def conf_files(host: Host) -> Tuple[Dict[str, bytes], List[str]]:
    """Return the files that xapi reads, with their content and in its order, and the obstacles in xapi.conf.d.

    The paths are without the root. An obstacle is a directory, a pipe, a socket or a dangling link: with any of them
    xapi fails. Raises NotFound if a file exists and cannot be read.
    """
    paths: List[str] = [CONF] if os.path.exists(host.at(CONF)) else []
    obstacles: List[str] = []
    try:
        names = os.listdir(os.fsencode(host.at(CONF_D)))
    except (FileNotFoundError, NotADirectoryError):  # xapi too reads this as an empty directory
        names = []
    for path in [os.path.join(CONF_D, os.fsdecode(name)) for name in sorted(names)]:
        try:
            mode = os.stat(host.at(path)).st_mode
            is_obstacle = stat.S_ISDIR(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        except OSError:  # a link to nowhere, or to itself
            is_obstacle = os.path.islink(host.at(path))
        (obstacles if is_obstacle else paths).append(path)
    files: Dict[str, bytes] = {}
    for path in paths:
        try:
            files[path] = content_of(host.at(path)) or b""  # None: the file has gone meanwhile
        except OSError as error:
            raise NotFound(f"{host.at(path)} cannot be read: {error.strerror}.") from error
    return files, obstacles


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
