# SPDX-License-Identifier: LGPL-2.1-only
"""The command that shows and changes the settings of the SR driver on this host."""

from functools import partial
from typing import Optional

from relvmoiscsi.cli.output import Answer, Maker
from relvmoiscsi.errors import in_state
from relvmoiscsi.host import settings
from relvmoiscsi.host.config_file import NOT_CHANGED, changing, read_config, replace_config, settings_of
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.wording import ONE, VDIS

HOST = THIS_HOST

_SETTINGS = """\
The settings are in the section [driver] of /etc/relvmoiscsi.conf and apply from the next call of the SR
driver. --vdis changes that setting and leaves the rest of the file as it is; edit `deadline` and `copy` in the
file. With `one`, the SR driver reduces
each LUN to a single VDI, as CloudStack needs: it removes snapshots and merges the disk with its hidden
parents into one image. Use the same setting on all hosts of a pool. device-config:vdis overrides the setting
for one call.

example:
  relvmoiscsi settings
  relvmoiscsi settings --vdis one"""


def add_settings(make: Maker) -> None:
    parser = make(lambda arguments: partial(_settings, arguments.vdis), _SETTINGS)
    parser.add_argument(
        "--vdis", choices=VDIS, metavar="WHICH", help="one: reduce each LUN to a single VDI; all: keep every VDI"
    )


def _settings(vdis: Optional[str]) -> Answer:
    is_changed = False
    if not vdis:
        text = read_config(HOST.config)
    else:
        with changing(HOST):
            text = read_config(HOST.config)
            if settings_of(text, settings.SECTION).get("vdis") != vdis:
                with in_state(NOT_CHANGED):
                    text = settings.with_vdis(text, vdis)
                settings.settings_in(text, HOST.config)  # an invalid file is not changed
                replace_config(HOST.config, text)
                is_changed = True
    found = settings.settings_in(text, HOST.config)
    means = "each LUN becomes one with a single VDI" if found["vdis_setting"] == ONE else "every VDI is kept"
    lines = [f"{HOST.config} was changed."] if is_changed else []
    lines += [
        f"deadline  {found['deadline']:g} seconds until a call begins to write",
        f"vdis      {found['vdis_setting']}: {means}",
        f"copy      {found['copy_mib']} MiB that a call may copy to make one VDI",
    ]
    return Answer({**found, "file": HOST.config, "changed": is_changed}, "\n".join(lines))
