# SPDX-License-Identifier: LGPL-2.1-only
"""The command that maps old ids to new ids: all ids of a LUN from its journal, or given ids by computation.

The computation needs no device: each new id is derived from the UUID of the new SR and the old id.
"""

import argparse

from relvmoiscsi import engine, report
from relvmoiscsi.cli.opening import device_word, source_of, takes_device_options
from relvmoiscsi.cli.output import Answer, Maker
from relvmoiscsi.errors import NotFound, UsageError
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.formats.mapfile import derived_ids

_MAP = """\
With --device, the command prints the whole map of a resignatured LUN from its journal, until LVM overwrites
that space. With --sr, the command computes each new id from the UUID of the new SR and the old id. The result
is wrong for ids that `resignature --map` has chosen. OLD is the UUID of a VDI, or the id of a PV, VG or LV,
with or without dashes. OLD is not the UUID of the old SR, which became NEW. `resignature --map` accepts the
output of --json.

example:
  relvmoiscsi map --sr db0cd78a-53f4-4682-a7b3-6e2f53d22f96 efd24831-00a5-4192-9633-f030a9710c2b
  relvmoiscsi map --device /dev/sdc"""


def add_map(make: Maker) -> None:
    parser = make(_map, _MAP)
    what = "print the whole map of this resignatured LUN"
    parser.add_argument("--device", dest="lun", metavar="DEVICE", type=device_word, help=what)
    takes_device_options(parser)
    parser.add_argument("--sr", metavar="NEW", help="UUID of the new SR")
    parser.add_argument("old", metavar="OLD", nargs="*", help="UUID of a VDI or LVM id on the original")


def _map(arguments: argparse.Namespace) -> Answer:
    if arguments.lun is not None:
        if arguments.sr is not None or arguments.old:
            raise UsageError("--device prints the whole map: remove --sr and the ids.")
        return _map_of(arguments)
    if arguments.sr is None or not arguments.old:
        raise UsageError("Give --sr and at least one old id, or --device.")
    found = derived_ids(arguments.sr, arguments.old)
    facts = {
        "new_sr": arguments.sr,
        "uuids": {old: new for old, new in found.items() if is_uuid(old)},
        "lvm_ids": {old: new for old, new in found.items() if not is_uuid(old)},
    }
    return Answer(facts, "\n".join(f"{old}  becomes  {new}" for old, new in found.items()))


def _map_of(arguments: argparse.Namespace) -> Answer:
    """Return the map of a LUN. Raises NotFound where the LUN has no map, and the errors of reading a LUN."""
    path = arguments.lun
    with source_of(arguments, path).opened_to_read() as lun:
        found = engine.inspect(lun.device)
    if found.problem is not None:
        raise found.problem
    if found.state != engine.RESIGNATURED:
        raise NotFound(f"{path} is not resignatured and holds no map. Give the resignatured clone.")
    if found.run is None:
        raise NotFound(
            f"LVM has overwritten the journal with the map on {path}. Look for the map in SMlog, in syslog or in "
            "the file of --map-out. `relvmoiscsi map --sr NEW OLD` computes the new id of an old id."
        )
    facts = {"device": path, **report.map_facts(found.lun, found.run.ids)}
    return Answer(facts, "\n".join([f"{path} was resignatured:", *report.whole_map_lines(found.lun, found.run.ids)]))
