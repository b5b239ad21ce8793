# SPDX-License-Identifier: LGPL-2.1-only
"""sr_probe: the state of the LUN, as XML in the form of lvmoiscsi's answer.

xapi does one sr_attach, sr_detach or sr_probe at a time on a host: while a probe waits, no PBD is plugged or unplugged
there. Disks of VMs are attached all the same. So a probe waits for no lock, and over iSCSI it has a short time for the
rest. Source: xen-api ocaml/xapi/sm.ml, serialize_attach_detach.
"""

import json
from functools import partial
from typing import List, Sequence, Tuple

from relvmoiscsi import engine
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.device import Device
from relvmoiscsi.engine import Lun, databases, is_of_another_lun, saved
from relvmoiscsi.errors import NOTHING_WRITTEN, in_state
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.host.locks.sm_locks import Busy
from relvmoiscsi.host.sm_log import SmLogHandler
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.sr_driver.protocol import Call, escaped
from relvmoiscsi.sr_driver.transport import Transport, Wanted

MOST_VDIS = 1500  #: xapi keeps an answer in its database: 64 KiB
BUSY = "busy"  #: a state: somebody else is at work, and the LUN was not looked at


def sr_probe(
    call: Call, config: Wanted, xapi: Xapi, smlog: SmLogHandler, deadline: Deadline, transport: Transport
) -> str:
    """What is on the LUN. Nothing is written. Raises RelvmoiscsiError."""
    deadline = deadline.part(transport.probe_seconds)
    with in_state(lambda: NOTHING_WRITTEN if deadline.has_passed else ""):
        lun = transport.open_lun(call, config, xapi, smlog, deadline, 0.0)
        try:
            return lun.with_device(partial(document, scsi_id=lun.scsi_id), writable=False)
        except Busy as problem:
            return _document([("Devlist", lun.scsi_id), ("state", BUSY), ("problem", str(problem))])


def document(device: Device, scsi_id: str) -> str:
    """What is on a LUN, as XML. Nothing is written.

    `UUID` is the SR that it holds now; an SR that it was made of, or is to become, has a name of its own. `one_vdi` is
    whether it has one VDI, or can be made a LUN with one; `metadata_of` the pools whose databases VDIs are to hold, if
    any do; `old_vdis` what the VDIs of a LUN with new identities were, as long as its journal is there: once it is
    plugged, LVM may take that place; `copied` is true where the new identities are those of another LUN, of which the
    array has made this one; `vms` the names of VMs whose records are on it, as JSON, and `vms_saved` of when these are.
    """
    found = engine.inspect(device)
    rows = []
    if found.lun is not None:
        label = found.lun.mgt.name_label if found.lun.mgt else ""
        rows += [("UUID", found.lun.sr_uuid), ("size", str(found.lun.size_bytes)), ("name_label", label)]
    rows += [("Devlist", scsi_id), ("state", found.state)]
    if is_of_another_lun(found.commit_record, scsi_id):
        rows.append(("copied", "true"))
    if found.run is not None:
        rows += [("old_uuid", found.run.ids.sr), ("new_uuid", found.run.ids.new_sr)]
        old_vdis = _old_vdis(found.lun, found.run.ids) if found.lun is not None else []
        rows += [("old_vdis", " ".join(old_vdis))] if old_vdis else []
    if found.problem is not None:
        rows.append(("problem", str(found.problem)))
    if found.lun is not None:
        rows.append(("one_vdi", engine.one_vdi(device, found.lun).state))
        pools = sorted(set(databases(found.lun).values()))
        rows += [("metadata_of", " ".join(pools))] if pools else []
        vms = saved(device, found.lun)
        rows += [("vms", json.dumps([vm.name_label for vm in vms.vms])), ("vms_saved", vms.when)] if vms else []
    return _document(rows)


def _old_vdis(lun: Lun, ids: IdMap) -> List[str]:
    """What the VDIs of a resignatured LUN were; none if it is another LUN, or they are too many for an answer."""
    if lun.sr_uuid != ids.new_sr:
        return []
    old = ids.reversed().uuids
    found = sorted(old[uuid] for uuid in lun.disks() if uuid in old)
    return found if len(found) <= MOST_VDIS else []


def _document(rows: Sequence[Tuple[str, str]]) -> str:
    lines = [f"\t\t<{name}>{escaped(text)}</{name}>" for name, text in rows]
    return "\n".join(['<?xml version="1.0" ?>', "<SRlist>", "\t<SR>", *lines, "\t</SR>", "</SRlist>"]) + "\n"
