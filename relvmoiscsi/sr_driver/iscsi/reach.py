# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN behind an iSCSI target.

    log in    to the first portal that answers; to all of them where multipathing is on
    find      the disk or disks with the SCSIid, after a rescan of sessions that were there before, whoever made them

A portal or path that is dead counts as if it were not there, as long as there is another one.

SM logs in unless it finds a session to the target, to every portal where multipathing is on. One of ours that it has
found so is its own by the end, and those that it would have made are made for it.

SM reads who uses a session, and then waits for iscsiadm: one that is found there may end a moment later, under a line
that SM has not read. Then the LUN has been `taken away`, and a session of our own is made.
"""

import logging
from contextlib import ExitStack
from functools import partial
from typing import Callable, List, Optional, Sequence, Set

from relvmoiscsi.errors import DeviceError, NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.host.deadline import Deadline
from relvmoiscsi.host.disk import paths, udev
from relvmoiscsi.host.disk import scsi_id as scsi
from relvmoiscsi.host.iscsi.login import Login, has_ended, verify_any_alive
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.iscsi.reach import PORTAL_SECONDS, in_turn
from relvmoiscsi.host.iscsi.sessions import Session, facts_of, session_by_id, sessions, sessions_of
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.own_process import Begin, apart
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.sr_driver.held import LUN_SECONDS, quietly
from relvmoiscsi.sr_driver.iscsi import listing
from relvmoiscsi.sr_driver.iscsi.access import LOGOUT_LOCK_SECONDS, Access, end_what_waits, log_in, log_out
from relvmoiscsi.sr_driver.transport import Lun

log = logging.getLogger(__name__)

_ENDING_SECONDS = 1.0  # for a session that ends under a call
_OF_A_LOST_LUN = (DeviceError.sm_key, NotFound.sm_key, "ISCSIDevice")
PATHS_SECONDS = 15.0  #: for logins that the caller has not asked for, at the end of a call


class IscsiLun(Lun):
    """It comes with a session, and goes with it; sessions of others stay."""

    def __init__(self, access: Access, read_ids: Callable[[], Sequence[str]]) -> None:
        """`read_ids`: the SCSIids that the pool names, where nobody has asked it so far."""
        where = "behind " + access.config.target_iqn
        super().__init__(access.config.scsi_id, access.multipathing, access.deadline, access.lock_seconds, where)
        self._access = access
        self._logins: List[Login] = []
        self._read_ids = read_ids

    def before(self, stack: ExitStack) -> None:
        users = self._access.open_iscsi().other_users(self._access.config.target_iqn)
        complete = partial(_complete_paths, self._access, self._logins, users)
        stack.callback(quietly, "logging in for an SR that was attached meanwhile", complete)

    def hide_others(self, stack: ExitStack) -> None:
        known = self._read_ids() if self.ids_of_pool is None else self.ids_of_pool
        iqn, known_now = self._access.config.target_iqn, self._access.ids_in_the_end
        stack.enter_context(udev.hidden_target(iqn, known, known_now=known_now))

    def reach(self, stack: ExitStack) -> None:
        self._logins += _log_in(self._access, stack)
        stack.push(self._look_at_sessions)  # before any of them is ended here

    def _look_at_sessions(self, _kind: object, error: Optional[BaseException], _trace: object) -> None:
        """I/O fails a moment before its session has ended; the process that does it has told the key alone."""
        seconds = _ENDING_SECONDS if getattr(error, "sm_key", "") in _OF_A_LOST_LUN else 0.0
        if error is not None and not any(login.is_new for login in self._logins):
            self.was_taken_away = THIS_HOST.wait_for(self._have_sessions_ended, self.deadline.within(seconds))

    def _have_sessions_ended(self) -> bool:
        return all(has_ended(login.session) for login in self._logins)

    def disks(self) -> List[str]:
        return _disks(self._access, self._logins)

    def verify(self, disks: Sequence[str], there: Sequence[str]) -> None:
        _verify_live(self.scsi_id, [disk for disk in disks if disk in there], self.deadline)
        if len(disks) > 1:
            paths.verify_same(self.scsi_id, paths.look(disks, self.deadline.part(paths.ANSWER_SECONDS)))

    def stays(self) -> None:
        """Other calls may be at work on the target for longer than SM waits for the LUN."""
        self.is_done = True
        show = partial(udev.show_behind_target, self.scsi_id, self._access.config.target_iqn)
        quietly("showing the LUN while others hide its target", show)

    def afterwards(self) -> None:
        end_what_waits(self._access)
        udev.show_released()


def _verify_live(scsi_id: str, disks: Sequence[str], deadline: Deadline) -> None:
    """Are the disks that were there before still this LUN? Raises Refused."""
    for disk in disks:
        now = apart(partial(_live_scsi_id, "/dev/" + disk), deadline, disk + " answered", only_reads=True)
        if now and now != scsi_id:
            raise Refused(
                f"The disk {disk} was the LUN {scsi_id} when this host found it, and is {now} now: the array has "
                "mapped another LUN "
                "in its place. Detach what uses that disk and log in anew.",
                "ISCSIDevice",
            ).in_state("Nothing was written.")


def _live_scsi_id(path: str, _begin: Begin) -> str:
    return scsi.live_scsi_id(path) or ""


def _log_in(access: Access, stack: ExitStack) -> List[Login]:
    """A session to the target at one portal, or at all that answer; raises the first failure if there is none."""
    logins: List[Login] = []
    failures: List[RelvmoiscsiError] = []
    for portal, seconds in in_turn(_portals(access), access.deadline):
        seconds = min(PORTAL_SECONDS, seconds) if logins else seconds  # noqa: PLW2901
        try:
            login = log_in(access, portal, seconds, access.multipathing)
        except sm_locks.Busy:
            raise
        except RelvmoiscsiError as failure:
            log.warning("%s: %s", portal, failure)
            failures.append(failure)
            continue
        stack.callback(quietly, "the logout", partial(log_out, access, login, access.config.scsi_id))
        how = "logged in to" if login.is_new else "using the session to"
        log.info("%s %s", how, login.session)
        logins.append(login)
        if not access.multipathing:
            break
    if not logins:
        raise failures[0]
    return logins


def _portals(access: Access) -> Sequence[Portal]:
    """Where to try, in order: first where this host has a session already, last where that has lost its target."""
    known = sessions_of(access.config.target_iqn)
    dead = [session for session in known if not session.is_logged_in]
    wanted = sorted(access.config.portals, key=lambda portal: any(session.is_at(portal) for session in dead))
    alive = [session.portal for session in known if session.is_logged_in]
    if alive and not access.multipathing:
        return list(dict.fromkeys([alive[0], *wanted]))
    return wanted


def _complete_paths(access: Access, logins: Sequence[Login], users: Set[str]) -> None:
    """Log in where SM would have, for an SR that was attached meanwhile and for which SM has found a session of ours.

    `users` had lines in SM's file before this call logged in: what they have, they have by themselves.

    With multipathing to all portals that the target offers, as many as there is time for. Else only if that session
    has ended: SM looks first and takes its line then. The sessions are that SR's, which ends them like those of SM.
    """
    iqn, ours = access.config.target_iqn, [login.session.persistent_portal for login in logins if login.created]
    deadline, lock_seconds = access.deadline.for_cleanup().part(PATHS_SECONDS), LOGOUT_LOCK_SECONDS
    in_time = access._replace(
        deadline=deadline,
        lock_seconds=max(access.lock_seconds, lock_seconds),
        ids_of_pool=access.ids_in_the_end,
    )
    open_iscsi = in_time.open_iscsi(PORTAL_SECONDS)
    if not ours or not open_iscsi.other_users(iqn) - users or sessions_of(iqn) and not access.multipathing:
        return
    offered = open_iscsi.discover(ours[0], access.chap) if access.multipathing else []
    for portal in dict.fromkeys([*ours, *(target.portal for target in offered if target.iqn == iqn)]):
        if not sessions_of(iqn, portal):
            log.info("logging in to %s at %s, for the SR that has been attached meanwhile", iqn, portal)
            quietly(f"the login at {portal}", partial(_log_in_for_others, in_time, portal))


def _log_in_for_others(access: Access, portal: Portal) -> None:
    log_out(access, log_in(access, portal, PORTAL_SECONDS, access.multipathing))  # which ends it if they have gone


def _disks(access: Access, logins: Sequence[Login]) -> List[str]:
    """The disks of the LUN: at once, or after a rescan of the sessions that were there before."""
    scsi_id = access.config.scsi_id
    found = _rescanned(access, logins)
    seconds = access.deadline.within(LUN_SECONDS)
    disks: Optional[List[str]] = THIS_HOST.wait_for(lambda: _disks_of_all(scsi_id, len(found)), seconds)
    disks = disks or _live_disks(scsi_id)
    if not disks:
        access.deadline.check(f"the LUN {scsi_id} appeared")
        verify_any_alive(found)
        raise NotFound(_not_there(access, found), "ISCSIDevice")
    log.info("the LUN %s is %s", scsi_id, ", ".join(disks))
    return disks


def _rescanned(access: Access, logins: Sequence[Login]) -> List[Session]:
    """The sessions; those that were there have been scanned anew, and those of them that cannot be are left out."""
    found: List[Session] = []
    failures: List[RelvmoiscsiError] = []
    for login in logins:
        try:
            found.append(login.session if login.is_new else access.open_iscsi().rescan(login, access.config.scsi_id))
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
    """What the sessions have now: at the login, the kernel had not found a LUN yet."""
    luns = [lun for session in sessions for lun in (session_by_id(session.sid) or session).luns]
    facts = {lun: facts_of(lun) for lun in luns}
    shown = [(lun.number, found.scsi_id if found is not None else "") for lun, found in facts.items()]
    return listing.not_there(access.config.scsi_id, access.config.target_iqn, LUN_SECONDS, shown)
