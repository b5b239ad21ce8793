# SPDX-License-Identifier: LGPL-2.1-only
"""The command that maps old ids to new ids: all ids of a LUN from its journal, or given ids by computation.

The computation needs no device: each new id is derived from the UUID of the new SR and the old id.
"""

import argparse
from typing import Dict, List

from relvmoiscsi import engine, report
from relvmoiscsi.cli.on_lun import DeviceCommand, device_word, on_lun, takes_device_options
from relvmoiscsi.cli.output import Answer, Maker
from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.formats.mapfile import derived_ids
from relvmoiscsi.wording import counted

_MAP = """\
With --device, the command prints the whole map of a resignatured LUN from its journal, until LVM overwrites
that space. With --sr, the command computes each new id from the UUID of the new SR and the old id. The result
is wrong for UUIDs that `resignature --map` has chosen. OLD is the UUID of a VDI, or the id of a PV, VG or LV,
with or without dashes. OLD is not the UUID of the old SR, which became NEW. `resignature --map` accepts the
output of --json.

example:
  relvmoiscsi map --sr db0cd78a-53f4-4682-a7b3-6e2f53d22f96 \\
      efd24831-00a5-4192-9633-f030a9710c2b
  relvmoiscsi map --device /dev/sdc"""


def add_map(make: Maker) -> None:
    parser = make(on_lun(MapCommand), _MAP)
    what = "print the whole map of this resignatured LUN"
    parser.add_argument("--device", metavar="DEVICE", type=device_word, help=what)
    takes_device_options(parser)
    parser.add_argument("--sr", metavar="NEW", help="UUID of the new SR")
    parser.add_argument("old", metavar="OLD", nargs="*", help="UUID of a VDI or LVM id on the original")


class MapCommand(DeviceCommand):
    """Print a map of old ids to new ids."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        self.is_of_lun = arguments.device is not None
        self.sr: str = arguments.sr or ""
        self.old: List[str] = arguments.old
        self._is_computed = arguments.sr is not None
        self._derived: Dict[str, str] = {}  #: what --sr asks for

    def verify(self) -> None:
        super().verify()
        if self.is_of_lun and (self._is_computed or self.old):
            raise UsageError("--device prints the whole map.").advising("Remove --sr and the ids.")
        if not self.is_of_lun and not (self._is_computed and self.old):
            raise UsageError("No map is asked for.").advising(
                "Give --device DEVICE for the whole map of a LUN, or --sr NEW and at least one old id."
            )
        if not self.is_of_lun:
            self._derived = derived_ids(self.sr, self.old)

    def run(self) -> Answer:
        """Return a map. Raises NotFound where a LUN has no map, and the errors of reading a LUN."""
        path = self.device
        if not self.is_of_lun:
            derived = self._derived
            ids = {
                "new_sr": self.sr.lower(),
                "uuids": {old: new for old, new in derived.items() if is_uuid(old)},
                "lvm_ids": {old: new for old, new in derived.items() if not is_uuid(old)},
            }
            return Answer(ids, "\n".join(f"{old} -> {new}" for old, new in derived.items()))
        with self.source(path).opened_to_read() as lun:
            found = engine.inspect(lun.device)
        if found.problem is not None:
            raise found.problem
        if found.state != engine.RESIGNATURED:
            raise Refused(f"{path} is not resignatured and holds no map.").advising("Give the resignatured clone.")
        if found.run is None:
            gone = f"LVM has overwritten the journal with the map on {path}, or the journal is not of this LUN."
            raise NotFound(gone).advising(
                "Look for the map in SMlog, in syslog or in "
                "the file of --map-out. `relvmoiscsi map --sr NEW OLD` computes the new id of an old id."
            )
        facts = {"device": path, **report.map_facts(found.lun, found.run.ids)}
        is_one = found.run.one is not None  # the other VDIs were deleted by the run
        rows = report.whole_map_lines(found.lun, found.run.ids, not is_one, "became")
        lines = [f"{path} was resignatured:", *rows]
        if is_one and facts["other_uuids"]:
            lines.append(
                f"The run has made one VDI: --json also has {counted(len(facts['other_uuids']), 'UUID')} of no VDI."
            )
        return Answer(facts, "\n".join(lines))
