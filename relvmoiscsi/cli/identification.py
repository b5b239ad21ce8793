# SPDX-License-Identifier: LGPL-2.1-only
"""Identify a clone: its own SCSIid and hardware, the SR on the LUN, and the answer of the pool.

No other module computes the identification. Prompts, the dry run and `show` print the same lines; --json has the same
facts as `lun`.
"""

from typing import Any, Dict, List, NamedTuple, Optional

from relvmoiscsi.engine import Lun
from relvmoiscsi.formats import naming
from relvmoiscsi.host.disk.scsi_id import Hardware
from relvmoiscsi.lun.opened import IMAGE_FILE, OpenLun
from relvmoiscsi.lun.users import PoolAnswer
from relvmoiscsi.wording import human_size, printable

_AT_WORK = "The storage manager was working on the SR when the copy was taken, or is working now."


class Identification(NamedTuple):
    """A device and its content before a command changes the content."""

    kind: str  #: as OpenLun's
    scsi_id: Optional[str]  #: from the device
    hardware: Hardware
    size_bytes: int
    sr_uuid: Optional[str]
    sr_name_label: Optional[str]  #: None, like `vdis`, where the SR is unreadable
    vdis: Optional[int]
    is_sm_at_work: bool
    pool: PoolAnswer

    def facts(self) -> Dict[str, Any]:
        """Return the value of `lun` for --json."""
        return {
            "kind": self.kind,
            "scsi_id": self.scsi_id,
            "vendor": self.hardware.vendor or None,
            "model": self.hardware.model or None,
            "serial": self.hardware.serial or None,
            "size_bytes": self.size_bytes,
            "sr": {"uuid": self.sr_uuid, "name_label": self.sr_name_label},
            "vdis": self.vdis,
            "storage_manager_at_work": self.is_sm_at_work,
            "pool": self.pool.facts(),
        }

    def lines(self) -> List[str]:
        """Return the facts as lines for people."""
        found = [self.device_line(), *([self._sr_line()] if self.sr_uuid else []), self.pool_line()]
        return [*found, *([f"  note     {_AT_WORK}"] if self.is_sm_at_work else [])]

    def device_line(self) -> str:
        """Return the line with the kind, the name and the size of the device."""
        size = human_size(self.size_bytes)
        if self.kind == IMAGE_FILE:
            return f"  device   image file, {size}"
        name = " ".join(filter(None, [self.hardware.vendor, self.hardware.model]))
        serial = f"serial {self.hardware.serial}" if self.hardware.serial else ""
        scsi_id = f"SCSIid {self.scsi_id}" if self.scsi_id else "no SCSIid"
        return printable("  device   " + ", ".join(filter(None, [scsi_id, name, serial, size])))

    def pool_line(self) -> str:
        """Return the line with the answer of the pool."""
        return printable(f"  pool     {self.pool.sentence}")

    def _sr_line(self) -> str:
        label = f' "{self.sr_name_label}"' if self.sr_name_label else ""
        count = {None: "", 1: ", 1 VDI"}.get(self.vdis, f", {self.vdis} VDIs")
        return printable(f"  SR       {self.sr_uuid}{label}{count}")


def identify(lun: OpenLun, pool: PoolAnswer, content: Optional[Lun], sr_uuid: Optional[str] = None) -> Identification:
    """Identify an open LUN. `content` is what it holds; `sr_uuid` is the SR where the content is unreadable."""
    return Identification(
        kind=lun.kind,
        scsi_id=lun.ids.own,
        hardware=lun.hardware,
        size_bytes=lun.device.size_bytes,
        sr_uuid=content.sr_uuid if content else sr_uuid,
        sr_name_label=(content.mgt.name_label if content.mgt else "") if content else None,
        vdis=len(content.disks()) if content else None,
        is_sm_at_work=any(volume.name.kind == naming.JOURNAL for volume in content.volumes) if content else False,
        pool=pool,
    )
