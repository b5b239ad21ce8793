# SPDX-License-Identifier: LGPL-2.1-only
"""What became of a VM that was to have a copy."""

from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.pool.vms import ova

#: status of a VM
MADE, ALREADY, WOULD, FAILED = "cloned", "already there", "would be cloned", "failed"


class Cloned(NamedTuple):
    """What became of a VM."""

    vm: str  #: UUID of the original
    vm_name: str
    status: str
    name: str = ""
    uuid: str = ""  #: of the copy
    disks: Sequence[ova.Disk] = ()
    networks: Mapping[str, Tuple[str, str]] = {}  #: names of the original's network and of its own, by device
    snapshots: Sequence[str] = ()
    notes: Sequence[str] = ()
    error: Optional[RelvmoiscsiError] = None

    def facts(self) -> Dict[str, Any]:
        """For JSON."""
        return {
            "vm": {"old": self.vm, "new": self.uuid or None},
            "name": {"old": self.vm_name, "new": self.name or None},
            "status": self.status,
            "disks": [disk._asdict() for disk in self.disks],
            "networks": {device: {"old": old, "new": new} for device, (old, new) in self.networks.items()},
            "snapshots": list(self.snapshots),
            "notes": list(self.notes),
            "error": str(self.error) if self.error is not None else None,
        }

    def noted(self, note: str) -> "Cloned":
        """With one more note."""
        return self._replace(notes=[*self.notes, note])


def are_whole(results: Sequence[Cloned]) -> bool:
    return all(result.status != FAILED for result in results)
