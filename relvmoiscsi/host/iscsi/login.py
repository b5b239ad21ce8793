# SPDX-License-Identifier: LGPL-2.1-only
"""open-iscsi: discovery, login, rescan and logout, with everything afterwards as it was before.

A login, step by step. All of it happens under SM's iscsiadm lock, so SM never sees a state in between. The discovery
before it, which tells whether the portal answers and offers the target, has the lock for itself: SM waits for neither
longer than for a call of its own.

    1. a note of what is there now, and of what will be made            (`host.iscsi.notes`)
    2. a node record, unless there is one: iscsiadm -m node -o new
    3. credentials and time-outs into the record's file                 (`host.iscsi.records`)
    4. iscsiadm -m node -l; iscsid gets the record's content and needs the file no more
    5. a record that was there before is put back at once; one that we made goes with the logout, as an iscsid that is
       started anew takes over only sessions that have a record

After a kill at any point the next run on this host finds the note: it puts the record back and takes the session over,
or logs it out. SM's session reference file gets a line for as long as a session is used, so that SM does not end it.

The end of a use, and who ends what:

    - A session is ended by whoever takes the last line out of SM's file, if it was logged in here, or if SM had lines
      when we came: SM leaves its sessions to us when it detaches while we have a line.
    - Before that all its disks are checked for users. A session in use is handed over: it stays, with SM's time-outs
      and the record, and no note speaks of it any more.
    - While the number of a session is not known (killed between note and login), it is ours only if it was not there
      before and has the time-outs that this login alone was given. Else it is somebody else's, and stays.
    - A login that iscsid has not answered may become a session later. Its note stays for an hour, so that a later run
      ends that session, or takes it over.
    - LUNs that our scan of a session has brought go again, unless they are in use, another call of ours works on them,
      the pool has something on them, or an SR has been attached to the IQN since: on most hosts of a pool an attached
      SR has nothing open.

Secrets are never in an argv: iscsiadm -v would show them to every user of the host.
"""

import logging
import math
import time
from functools import partial
from typing import Any, Callable, ContextManager, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Union

from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.host import terminated
from relvmoiscsi.host.command import TIMED_OUT, Completed
from relvmoiscsi.host.deadline import NO_DEADLINE, Deadline, OutOfTime, in_time, waiting_in_time
from relvmoiscsi.host.disk import own_maps
from relvmoiscsi.host.iscsi import status as iscsi_status
from relvmoiscsi.host.iscsi.changes import (
    DISCOVERY_CHAP,
    LOGIN_SECONDS,
    LOGIN_TIMEOUT,
    REPLACEMENT_SECONDS,
    RecordChanges,
    chap_settings,
    marker_settings,
    new_marker,
    node_settings,
)
from relvmoiscsi.host.iscsi.iscsiadm import (
    Credentials,
    Iscsiadm,
    Target,
    targets_in,
    wait_for,
)
from relvmoiscsi.host.iscsi.kept import other_users
from relvmoiscsi.host.iscsi.luns import IdsOfPool, Luns, WorkedOn, no_pool
from relvmoiscsi.host.iscsi.notes import (
    Note,
    any_brought,
    any_waits,
    dead_notes_in_turn,
    new_note,
    noted_users,
)
from relvmoiscsi.host.iscsi.portals import Portal, same_portal
from relvmoiscsi.host.iscsi.reach import PORTAL_SECONDS
from relvmoiscsi.host.iscsi.records import break_stale_lock
from relvmoiscsi.host.iscsi.sessions import (
    ENDED,
    FAILED,
    FREE,
    Session,
    error_timeouts,
    patience_of,
    session_by_id,
    sessions_of,
    set_patience,
)
from relvmoiscsi.host.iscsi.status import IscsiFailed
from relvmoiscsi.host.locks.sm_locks import WAIT_SECONDS, SessionReferences, is_lun_locked, iscsiadm_lock
from relvmoiscsi.host.own_process import apart, still_there
from relvmoiscsi.host.this_host import THIS_HOST, Host

log = logging.getLogger(__name__)

END_SECONDS = 5.0  #: after the deadline, for the end of a use: of the eight, udev needs some for the disks that stay

