# SPDX-License-Identifier: LGPL-2.1-only
"""The other hosts of the pool: ask each host, through the host plugin, what it does with a LUN.

An array may map a LUN to several hosts. A host that takes a clone for its original activates volumes of the original's
SR on the clone's disk. A write to the clone would then destroy data of that host. xapi's records do not show this:
by the records, the host has the original attached.

A lock of a LUN is valid on one host. Two hosts could resignature the LUN at the same time, and overwrite each other's
work. So a host also answers whether a call of relvmoiscsi works on the LUN there:

    t0  host A locks the LUN on A              host B locks the LUN on B
    t1  host A asks B: a call works on it      host B asks A: a call works on it

Each host locks before it asks. So at least one of two hosts learns of the other host's call, and is refused.
"""

import logging
import re
from typing import Dict, List, NamedTuple, Sequence, Tuple, Union

from relvmoiscsi import untrusted
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, UsageError
from relvmoiscsi.host import terminated
from relvmoiscsi.host.disk import hiding, holders, udev
from relvmoiscsi.host.locks.lun_lock import is_lun_locked
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.json_answer import answer_text
from relvmoiscsi.scsi_id_text import is_scsi_id
from relvmoiscsi.threads import start_thread
from relvmoiscsi.wording import said

log = logging.getLogger(__name__)

PLUGIN, FUNCTION = "relvmoiscsi", "lun"
ANSWER_SECONDS = 10.0  #: for the answers of all hosts, which are asked at the same time
#: device-mapper's name of an SR's volume: VG_XenStorage-<UUID>-, with each dash of the volume group's name doubled
_OF_SR = re.compile(r"VG_XenStorage--([0-9a-f]{8}(?:--[0-9a-f]{4}){3}--[0-9a-f]{12})-")


class Use(NamedTuple):
    """The disks and device-mapper devices of a LUN on one host."""

    disks: Tuple[str, ...]  #: "sdb"
    stacked: Tuple[str, ...]  #: names of device-mapper devices on the disks, without the LUN's multipath map
    is_worked_on: bool = False  #: by a call or a command of relvmoiscsi


def srs_of(stacked: Sequence[str]) -> List[str]:
    """Return the UUIDs of the SRs whose volumes are among these device-mapper names."""
    found = [match.group(1).replace("--", "-") for match in map(_OF_SR.match, stacked) if match]
    return list(dict.fromkeys(found))


def use_of_lun(scsi_id: str, host: Host = THIS_HOST) -> Use:
    """Return this host's use of the LUN."""
    disks = udev.disks_of(scsi_id, host)
    found = dict.fromkeys(name for disk in disks for name in holders.stacked(disk, host))
    return Use(tuple(disks), tuple(found), is_lun_locked(scsi_id, host) or hiding.is_switch_on(scsi_id, host))


def use_of_argument(scsi_id: str) -> Use:
    """Return this host's use of the LUN that a caller of the plugin names. Raises UsageError."""
    if not is_scsi_id(scsi_id):
        raise UsageError("The argument scsi_id is no SCSIid.").advising("Give the SCSIid of a LUN.")
    return use_of_lun(scsi_id)


def to_json(use: Use) -> str:
    facts = {"disk_names": use.disks, "stacked": use.stacked, "is_worked_on": use.is_worked_on}
    return answer_text("plugin lun", facts)


def from_json(text: str) -> Use:
    """Return the use that the plugin's answer has. Raises ValueError for any other text."""
    found = untrusted.object_of(text)
    disks, stacked = (tuple(untrusted.texts_of(found.get(name))) for name in ("disk_names", "stacked"))
    is_worked_on = found.get("is_worked_on")
    if not isinstance(is_worked_on, bool):
        raise ValueError("is_worked_on is neither true nor false")
    return Use(disks, stacked, is_worked_on)


def verify_unused(xapi: Xapi, own_ref: str, scsi_id: str, deadline: Deadline) -> None:
    """Raise Refused if another host has volumes on the LUN, or runs a call of relvmoiscsi on the LUN.

    `own_ref` is xapi's reference of this host. Log a warning for each host that does not answer. The caller has
    locked the LUN on this host.
    """
    hosts = {ref: host for ref, host in xapi.records("host").items() if ref != own_ref}
    sentences, at_work = [], []
    for ref, answer in _answers(xapi, list(hosts), scsi_id, deadline).items():
        name = said(str(hosts[ref].get("name_label", "")) or ref)
        if not isinstance(answer, Use):
            log.warning("the host %s was not asked whether it has the LUN %s in use: %s", name, scsi_id, answer)
            continue
        at_work += [name] if answer.is_worked_on else []
        disks = ", ".join(answer.disks)
        if answer.stacked:
            what = " and ".join("the SR " + uuid for uuid in srs_of(answer.stacked)) or ", ".join(answer.stacked)
            sentences.append(f"The host {name} runs {what} on the clone's disk {disks}.")
        elif disks:
            advice = "map a clone to the pool's master alone until it has its identities"
            log.warning("the host %s sees the LUN as %s; %s", name, disks, advice)
    if sentences:
        told = " ".join(sentences)
        error = Refused(f"{told} That host uses the clone in the place of the original.").advising(
            "Detach the SR from that host, or move its VMs away and restart that host. Unmap the clone from that host, "
            "then try again."
        )
        raise error.in_state(NOTHING_WRITTEN)
    if at_work:
        busy = Refused(f"The host {at_work[0]} is at work on the LUN {scsi_id}.").advising(
            "Try again when that has ended."
        )
        raise busy.in_state(NOTHING_WRITTEN)


def _answers(xapi: Xapi, refs: List[str], scsi_id: str, deadline: Deadline) -> Dict[str, Union[Use, str]]:
    """Return each host's answer, or the reason why the host gave none."""
    seconds = deadline.within(ANSWER_SECONDS)
    asked = xapi.within(seconds)
    found: Dict[str, Union[Use, str]] = dict.fromkeys(refs, f"it did not answer within {seconds:g} seconds")

    def ask(ref: str) -> None:
        try:
            found[ref] = from_json(str(asked.call("host.call_plugin", ref, PLUGIN, FUNCTION, {"scsi_id": scsi_id})))
        except Exception as error:  # noqa: BLE001 - whatever a host answers, the caller gets a sentence
            found[ref] = str(error)

    threads = [start_thread(ask, ref) for ref in refs]
    with terminated.waiting():
        for thread in threads:
            thread.join(seconds)
    return dict(found)
