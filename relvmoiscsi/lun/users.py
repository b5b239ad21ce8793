# SPDX-License-Identifier: LGPL-2.1-only
"""Who uses this LUN? The one rule before a write to a LUN, for the command, the plugin and both SR drivers.

    by SCSIid       an SR or VDI of the pool has data on the LUN                           refused
    by SR           the pool has the SR that the run takes off the LUN, and known_sr.py
                    cannot tell that the LUN is a copy                                     refused
    finished run    the LUN says that it was resignatured, and the pool has its SR on
                    another LUN: nothing is written, and the caller hears of no success    refused
    nobody asked    no pool has answered: the caller must name the LUN                     refused without a name
    on this host    an exclusive open finds the users (host.disk); host.xapi.stale_volumes: what to do about volumes

The caller asks after the read of the LUN, because the LUN has the UUID of the SR, and under the locks. The override is
--not-in-use for the command. For a driver it is device-config:clone-of, with the UUID of the SR of the second line.
"""

import os
from functools import partial
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence

from relvmoiscsi import known_sr
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused
from relvmoiscsi.host.disk import paths, udev
from relvmoiscsi.host.disk.scsi_id import scsi_id_at
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.host.xapi.api import Xapi, XapiFailure, local_xapi
from relvmoiscsi.known_sr import KnownSr
from relvmoiscsi.lun.opened import PoolAnswer
from relvmoiscsi.lun.pool_records import (
    Look,
    PoolRecords,
    lun_of_path,
    name_of,
    names_in_pbd,
    read_pool,
    users_of,
)
from relvmoiscsi.wording import said, shell_command, some_of

XAPI_SECONDS = 10.0  #: the time limit of a command for one answer of xapi


class Hosts:
    """The hosts of the pool, for the PBDs of an SR."""

    def __init__(self, xapi: Xapi) -> None:
        """Raises XapiFailure."""
        metrics, hosts = xapi.records("host_metrics"), xapi.records("host")
        self._names = {ref: str(host.get("name_label", "")) for ref, host in hosts.items()}
        self.live = {ref for ref, host in hosts.items() if metrics.get(host.get("metrics", ""), {}).get("live", True)}

    def called(self, pbd: Mapping[str, Any]) -> str:
        """Return words for the host of a PBD."""
        ref = str(pbd.get("host", "unknown"))
        return f"the {'' if ref in self.live else 'dead '}host {said(self._names.get(ref) or ref)}"


# --- the rule


def answers_of_disks(scsi_id: str) -> List[str]:
    """Return the SCSIids that the disks of this host with this SCSIid answer now.

    The kernel keeps the SCSIid of the moment when it found a disk. A disk that does not answer is left out.
    """
    disks = udev.disks_of(scsi_id)
    faces = paths.look(disks, Deadline(paths.ANSWER_SECONDS)) if disks else {}
    return [face.scsi_id for face in faces.values()]


class Question(NamedTuple):
    """A LUN that a run will write to, or that holds a finished run, as the pool may know the LUN."""

    scsi_id: Optional[str]  #: None for a device without a SCSIid
    replaced: Sequence[str] = ()  #: UUIDs of the SRs that the LUN holds before the run, and not after it
    own_sr: str = ""  #: reference of the SR of this very call
    here: str = ""  #: reference of this host: any device path in the host's own PBDs is followed
    clone_of: str = ""  #: UUID of an SR; the caller has said that the LUN is a clone of this SR
    look: Look = scsi_id_at
    answers: Callable[[str], Sequence[str]] = answers_of_disks
    is_finished: bool = False  #: by its commit record, the LUN has new identities: `replaced` is the SR that it holds


class MayBeSr(Refused):
    """The LUN may be an SR of the pool, under a new SCSIid."""

    def __init__(self, message: str, sr_uuid: str) -> None:
        super().__init__(message)
        self.sr_uuid = sr_uuid


def verify_unused(lun: Question, xapi: Xapi) -> None:
    """Raise Refused if a call of an SR driver must not write to the LUN. Raises XapiFailure."""
    refusal = objection(lun, read_pool(xapi), partial(Hosts, xapi))
    if isinstance(refusal, MayBeSr):
        refusal.advising(
            f"If you know that this LUN is a clone, say device-config:clone-of={refusal.sr_uuid}, or --unplugged of "
            "`relvmoiscsi pool attach`."
        )
    if refusal is not None:
        raise refusal.in_state(NOTHING_WRITTEN)


