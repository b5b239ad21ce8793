# SPDX-License-Identifier: LGPL-2.1-only
"""sr_probe: the state of the LUN, as XML in the form of lvmoiscsi's answer.

On a host, xapi runs one sr_attach, sr_detach or sr_probe at a time. While a probe waits, xapi plugs and unplugs no PBD
there; disks of VMs are still attached. So a probe waits for no lock, and over iSCSI a probe has a short time limit.
Source: xen-api ocaml/xapi/sm.ml, serialize_attach_detach.
"""

from typing import List, Sequence, Tuple

from relvmoiscsi import engine
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.device import Device
from relvmoiscsi.engine import database_pools, is_of_another_lun, saved
from relvmoiscsi.errors import NOTHING_WRITTEN, Busy, DeviceError, in_state
from relvmoiscsi.host.sm_log import SmLogHandler
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.sr_driver.protocol import Call, escaped
from relvmoiscsi.sr_driver.transport import CallRequest, Transport
from relvmoiscsi.wording import utc_time

MOST_BYTES = 60000  #: of an answer: xapi stores it in its database, with a limit of 64 KiB
_MOST_PROBLEM, _MOST_HOST = 2000, 255  #: characters
BUSY = "busy"  #: the state if another call works on the LUN: this probe has not read the LUN


def sr_probe(
    call: Call, config: CallRequest, xapi: Xapi, smlog: SmLogHandler, deadline: Deadline, transport: Transport
) -> str:
    """Return the content of the LUN. Write nothing. Raises RelvmoiscsiError."""
    deadline = deadline.part(transport.probe_seconds)
    with in_state(lambda: NOTHING_WRITTEN if deadline.has_passed else ""):
        lun = transport.open_lun(call, config, xapi, smlog, deadline, 0.0)
        try:
            return lun.read(lambda opened: document(opened.device, lun.scsi_id))
        except Busy as problem:
            return _document([("Devlist", lun.scsi_id), ("state", BUSY), ("problem", str(problem))])


def document(device: Device, scsi_id: str) -> str:
    """Return the content of a LUN as XML. Write nothing.

    - UUID: the SR on the LUN now. old_uuid and new_uuid: the SR before and after a resignature.
    - copied: true if the new identities belong to another LUN, and the array has copied that LUN to this one.
    - old_vdis: the VDIs before the resignature, while the journal exists. LVM may overwrite the journal after a plug.
    - one_vdi: whether the LUN has one VDI, or can be made an SR with one VDI.
    - metadata_of: the pools whose databases VDIs hold, if any.
    - changed and changed_on: when and on which host LVM last changed the SR, where LVM has written the time.
    - vms: the names of VMs whose records are on the LUN, as JSON. vms_saved: the time of these records.

    A row that would make the answer longer than MOST_BYTES is left out. Raises FormatError for the databases of more
    pools than fit.
    """
    found = engine.inspect(device)
    rows: List[Tuple[str, str]] = []
    old_vdis: List[str] = []
    if found.lun is not None:
        label = found.lun.mgt.name_label if found.lun.mgt else ""
        rows += [("UUID", found.lun.sr_uuid), ("size", str(found.lun.size_bytes)), ("name_label", label)]
        changed = utc_time(found.lun.vg.changed)
        rows += (
            [("changed", changed), ("changed_on", found.lun.vg.changed_on[:_MOST_HOST])] if changed is not None else []
        )
    rows += [("Devlist", scsi_id), ("state", found.state)]
    if is_of_another_lun(found.commit_record, scsi_id):
        rows.append(("copied", "true"))
    if found.run is not None:
        rows += [("old_uuid", found.run.ids.sr), ("new_uuid", found.run.ids.new_sr)]
        if found.lun is not None and found.lun.sr_uuid == found.run.ids.new_sr:
            old = found.run.ids.reversed().uuids
            old_vdis = sorted(old[uuid] for uuid in found.lun.disks() if uuid in old)
    if found.problem is not None:
        rows.append(("problem", str(found.problem)[:_MOST_PROBLEM]))
    if found.lun is not None:
        rows.append(("one_vdi", engine.one_vdi(device, found.lun).state))
        pools = database_pools(device.name, found.lun)
        rows += [("metadata_of", " ".join(pools))] if pools else []
        rows += [("old_vdis", " ".join(old_vdis))] if old_vdis else []
        try:
            vms = saved(device, found.lun)
        except DeviceError:  # a disk of a guest may have the name of a save: its bad sector hides no LUN
            vms = None
        rows += [("vms_saved", vms.when), ("vms", vms.names_json())] if vms else []
    return _document(rows)


def _document(rows: Sequence[Tuple[str, str]]) -> str:
    """Return the rows that fit, the first ones first."""
    lines, size = [], 0
    for name, text in rows:
        line = f"\t\t<{name}>{escaped(text)}</{name}>"
        if size + len(line.encode("utf-8", "replace")) < MOST_BYTES:
            lines.append(line)
            size += len(line.encode("utf-8", "replace")) + 1
    return "\n".join(['<?xml version="1.0" ?>', "<SRlist>", "\t<SR>", *lines, "\t</SR>", "</SRlist>"]) + "\n"