_LOGIN_SPARE = 15.0  # that iscsiadm gets beyond the time after which iscsid gives up
_LOGOUT_TIMEOUT = 30.0
_SCAN_SECONDS = 10.0  # of which SM's lock is held; a target of thousands of LUNs takes a few
_LISTED = 5  # targets in a message
_WANTS_CHAP = (iscsi_status.AUTHENTICATION_FAILED, iscsi_status.FATAL_LOGIN)
_SILENCE = (TIMED_OUT, iscsi_status.TRANSPORT_TIMEOUT, iscsi_status.PDU_TIMEOUT)
_SHORTEST_LOGIN = 5  # whoever has the session from us has this at each return of its target: no less than a slow array
_LOGIN_MARGIN = 2  # that iscsid gives up before the deadline
_RETURN_SECONDS = 5.0  # for a session that has just lost its target; open-iscsi tries every second or two
_GOING_SECONDS = 2.0  # for a session that is being ended, or has been lost for longer than it is waited for
_COMING_SECONDS = 3.0  # for a session that iscsid was asked for, and nobody has heard of since
_LATEST_SECONDS = 3600.0  # of an iscsid that is busy, hangs or is stopped; until then the note costs a look at sysfs
_PATIENCE_SECONDS = 20  # for I/O of ours without a connection: the caller waits 60 in all, and SM's 144 are past that
_RECOVERY_SECONDS = 5.0  # for all that killed runs have left; more than who only looks at a disk gets
_ROUNDS = 3  # for what another run was in the way of, which has ended since
_DAEMON_PAUSE = 0.3  # between questions to an iscsid that is not ready, which cannot tell when it is


class Login(NamedTuple):
    """A session in use. Give it to `logout` in the end, whoever has made it."""

    session: Session
    created: bool  #: logged in here, so `logout` ends it
    note: Note
    is_new: bool = False  #: logged in by this very call: every LUN of the target has come with it, or is to come yet