def objection(lun: Question, pool: PoolRecords, hosts: Callable[[], Hosts]) -> Optional[Refused]:
    """Return why the pool forbids a write to the LUN, or contradicts its finished run; None where it does neither.

    `hosts` is called only where the pool has the SR of the LUN.
    """
    if lun.is_finished:
        return _contradiction(lun, pool, hosts)
    found = users_of(lun.scsi_id, pool, lun.look, lun.here) if lun.scsi_id is not None else []
    users = [user for user in found if not user.is_own and not (lun.own_sr and user.sr_ref == lun.own_sr)]
    if users:
        return Refused(
            "The LUN with the SCSIid {} is in use in this pool. {} A clone must have a SCSIid of its own; an SR or "
            "VDI whose LUN is to be written must be forgotten first.".format(
                lun.scsi_id, " ".join(user.sentence for user in users)
            )
        )
    for sr_uuid in lun.replaced:
        sr = known_sr.find_sr(sr_uuid, pool.srs, pool.pbds)
        if sr is None:
            continue
        # May the LUN be that of an attached PBD, under a new SCSIid? Only a host that has the LUN as a disk can tell.
        attached = [pbd for pbd in sr.pbds if pbd.get("currently_attached")]
        named = {scsi_id for pbd in attached for scsi_id in known_sr.luns_of_pbd(pbd)}
        if any(lun.scsi_id in lun.answers(scsi_id) for scsi_id in named):
            return Refused(
                f"The LUN with the SCSIid {lun.scsi_id} is the SR {name_of(sr.record)} of this pool: this host has the "
                "SR attached, and its disk answers with that SCSIid now."
            ).advising("Give the PBDs of the SR the new SCSIid, and plug them again.")
        if sr_uuid != lun.clone_of and not sr.is_new():
            refusal = _unless_attached_elsewhere(lun, sr, hosts())
            if refusal is not None:
                return refusal
    return None


def sr_elsewhere(lun: Question, pool: PoolRecords) -> Optional[KnownSr]:
    """Return the SR of a finished run that the pool has, and not on this LUN; None where the run is to be believed.

    The array can copy a resignatured LUN, and each writer of the copy can write its SCSIid into the commit record. So
    the record counts if the pool has no such SR, has just introduced the SR, or has the SR on this LUN. Then no PBD of
    the SR names another LUN alone.
    """
    for sr_uuid in lun.replaced if lun.scsi_id is not None else ():
        assert lun.scsi_id is not None
        sr = known_sr.find_sr(sr_uuid, pool.srs, pool.pbds)
        if sr is None or sr.is_new():
            continue
        others = [pbd for pbd in sr.pbds if not names_in_pbd(lun.scsi_id, pbd, lun.look, lun.here)]
        is_here = any(user.sr_ref == sr.ref for user in users_of(lun.scsi_id, pool, lun.look, lun.here))
        if not is_here or any(known_sr.luns_of_pbd(pbd, _follow(lun)) for pbd in others):
            return sr
    return None


def _contradiction(lun: Question, pool: PoolRecords, hosts: Callable[[], Hosts]) -> Optional[Refused]:
    """Return the refusal of a finished run whose SR the pool has, and not on this LUN."""
    sr = sr_elsewhere(lun, pool)
    if sr is None:
        return None
    return Refused(
        f"The label of the LUN with the SCSIid {lun.scsi_id} says that the LUN was resignatured. But the LUN holds the "
        f"SR {name_of(sr.record)} of this pool, which is not on this LUN. {_pbds_told(lun, sr, hosts())}"
    ).advising(
        "If this LUN is a clone, run `relvmoiscsi resignature --again` for the LUN on a host: the clone gets new "
        f"identities. If this LUN is the SR, give its PBDs the SCSIid {lun.scsi_id}, and plug them."
    )


def _follow(lun: Question) -> known_sr.Follow:
    """Return the function that follows those device paths of PBDs that this host can follow."""
    return partial(lun_of_path, lun.look, lun.here)


