# SPDX-License-Identifier: LGPL-2.1-only
"""The command that tells what old ids became; it needs no device, for the new SR's UUID and the old ids say it all."""

import argparse

from relvmoiscsi.cli.output import Answer, Maker
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.resignature.planning.mapfile import derived_ids

_MAP = """\
New ids follow from the UUID of the new SR and the old ids, unless --map chose others. OLD is the UUID of a VDI,
or the id of a PV, VG or LV, with its dashes or without; not the old SR's UUID, which became NEW itself. What
--json prints is also a file for `resignature --map`.

example:
  relvmoiscsi map --sr db0cd78a-53f4-4682-a7b3-6e2f53d22f96 efd24831-00a5-4192-9633-f030a9710c2b"""


def add_command(make: Maker) -> None:
    """Describe the command and its arguments."""
    parser = make(_map, _MAP)
    parser.add_argument("--sr", metavar="NEW", required=True, help="UUID of the new SR")
    parser.add_argument("old", metavar="OLD", nargs="+", help="UUID of a VDI, or LVM id, as it was before")


def _map(arguments: argparse.Namespace) -> Answer:
    found = derived_ids(arguments.sr, arguments.old)
    facts = {
        "new_sr": arguments.sr,
        "uuids": {old: new for old, new in found.items() if is_uuid(old)},
        "lvm_ids": {old: new for old, new in found.items() if not is_uuid(old)},
    }
    return Answer(facts, "\n".join(f"{old}  becomes  {new}" for old, new in found.items()))