class OpenIscsi:
    """open-iscsi on a host, whose runner starts programs.

    Portals are numeric ones, from `host.iscsi.reach`. `lock_seconds` is how long to wait for SM,
    `answer_seconds` how long for a portal, each time. Nothing is begun after `deadline`; what a failure leaves is
    cleaned up shortly after it. `ids_of_pool` is asked before LUNs that a scan has brought go, where it can be while SM
    is not held up; it should remember what it gave a moment ago. `left` has the paths of the notes that the same call
    has left to others: it does not take them up again to clean up.
    """

    def __init__(
        self,
        host: Host = THIS_HOST,
        lock_seconds: float = WAIT_SECONDS,
        deadline: Deadline = NO_DEADLINE,
        answer_seconds: float = math.inf,
        ids_of_pool: IdsOfPool = no_pool,
        left: Optional[Set[str]] = None,
    ) -> None:
        self._host = host
        self._deadline = deadline
        self._answer_seconds = answer_seconds
        self.iscsiadm = Iscsiadm(host._replace(runner=self._run_in_time), deadline)
        self._changes = RecordChanges(host, self.iscsiadm, deadline)
        self._references = SessionReferences(host)
        self._ids_of_pool = ids_of_pool
        self._left = left
        waiter = waiting_in_time(host.wait_for, deadline)
        self._luns = Luns(host._replace(runner=self._run_in_time, wait_for=waiter), self._in_time, ids_of_pool)
        self._lock_seconds = lock_seconds
        self._recovery_seconds = _RECOVERY_SECONDS  # that are left for what is not this call's own

    def discover(self, portal: Portal, chap: Optional[Credentials] = None) -> List[Target]:
        """What the portal offers this host, by SendTargets; no record is left that was not there before.

        `chap` is for a portal that does not answer without. Raises IscsiFailed: ISCSILogin for refused credentials,
        ISCSIDiscovery, ISCSITarget and others.
        """
        arguments = ["-m", "discovery", "-t", "st", "-p", str(portal), "-I", "default", "-o", "nonpersistent"]
        task = f"The discovery at {portal} failed"
        try:
            # Without CHAP first: most targets demand it of logins only, and LIO refuses a discovery with CHAP then.
            with self._locked():
                completed = self.iscsiadm(arguments, task, "ISCSIDiscovery", self._for_answer(PORTAL_SECONDS))
        except IscsiFailed as error:
            if chap is None or error.status not in _WANTS_CHAP or _is_silence(error):
                raise
            log.info("%s wants CHAP for the discovery", portal)
            with self._locked():
                return self._discover_with_chap(portal, chap)
        return targets_in(completed.stdout)

    def _discover_with_chap(self, portal: Portal, chap: Credentials) -> List[Target]:
        note = new_note(self._host, iqn="", portal=list(portal), discovery=True)
        try:
            arguments = self._changes.for_discovery(note, portal, chap_settings(DISCOVERY_CHAP, chap, None))
            completed = self.iscsiadm(
                [*arguments, "-I", "default", "-D", "-o", "nonpersistent"],
                f"The discovery at {portal} as CHAP user {chap.user!r} failed",
                "ISCSIDiscovery",
                self._for_answer(PORTAL_SECONDS),
                secrets=[chap.password],
            )
        except BaseException:
            self._give_up(note)
            raise
        self._finish(note)
        return targets_in(completed.stdout)

    def login(
        self,
        portal: Portal,
        iqn: str,
        chap: Optional[Credentials] = None,
        incoming_chap: Optional[Credentials] = None,
        multipath: bool = False,
        initiator: Optional[str] = None,
        user: Optional[str] = None,
    ) -> Login:
        """A session to the target at this portal: the one that is there, or a new one.

        `user` is the SR UUID for SM's session reference file. `initiator` is what `check_initiator` gives. A session
        that was there keeps its credentials.

        Raises IscsiFailed when the login fails; NotFound when the portal does not offer the target (ISCSIDiscovery) or
        the session that is there has lost it (ISCSIDevice): then another portal may do; OutOfTime at the deadline;
        UsageError when a value is none that open-iscsi takes; Refused when a lock stays taken. The records are as they
        were then, and no session of ours is left.
        """
        if "/" in iqn or not iqn:
            raise UsageError(f"{iqn!r} is no IQN.", "ConfigTargetIQNMissing")
        self._wait_while(lambda session: session.is_coming, iqn, portal, self._for_answer(LOGIN_SECONDS) + 5.0)
        self._wait_while(lambda session: session.state == FAILED, iqn, portal, _RETURN_SECONDS)
        self._wait_while(lambda session: session.state == FREE, iqn, portal, _GOING_SECONDS)
        self._know_pool()
        with self._locked():
            login = self._present(iqn, portal, user)
        if login is not None:
            return login
        self.iscsiadm.ensure_daemon()
        self._check_offer(portal, iqn, chap, initiator)
        with self._locked():
            login = self._present(iqn, portal, user)  # by another call, since
            return login or self._login(portal, iqn, node_settings(chap, incoming_chap, multipath, initiator), user)

    def logout(self, login: Login, done_with: Optional[str] = None) -> bool:
        """Give up a session: end it if it is ours to end and nobody else uses it, and remove our record.

        What our scan has brought goes as well. `done_with` is the SCSIid of the LUN whose lock the caller still has.

        True if the session has ended. Raises IscsiFailed (ISCSILogout) when the logout fails; a later login or
        `recover` tries again.
        """
        self._know_pool()
        with self._locked():
            self._release_the_dead(login.session.iqn)
            self._finish(login.note, done_with)
            # Another run may have left the session, or a LUN, for us to end. What is behind other targets had its time.
            self._recover(login.session.iqn, None, None, done_with)
            return self._same(login.session) is None

    def rescan(self, login: Login, scsi_id: Optional[str] = None) -> Session:
        """Look for LUNs that were mapped since, and for the size of `scsi_id`; the session as it is afterwards.

        The disk of a new LUN may come a little later (`Lun.disk` is None until then), and so may all of what a scan
        brings that takes long. `logout` removes the new ones.

        Raises NotFound (ISCSIDevice) when the session is gone or has lost its target, Refused when it is not scanned.
        """
        session, note = login.session, login.note
        current = self._same(session)
        if current is not None and current.is_logged_in:
            with self._locked():
                self._luns.note_before_scan(note, current, self._references.users(session.iqn))
                is_done = self._scanned(current, scsi_id)
                current = self._same(session)
                if current is not None and is_done:
                    self._luns.note_after_scan(note, current)
        if current is None:
            raise NotFound(f"The {session} has ended. Another program has logged it out.", "ISCSIDevice")
        if not current.is_logged_in:
            raise _lost(current)
        return current

    def _scanned(self, session: Session, scsi_id: Optional[str]) -> bool:
        """False if the scan goes on in the kernel: what it brings later is what it has brought by the logout."""
        try:
            self._within(_SCAN_SECONDS)._luns.scan(session, scsi_id)
        except OutOfTime:
            self._deadline.check(f"{session} was scanned for LUNs")
            log.warning(
                "the scan of %s for LUNs takes more than %g seconds, and is not waited for", session, _SCAN_SECONDS
            )
            return False
        return True

    def other_users(self, iqn: str) -> Set[str]:
        """Whose lines are in SM's session reference file, but for those of runs of ours."""
        return other_users(iqn, self._host)

    def recover(self) -> None:
        """Finish the cleanup of runs that were killed; `login` does so by itself. What fails is logged."""
        self._know_pool()
        with self._locked():
            self._recover(None, None, None)

    def end_what_waits(self, iqn: str, scsi_id: str) -> None:
        """The lock of this LUN has just been given back: end what other runs have left because it was held.

        SM's lock is only taken if there is something.
        """
        if any_waits(self._host, iqn, scsi_id):
            self._know_pool()
            with self._locked():
                self._recover(iqn, None, None)

    # --- steps of a login; the lock is held

    def _present(self, iqn: str, portal: Portal, user: Optional[str]) -> Optional[Login]:
        """The use of a session that is there, of a run that was killed or anybody's; None if there is none."""
        adopted = self._recover(iqn, portal, user)
        if adopted is not None:
            return adopted
        existing = self._found(iqn, portal)
        if existing is None:
            return None
        if not existing.is_logged_in:
            raise _lost(existing)
        return self._use_existing(existing, self._new_note(iqn, portal, user, created=False))

    def _login(self, portal: Portal, iqn: str, settings: Dict[str, Optional[str]], user: Optional[str]) -> Login:
        with_chap = settings["node.session.auth.username"] is not None
        with_incoming = settings["node.session.auth.username_in"] is not None
        marker = new_marker()
        note = self._new_note(iqn, portal, user, created=True, marker=marker)
        try:
            if self._deadline.left < _SHORTEST_LOGIN + _LOGIN_MARGIN:
                raise self._deadline.over(f"the login to {iqn} at {portal}")
            settings = self._ending_in_time(settings)
            arguments = self._changes.for_node(note, iqn, portal, dict(settings, **marker_settings(marker)))
            log.info("logging in to %s at %s%s", iqn, portal, " with CHAP" if with_chap else "")
            status = self._asked_to_log_in(
                note,
                [*arguments, "-l"],
                f"The login to {iqn} at {portal} failed",
                "ISCSILogin",
                self._for_answer(LOGIN_SECONDS) + _LOGIN_SPARE,
                accept=(0, iscsi_status.SESSION_EXISTS),
                secrets=[settings["node.session.auth." + name] or "" for name in ("password", "password_in")],
                hint=lambda status: iscsi_status.login_hint(status, with_chap, with_incoming),
            )
            ours = status == 0
            adopted = None if ours else self._recover(iqn, portal, user)
            if adopted is not None:  # iscsid was still at the login of a run that was killed
                note.add(user=None)
                self._finish(note)
                return adopted
            session = self._settled(iqn, portal)
            if session is None:
                problem = "The session to {} at {} has ended right after its login. Look at the log of iscsid."
                raise NotFound(problem.format(iqn, portal), "ISCSIDevice")
            note.add(sid=session.sid, created=ours)
            if note["before"] is not None or not ours:
                self._changes.undo(note)
            log.info("%s: %s", "logged in" if ours else "another program has just logged in", session)
            patience = min(_PATIENCE_SECONDS, int(settings["node.session.timeo.replacement_timeout"] or 0))
            if ours and not set_patience(session, patience, self._host):
                log.debug("%s keeps its time-out", session)
            return self._use(session, note)._replace(is_new=ours)
        except BaseException:
            self._give_up(note)
            raise

    def _asked_to_log_in(self, note: Note, *call: Any, **more: Any) -> int:
        """The status of iscsiadm. When that is stopped iscsid goes on, so the note says whether it has answered."""
        note.add(durable=False, asked=time.monotonic())
        try:
            with terminated.put_off():
                status = self.iscsiadm(*call, **more).status
        except RelvmoiscsiError as error:
            if not isinstance(error, IscsiFailed) or iscsi_status.is_of_iscsid(error.status):
                note.add(durable=False, asked=None)
            raise
        note.add(durable=False, asked=None)
        return status

    def _give_up(self, note: Note) -> None:
        """Undo what failed; a further failure is logged and does not hide the first one."""
        try:
            self._release_the_dead(note["iqn"])
            self._until(self._deadline.for_cleanup(END_SECONDS))._finish(note)
        except RelvmoiscsiError as error:
            log.warning("After a failure: %s A later run will try again.", error)
            note.close()

    def _use_existing(self, session: Session, note: Note) -> Login:
        log.info("using %s, which is %s", session, session.state)
        try:
            return self._use(session, note)
        except BaseException:
            self._give_up(note)
            raise

    def _use(self, session: Session, note: Note) -> Login:
        note.add(sid=session.sid)
        if note["user"]:
            self._references.add(session.iqn, note["user"])
        return Login(session, bool(note["created"]), note)

    def _new_note(self, iqn: str, portal: Portal, user: Optional[str], created: bool, **facts: Any) -> Note:
        there = [session.sid for session in sessions_of(iqn, host=self._host)]
        of_sm = self._others(iqn, user) - noted_users(self._host, iqn)
        facts.update(iqn=iqn, portal=list(portal), user=user, created=created, sids=there)
        return new_note(self._host, inherited=there if of_sm else [], **facts)

    def _others(self, iqn: str, user: Optional[str]) -> Set[str]:
        """Whose lines are in SM's file, but for our own."""
        return set(self._references.users(iqn)) - {user}

    def _check_offer(self, portal: Portal, iqn: str, chap: Optional[Credentials], initiator: Optional[str]) -> None:
        """LIO answers a login to a target that it does not have as if it were busy, and iscsid keeps trying.

        An array may show a target to the `initiator` of the login alone, and the discovery goes by the name of iscsid,
        which reads it when it starts. Then the login tells.
        """
        try:
            offered = sorted({target.iqn for target in self.discover(portal, chap)})
        except IscsiFailed as error:
            if _is_silence(error):
                raise  # the login would wait for nothing once more
            log.info("%s The login is tried all the same.", error)
            return
        if iqn not in offered and initiator is not None:
            log.info("%s does not offer %s to this host's own name. As %s the login is tried.", portal, iqn, initiator)
        elif iqn not in offered:
            problem = (
                "The portal {} does not offer the target {} to this host, only {}. Check the IQN, whether the target "
                "is enabled, and whether it allows this host's initiator name."
            )
            raise NotFound(problem.format(portal, iqn, _listed(offered)), "ISCSIDiscovery")

    # --- the end of a use

    @terminated.put_off()  # half of it taken back, it would be left to a later run
    def _finish(self, note: Note, done_with: Optional[str] = None) -> None:
        """Undo what the note speaks of and remove it; or leave the note, when another run is to do so.

        A run whose LUN is in the way looks for such notes once it has given back the LUN's lock (`end_what_waits`). The
        lock is looked at here when the note has been written, so one of the two sees the other.
        """
        # First of all: SM looks into the file when it detaches. Were our line still there after the look at those of
        # others, each could leave the session to the other.
        self._release(note)
        for _ in range(_ROUNDS):
            waits_for: List[str] = []
            try:
                self._end_use(note, done_with)
            except WorkedOn as problem:
                waits_for = problem.scsi_ids
                own = self._session_of(note) if note["created"] else None
                self._leave(note, own, {str(problem)}, waits_for)
            if not waits_for or any(is_lun_locked(scsi_id, self._host) for scsi_id in waits_for):
                break
        note.close()

    def _end_use(self, note: Note, done_with: Optional[str]) -> None:
        session = self._session_of(note)
        own = session if note["created"] else None
        others = self._others(note["iqn"], note["user"]) if note["iqn"] else set()
        runs = noted_users(self._host, note["iqn"])
        owed = self._owed(note, own)
        if others and (own is not None or owed and others <= runs):
            if own is not None and others - runs:
                self._luns.let_go_of_idle_maps(own.luns, done_with)
            self._leave(note, own, others)
            return
        kept = [] if others else [one for one in owed if not self._end_unless_used(one, one == own, done_with)]
        if not self._luns.take_away(note, self._session_of(note), others - runs, done_with):
            self._leave(note, None, runs)
            return
        # A record that we made stays with a session that stays: an iscsid that is started anew needs it.
        # So does one that a session of others has been made with since: SM takes the record that it finds.
        taken = own is None and note["iqn"] and self._found(note["iqn"], note.portal) is not None and others - runs
        if note["before"] is not None or not (own in kept or taken):
            self._changes.undo(note)
        if own is None and self._may_come(note):
            log.info("iscsid may still make the session to %s at %s: a later run ends it", note["iqn"], note.portal)
            self._leave(note, None, set())
            return
        note.remove()

    def _owed(self, note: Note, own: Optional[Session]) -> List[Session]:
        """The sessions to end once nobody has a line in SM's file: `own`, and those that SM has left to us."""
        if note["boot"] != self._host.boot_id:
            return []
        inherited = [session_by_id(sid, self._host) for sid in note["inherited"] or []]
        return [one for one in [own, *inherited] if one is not None and one.iqn == note["iqn"]]

    def _leave(self, note: Note, session: Optional[Session], others: Set[str], waits_for: Sequence[str] = ()) -> None:
        """Leave a session, its record and our LUNs to their other users. A run of ours, or a later one, ends them.

        `waits_for`: LUNs whose locks are all that is in the way.
        """
        if session is not None:
            log.info("%s stays, as %s uses it now", session, ", ".join(sorted(others)))
            self._be_patient(session)
        note.add(user=None, handed=sorted(others), waits_for=list(waits_for))
        if self._left is not None:
            self._left.add(note.path)

    def _end_unless_used(self, session: Session, is_ours: bool, done_with: Optional[str]) -> bool:
        """Log out, unless a disk of the session is in use; False if it is, and the session is its users' now.

        `is_ours`: it was logged in here, and has our time-outs. Raises Refused when nobody can tell now,
        WorkedOn when a run of ours is at one of its LUNs, with no line in SM's file: the command, say.
        """
        # Of an array that does not answer the paths are as silent as the first one, and each look would take its time.
        self._verify_nothing_hangs(session, *sessions_of(session.iqn, host=self._host))
        users = self._users(session, done_with)
        if not users:
            self._end(session)
            return True
        at_work = self._luns.worked_on(session.luns, done_with)
        if at_work:
            raise WorkedOn(at_work, users)
        log.warning("%s stays, as its disks are in use: %s. Log out when they are not.", session, ", ".join(users))
        self._luns.hand_over_maps(session.luns, done_with)
        if is_ours:
            self._be_patient(session)
        return False

    def _users(self, session: Session, done_with: Optional[str]) -> List[str]:
        """Who uses the session, but for maps of ours, which go; one that multipathd makes meanwhile goes as well."""
        what = f"the users of {session} were known"
        users: List[str] = []
        for is_first in (True, False):
            has_gone = self._luns.let_go_of_maps(session.luns, done_with)
            if is_first or has_gone:
                users = self._in_time(lambda: self._luns.users(session, session.luns), session, what)
            if not users:
                break
        return users

    def _be_patient(self, session: Session) -> None:
        """I/O of a session that others use now waits for a lost connection as SM has it.

        Only where it has our own patience still: a path has the shorter one of SM since its login, and multipathd gives
        the paths of its maps one of its own.
        """
        now = patience_of(session, self._host)
        if now not in (None, _PATIENCE_SECONDS):
            log.debug("the I/O of %s waits %d seconds for a lost connection", session, now)
        elif not set_patience(session, REPLACEMENT_SECONDS, self._host):
            log.warning("the I/O of %s fails after %d seconds without a connection", session, _PATIENCE_SECONDS)

    def _release(self, note: Note) -> None:
        if note["iqn"]:
            self._references.remove(note["iqn"], note["user"])

    @terminated.put_off()
    def _release_the_dead(self, iqn: str) -> None:
        """Take out the lines of runs that were killed beside this one: nobody uses what it has for them."""
        for note in dead_notes_in_turn(self._host, partial(_rank, iqn, None)):
            if note["user"]:
                self._release(note)
                note.add(user=None)
            note.close()

    def _end(self, session: Session) -> None:
        """Log out. An iscsid that was started anew needs some time until it knows the session again."""
        log.info("logging out: %s", session)
        task = f"The logout of {session} failed"
        deadline = time.monotonic() + self._deadline.within(_LOGOUT_TIMEOUT)
        while True:
            try:
                self.iscsiadm(["-m", "session", "-r", str(session.sid), "-u"], task, "ISCSILogout", _LOGOUT_TIMEOUT)
            except IscsiFailed as error:
                if self._same(session) is None:
                    return
                if error.status not in iscsi_status.DAEMON_NOT_READY or time.monotonic() >= deadline:
                    raise
                log.info("%s Trying again.", error)
                self.iscsiadm.ensure_daemon()
                time.sleep(_DAEMON_PAUSE)
                continue
            if wait_for(lambda: self._same(session) is None, max(0.0, deadline - time.monotonic())):
                return
            problem = "{}: iscsiadm reports success, and it is still there. Look at the log of iscsid."
            raise Refused(problem.format(task), "ISCSILogout")

    @terminated.put_off()
    def _recover(
        self, iqn: Optional[str], portal: Optional[Portal], user: Optional[str], done_with: Optional[str] = None
    ) -> Optional[Login]:
        """Clean up after runs that were killed; their session to this portal is taken over instead, if it is alive.

        Without a portal only after those that were at this IQN; without an IQN after all. The others have little time,
        all together: what an array that does not answer has left is no reason to fail this call.
        """
        adopted = None
        others = self._within(self._recovery_seconds)
        for note in dead_notes_in_turn(self._host, partial(_rank, iqn, portal)):
            wanted = adopted is None and portal is not None and _is_at(note, iqn, portal)
            if not wanted and note.path in (self._left or ()):
                note.close()  # this very call has just left it
                continue
            if not wanted and others._deadline.has_passed:
                log.info("what else earlier runs have left is left to a later run")
                note.close()
                break
            how = "did not clean up after" if note["handed"] is None else "left to others what it had of"
            log.info("an earlier run %s %s at %s", how, note["iqn"] or "a discovery", note.portal)
            try:
                if note["locked"]:
                    break_stale_lock(self._host)
                session = self._session_of(note) if wanted else None
                if session is not None and note["created"] and session.is_logged_in:
                    adopted = self._adopt(note, session, user)
                else:
                    others._finish(note, done_with)
            except RelvmoiscsiError as error:
                log.warning("After an earlier run: %s A later run will try again.", error)
                note.put_back()
        others._luns.clear_maps()
        self._recovery_seconds = others._deadline.left
        return adopted

    def _adopt(self, note: Note, session: Session, user: Optional[str]) -> Login:
        log.info("taking over %s", session)
        if note["before"] is not None:
            self._changes.undo(note)
        if note["user"] and note["user"] != user:
            self._references.remove(note["iqn"], note["user"])
        note.add(user=user, handed=None, waits_for=[])
        return self._use(session, note)

    # --- what is there

    def _session_of(self, note: Note) -> Optional[Session]:
        """The session that the note speaks of; None when it has ended."""
        if note["boot"] != self._host.boot_id or not note["iqn"]:
            return None
        if note["sid"] is None:
            return self._session_made_by(note) if note["created"] else None
        session = session_by_id(note["sid"], self._host)
        return session if session is not None and session.iqn == note["iqn"] else None

    def _session_made_by(self, note: Note) -> Optional[Session]:
        """The session of a login that was cut before iscsiadm came back, if there provably is one.

        There may be others to the portal: whoever logged in afterwards.
        """
        if note["sids"] is None or not note["marker"]:
            return None
        self._settled(note["iqn"], note.portal)
        if note["handed"] is None and self._may_come(note):  # nobody has waited for it so far
            wait_for(lambda: self._marked(note) is not None, self._deadline.within(_COMING_SECONDS))
        return self._marked(note)

    def _marked(self, note: Note) -> Optional[Session]:
        for session in sessions_of(note["iqn"], note.portal, self._host):
            if session.sid not in note["sids"] and error_timeouts(session, self._host) == note["marker"]:
                return session
        return None

    def _may_come(self, note: Note) -> bool:
        """Was iscsid asked for a session, has not answered, and may come to it yet?"""
        is_asked = note["created"] and note["sid"] is None and note["asked"] is not None
        return is_asked and note["boot"] == self._host.boot_id and time.monotonic() - note["asked"] < _LATEST_SECONDS

    def _same(self, session: Session) -> Optional[Session]:
        return _now(session, self._host)

    def _settled(self, iqn: str, portal: Portal) -> Optional[Session]:
        """The session to this portal, once iscsid is done with a login that is on its way; None if there is none."""
        self._wait_while(lambda session: session.is_coming, iqn, portal, LOGIN_SECONDS + 5.0)
        return self._found(iqn, portal)

    def _wait_while(self, holds: Callable[[Session], bool], iqn: str, portal: Portal, seconds: float) -> None:
        def settled() -> bool:
            session = self._found(iqn, portal)
            return session is None or not holds(session)

        wait_for(settled, self._deadline.within(seconds))

    def _found(self, iqn: str, portal: Portal) -> Optional[Session]:
        found = sessions_of(iqn, portal, self._host)
        return next((one for one in found if one.is_logged_in), found[0] if found else None)

    # --- the time

    def _locked(self) -> ContextManager[None]:
        return iscsiadm_lock(self._host, self._deadline.within(self._lock_seconds))

    def _know_pool(self) -> None:
        """Have the pool asked, while no lock is held, where a cleanup is likely to: xapi may not answer for seconds."""
        if any_brought(self._host) or own_maps.unattended(self._host):
            self._ids_of_pool()

    def _in_time(self, work: Callable[[], List[str]], session: Session, what: str) -> List[str]:
        """What the work on the disks of the session gives. One that does not answer hangs whoever opens or removes it.

        Raises OutOfTime then; `what` is what did not come to pass.
        """
        self._verify_nothing_hangs(session)
        if math.isinf(self._deadline.left):
            return work()
        return apart(lambda _begin: "\n".join(work()), self._deadline, what, str(session)).splitlines()

    def _verify_nothing_hangs(self, session: Session, *beside: Session) -> None:
        """In its disks, or in those of sessions `beside` it. It would count as a user.

        It has a copy of the note, which is free for a later run when it has ended.
        """
        hanging = [pid for one in (session, *beside) for pid in still_there(str(one))]
        if hanging:
            problem = "Process {} of this call hangs in a disk that does not answer, so {} stays as it is for now."
            raise Refused(problem.format(hanging[0], session))

    def _within(self, seconds: float) -> "OpenIscsi":
        """The same with less time, if there is a limit at all."""
        return self if math.isinf(self._deadline.left) else self._until(self._deadline.part(seconds))

    def _until(self, deadline: Deadline) -> "OpenIscsi":
        return OpenIscsi(self._host, self._lock_seconds, deadline, self._answer_seconds, self._ids_of_pool, self._left)

    def _for_answer(self, seconds: float) -> float:
        return min(seconds, self._answer_seconds)

    def _run_in_time(self, argv: Sequence[str], **more: Any) -> Completed:
        return in_time(self._host.runner, self._deadline)(argv, **more)

    def _ending_in_time(self, settings: Dict[str, Optional[str]]) -> Dict[str, Optional[str]]:
        """A login goes on in iscsid when iscsiadm is stopped; so iscsid has to give up by itself, a little before."""
        seconds = int(max(_SHORTEST_LOGIN, min(self._for_answer(LOGIN_SECONDS), self._deadline.left - _LOGIN_MARGIN)))
        return dict(settings, **{LOGIN_TIMEOUT: str(seconds)})