def _pbds_told(lun: Question, sr: KnownSr, hosts: Hosts) -> str:
    """Return a sentence on each PBD of the SR, with its host and its LUN."""
    told = []
    for pbd in sr.pbds:
        luns = known_sr.luns_of_pbd(pbd, _follow(lun))
        state = "attached" if pbd.get("currently_attached") else "detached"
        where = f"the SCSIid {some_of(luns)}" if luns else "no SCSIid"
        told.append(f"The PBD of {hosts.called(pbd)} is {state}, with {where}.")
    return " ".join(told) or "The SR has no PBD."


def _unless_attached_elsewhere(lun: Question, sr: KnownSr, hosts: Hosts) -> Optional[Refused]:
    """Return the refusal of a LUN that may be the SR itself; None where the LUN is a copy for certain."""
    if sr.is_attached_elsewhere(hosts.live, _follow(lun)):
        return None
    attached = [pbd for pbd in sr.pbds if pbd.get("currently_attached") and pbd.get("host") in hosts.live]
    uuid, scsi_id = sr.record.get("uuid"), lun.scsi_id
    names = ", ".join(hosts.called(pbd) for pbd in attached)
    why = f"The attached PBD of {names} names no SCSIid." if attached else "No live host has that SR attached."
    is_being_plugged = "plug" in sr.record.get("current_operations", {}).values()
    plugging = " A plug of the SR is under way." if is_being_plugged else ""
    wait = "Try again when the plug has ended. " if is_being_plugged else ""
    forget = f" If the SR is not needed, run `{shell_command('xe sr-forget', f'uuid={uuid}')}`." if not attached else ""
    return MayBeSr(
        f"The LUN with the SCSIid {scsi_id} holds the SR {name_of(sr.record)} of this pool. {why} This LUN may be that "
        f"SR under a new SCSIid. {_pbds_told(lun, sr, hosts)}{plugging}",
        str(uuid),
    ).advising(
        f"{wait}If this LUN is the SR, give its PBDs the SCSIid {scsi_id}, and plug them. If this LUN is a clone, plug "
        f"the SR on its own LUN first.{forget}"
    )


def known_label(sr_uuid: str, xapi: Xapi) -> Optional[str]:
    """Return the name of the pool's SR with this UUID; None where the pool has no such SR. Raises XapiFailure."""
    sr = known_sr.find_sr(sr_uuid, read_pool(xapi).srs, {})
    return None if sr is None else str(sr.record.get("name_label", ""))


# --- the answer for a person


ASKED_BEFORE = PoolAnswer("The pool was asked before the LUN was opened, and is asked again under the locks.", "")


def ask_pool(lun: Question, new_sr: str, host: Host) -> PoolAnswer:
    """Ask the pool of this host about a LUN, and about the UUID that the new SR will have; "" for no new SR."""
    if not os.path.exists(host.xapi_socket):
        return PoolAnswer("No xapi on this machine: no pool was asked whether this LUN is in use.")
    if lun.scsi_id is None:
        return PoolAnswer("The LUN has no SCSIid: no pool was asked whether this LUN is in use.")
    try:
        with local_xapi(host.xapi_socket, XAPI_SECONDS) as xapi:
            pools = list(xapi.records("pool").values())
            pool: Mapping[str, Any] = pools[0] if pools else {}
            records = read_pool(xapi)
            refusal = objection(lun, records, partial(Hosts, xapi))
    except XapiFailure as failure:
        problem = Refused(f"xapi cannot say whether this pool uses the LUN {lun.scsi_id}: {failure.message}").advising(
            "Make xapi answer (`xe-toolstack-restart` restarts xapi), then repeat the command."
        )
        return PoolAnswer("xapi does not answer: this LUN may be in use.", objection=problem)
    uuid, label = str(pool.get("uuid", "unknown")), str(pool.get("name_label", ""))
    called = f"{uuid} ({label!r})" if label else uuid
    what = "it does not use this LUN"
    if refusal is not None:
        what = "this LUN may be an SR of the pool" if isinstance(refusal, MayBeSr) else "this LUN is in use"
    elif any(sr.get("uuid") == new_sr for sr in records.srs.values()):
        refusal = Refused(f"This pool has an SR {new_sr} already.").advising(
            "Give another --sr-uuid, or two LUNs share every identity."
        )
    return PoolAnswer(f"The pool {called} was asked: {what}.", uuid, label, refusal)
