# SPDX-License-Identifier: LGPL-2.1-only
"""The LUN on this host for as long as it is needed, and the host as it was afterwards.

    lock      one call at a time for a LUN
    hide      udev, LVM and multipath handlers leave its disks alone, and all others that the target brings meanwhile
    log in    to the first portal that answers; to all of them where multipathing is on
    find      the disk or disks with the SCSIid, after a rescan of sessions that were there before
    path      the multipath map, or the only disk

Each step is undone in the reverse order whatever happens, exactly as far as it was done here. What cannot be undone is
logged, and does not hide why the call failed. Nothing is begun after the deadline of the call; undoing has some seconds
of its own.

A portal or path that is dead counts as if it were not there, as long as there is another one.
"""

import logging
import math
import os
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Callable, Iterator, List, NamedTuple, Optional, Sequence

from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.host.deadline import Deadline, in_time, waiting_in_time
from relvmoiscsi.host.disk import holders, multipath, udev
from relvmoiscsi.host.disk import scsi_id as scsi
from relvmoiscsi.host.iscsi.iscsiadm import Credentials
from relvmoiscsi.host.iscsi.login import Login, OpenIscsi
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.iscsi.reach import PORTAL_SECONDS, in_turn, reach
from relvmoiscsi.host.iscsi.sessions import Session, sessions, sessions_of
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.own_process import Begin, apart
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.sr_driver.config import Config
from relvmoiscsi.sr_driver.listing import luns_of

log = logging.getLogger(__name__)

LUN_SECONDS = 15.0  #: as SM has it
LOGOUT_LOCK_SECONDS = 5.0  #: even for a call that waits for no lock, lest its session stays until the next one


class Access(NamedTuple):
    """What is needed to reach the LUN, secrets resolved."""

    config: Config
    chap: Optional[Credentials]
    incoming_chap: Optional[Credentials]
    initiator: Optional[str]
    multipathing: bool
    sr_uuid: str  #: for SM's session reference file
    deadline: Deadline
    lock_seconds: float = math.inf  #: how long to wait for a lock that somebody has, as far as the deadline allows

    def open_iscsi(self, answer_seconds: float = math.inf) -> OpenIscsi:
        return OpenIscsi(lock_seconds=self.lock_seconds, deadline=self.deadline, answer_seconds=answer_seconds)


@contextmanager
def attached(access: Access, meanwhile: Callable[[], None] = lambda: None) -> Iterator[str]:
    """The device node of the LUN. Raises NotFound, Refused or CommandFailed, with everything as it was.

    `meanwhile` is called once while the kernel and udev are looking at the disk.
    """
    scsi_id, deadline = access.config.scsi_id, access.deadline
    with ExitStack() as stack:
        stack.enter_context(sm_locks.lun_lock(scsi_id, timeout=deadline.within(access.lock_seconds)))
        before = multipath.look(scsi_id)
        there = udev.disks_of(scsi_id)
        stack.enter_context(udev.hidden(scsi_id, multipath=access.multipathing))
        stack.enter_context(udev.hidden_target(access.config.target_iqn))
        since = time.monotonic()
        logins = _log_in(access, stack)
        meanwhile()
        disks = _disks(access, logins)
        udev.settle(disks, deadline.within(udev.SETTLE_SECONDS), since=since, known=there)
        _verify_live(scsi_id, [disk for disk in disks if disk in there], deadline)
        _warn_if_seen([disk for disk in disks if disk not in there])
        if access.multipathing:
            stack.callback(_quietly, "flushing the multipath map", lambda: _flush_map(before, deadline))
            yield multipath.ensure_map(before, disks, host=_multipath(deadline)).device
        else:
            _verify_unused([disk for disk in udev.disks_of(scsi_id) if disk not in disks])
            yield "/dev/" + multipath.single_path(scsi_id, disks)


def _multipath(deadline: Deadline) -> Host:
    """multipath-tools of this host, kept to the deadline."""
    return THIS_HOST._replace(
        runner=in_time(THIS_HOST.runner, deadline),
        wait_for=waiting_in_time(THIS_HOST.wait_for, deadline),
    )


def _flush_map(before: multipath.Before, deadline: Deadline) -> None:
    multipath.flush_map(before, host=_multipath(deadline.for_cleanup()))


def _verify_unused(dead: Sequence[str]) -> None:
    """Does nobody use the LUN through a path that is dead now? It may come back, and write. Raises Refused."""
    for disk in dead:
        try:
            users = holders.users_of_block(os.stat("/dev/" + disk))
        except FileNotFoundError:
            continue  # gone for good
        if users:
            problem = "The LUN is in use on this host, through the disk {} whose session has lost its target: {}."
            raise Refused(problem.format(disk, ", ".join(users))).in_state("Nothing was written.")


def _warn_if_seen(disks: Sequence[str]) -> None:
    seen = [disk for disk in disks if not udev.is_hidden(disk)]
    if seen:
        log.warning("%s not hidden from event handlers: are our udev rules installed?", ", ".join(seen))