def _is_at(facts: Union[Note, Mapping[str, Any]], iqn: Optional[str], portal: Portal) -> bool:
    """Does a note speak of this target, at this portal?"""
    return facts["iqn"] == iqn and same_portal(Portal(*facts["portal"]), portal)


def _rank(iqn: Optional[str], portal: Optional[Portal], facts: Mapping[str, Any]) -> Optional[int]:
    """In which order notes are looked into: what this call needs, its target, the others, or not at all."""
    if facts.get("iqn") != iqn:
        return 2 if portal is not None or iqn is None else None
    return 0 if portal is not None and _is_at(facts, iqn, portal) else 1


def verify_any_alive(sessions: Sequence[Session], host: Host = THIS_HOST) -> None:
    """Raises NotFound (ISCSIDevice) when all of these have ended, or lost their target, since they were looked at."""
    now = [session_by_id(session.sid, host) or session._replace(state=ENDED) for session in sessions]
    if not any(session.is_logged_in for session in now):
        raise _lost(now[0])


def has_ended(session: Session, host: Host = THIS_HOST) -> bool:
    """Has somebody logged out? One that has lost its target is there until somebody does."""
    return _now(session, host) is None


def _now(session: Session, host: Host) -> Optional[Session]:
    """The session as it is now; None when it has ended, though another one may have its number."""
    current = session_by_id(session.sid, host)
    return current if current is not None and current.iqn == session.iqn else None


def _is_silence(error: IscsiFailed) -> bool:
    """Did the portal take the connection and then say nothing? iscsiadm has no status of its own for that."""
    return error.status in _SILENCE or "response timeout" in error.stderr


def _lost(session: Session) -> NotFound:
    problem = "The {} has lost its target (it is {}). Check the target and the network, then try again."
    return NotFound(problem.format(session, session.state), "ISCSIDevice")


def _listed(names: List[str]) -> str:
    """The names for a message; arrays have thousands at times."""
    further = len(names) - _LISTED
    return ", ".join(names[:_LISTED] + ([f"and {further} others"] if further > 0 else [])) or "none"