def _verify_live(scsi_id: str, disks: Sequence[str], deadline: Deadline) -> None:
    """Are the disks that were there before still this LUN? Raises Refused."""
    for disk in disks:
        now = apart(partial(_live_scsi_id, "/dev/" + disk), deadline, disk + " answered")
        if now and now != scsi_id:
            raise Refused(
                f"The disk {disk} was the LUN {scsi_id} when this host found it, and is {now} now: the array has "
                "mapped another LUN "
                "in its place. Detach what uses that disk and log in anew.",
                "ISCSIDevice",
            ).in_state("Nothing was written.")


def _live_scsi_id(path: str, _begin: Begin) -> str:
    return scsi.live_scsi_id(path) or ""


def _quietly(what: str, action: Callable[[], object]) -> None:
    """Cleanup: goes on after a failure, and says so. Not even a bug in it makes a failure of what was written."""
    try:
        action()
    except (RelvmoiscsiError, OSError) as error:
        log.error("%s failed: %s", what, error)
    except Exception:
        log.exception("%s failed, by a bug", what)


def _log_in(access: Access, stack: ExitStack) -> List[Login]:
    """A session to the target at one portal, or at all that answer; raises the first failure if there is none."""
    logins: List[Login] = []
    failures: List[RelvmoiscsiError] = []
    for portal, seconds in in_turn(_portals(access), access.deadline):
        seconds = min(PORTAL_SECONDS, seconds) if logins else seconds  # noqa: PLW2901
        try:
            login = access.open_iscsi(seconds).login(
                reach(portal, deadline=access.deadline.part(seconds)),
                access.config.target_iqn,
                access.chap,
                access.incoming_chap,
                multipath=access.multipathing,
                initiator=access.initiator,
                user=access.sr_uuid or None,
            )
        except sm_locks.Busy:
            raise
        except RelvmoiscsiError as failure:
            log.warning("%s: %s", portal, failure)
            failures.append(failure)
            continue
        stack.callback(_quietly, "the logout", partial(log_out, access, login, access.config.scsi_id))
        how = "logged in to" if login.created else "using the session to"
        log.info("%s %s", how, login.session)
        logins.append(login)
        if not access.multipathing:
            break
    if not logins:
        raise failures[0]
    return logins


def log_out(access: Access, login: Login, done_with: Optional[str] = None) -> None:
    """Give up a session; `done_with` is the SCSIid of the LUN whose lock is still held."""
    lock_seconds = max(access.lock_seconds, LOGOUT_LOCK_SECONDS)  # within the deadline
    OpenIscsi(lock_seconds=lock_seconds, deadline=access.deadline.for_cleanup()).logout(login, done_with)


def _portals(access: Access) -> Sequence[Portal]:
    """Where to try, in order: first where this host has a session already, last where that has lost its target."""
    known = sessions_of(access.config.target_iqn)
    dead = [session for session in known if not session.is_logged_in]
    wanted = sorted(access.config.portals, key=lambda portal: any(session.is_at(portal) for session in dead))
    alive = [session.portal for session in known if session.is_logged_in]
    if alive and not access.multipathing:
        return list(dict.fromkeys([alive[0], *wanted]))
    return wanted


def _disks(access: Access, logins: Sequence[Login]) -> List[str]:
    """The disks of the LUN: at once, or after a rescan of the sessions that were there before."""
    scsi_id = access.config.scsi_id
    found = _rescanned(access, logins)
    seconds = access.deadline.within(LUN_SECONDS)
    disks: Optional[List[str]] = THIS_HOST.wait_for(lambda: _disks_of_all(scsi_id, len(found)), seconds)
    disks = disks or _live_disks(scsi_id)
    if not disks:
        access.deadline.check(f"the LUN {scsi_id} appeared")
        raise NotFound(_not_there(access, found), "ISCSIDevice")
    log.info("the LUN %s is %s", scsi_id, ", ".join(disks))
    return disks


def _rescanned(access: Access, logins: Sequence[Login]) -> List[Session]:
    """The sessions; those that were there have been scanned anew, and those of them that cannot be are left out."""
    found: List[Session] = []
    failures: List[RelvmoiscsiError] = []
    for login in logins:
        try:
            found.append(login.session if login.created else access.open_iscsi().rescan(login))
        except sm_locks.Busy:
            raise
        except RelvmoiscsiError as failure:
            log.warning("%s", failure)
            failures.append(failure)
    if not found:
        raise failures[0]
    return found


def _disks_of_all(scsi_id: str, paths: int) -> List[str]:
    disks = _live_disks(scsi_id)
    return disks if len(disks) >= paths else []


def _live_disks(scsi_id: str) -> List[str]:
    """The disks of the LUN but those of sessions that have lost their target: what is asked of them waits."""
    dead = {lun.disk for session in sessions() if not session.is_logged_in for lun in session.luns}
    return [disk for disk in udev.disks_of(scsi_id) if disk not in dead]


def _not_there(access: Access, sessions: Sequence[Session]) -> str:
    seen = [facts.scsi_id for facts in luns_of(sessions)]
    return "No LUN with the SCSIid {} appeared behind {} within {:g} seconds; there are {}.".format(
        access.config.scsi_id,
        access.config.target_iqn,
        LUN_SECONDS,
        ", ".join(sorted(set(filter(None, seen)))) or "none",
    )
