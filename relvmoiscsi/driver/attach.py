# SPDX-License-Identifier: LGPL-2.1-only
"""The LUN on this host for as long as it is needed, and the host as it was afterwards.

    lock      one call at a time for a LUN
    hide      udev, LVM and multipath handlers leave its disks alone, and all others that the target brings meanwhile
    log in    to the first portal that answers; to all of them where multipathing is on
    find      the disk or disks with the SCSIid, after a rescan of sessions that were there before
    path      the multipath map, or the only disk

Each step is undone in the reverse order whatever happens, exactly as far as it was done here. What cannot be undone is
logged, and does not hide why the call failed.
"""

import logging
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Callable, Iterator, List, NamedTuple, Optional, Sequence

from relvmoiscsi.driver.config import Config
from relvmoiscsi.driver.listing import luns_of
from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.host import multipath, scsi, smlocks, udev
from relvmoiscsi.host.iscsi import Login, OpenIscsi
from relvmoiscsi.host.iscsi_admin import Credentials
from relvmoiscsi.host.iscsi_portals import Portal, reach
from relvmoiscsi.host.iscsi_sessions import Session, sessions_of

log = logging.getLogger(__name__)

LOCK_SECONDS = 45.0  #: the caller gives up after 60; whoever waits this long would not be done in time
LUN_SECONDS = 15.0  #: as SM has it


class Access(NamedTuple):
    """What is needed to reach the LUN, secrets resolved."""

    config: Config
    chap: Optional[Credentials]
    incoming_chap: Optional[Credentials]
    initiator: Optional[str]
    multipathing: bool
    sr_uuid: str  #: for SM's session reference file


@contextmanager
def attached(access: Access, meanwhile: Callable[[], None] = lambda: None) -> Iterator[str]:
    """The device node of the LUN. Raises NotFound, Refused or CommandFailed, with everything as it was.

    `meanwhile` is called once while the kernel and udev are looking at the disk.
    """
    scsi_id = access.config.scsi_id
    with ExitStack() as stack:
        stack.enter_context(smlocks.lun_lock(scsi_id, timeout=LOCK_SECONDS))
        before = multipath.look(scsi_id)
        there = udev.disks_of(scsi_id)
        stack.enter_context(udev.hidden(scsi_id, multipath=access.multipathing))
        stack.enter_context(udev.hidden_target(access.config.target_iqn))
        since = time.monotonic()
        logins = _log_in(access, stack)
        meanwhile()
        disks = _disks(access, logins)
        udev.settle(disks, since=since, known=there)
        _verify_live(scsi_id, [disk for disk in disks if disk in there])
        _warn_if_seen([disk for disk in disks if disk not in there])
        if access.multipathing:
            stack.callback(_quietly, "flushing the multipath map", lambda: multipath.flush_map(before))
            yield multipath.ensure_map(before, disks).device
        else:
            yield "/dev/" + multipath.single_path(scsi_id, disks)


def _warn_if_seen(disks: Sequence[str]) -> None:
    seen = [disk for disk in disks if not udev.is_hidden(disk)]
    if seen:
        log.warning("%s not hidden from event handlers: are our udev rules installed?", ", ".join(seen))


def _verify_live(scsi_id: str, disks: Sequence[str]) -> None:
    """Are the disks that were there before still this LUN? Raises Refused."""
    for disk in disks:
        now = scsi.live_scsi_id("/dev/" + disk)
        if now is not None and now != scsi_id:
            raise Refused(
                "The disk {} was the LUN {} when this host found it, and is {} now: the array has mapped another LUN "
                "in its place. Detach what uses that disk and log in anew.".format(disk, scsi_id, now),
                "ISCSIDevice",
            ).in_state("Nothing was written.")


def _quietly(what: str, action: Callable[[], object]) -> None:
    """Cleanup: goes on after a failure, and says so."""
    try:
        action()
    except (RelvmoiscsiError, OSError) as error:
        log.error("%s failed: %s", what, error)


def _log_in(access: Access, stack: ExitStack) -> List[Login]:
    """A session to the target at one portal, or at all that answer; raises the first failure if there is none."""
    iscsi = OpenIscsi()
    logins: List[Login] = []
    failures: List[RelvmoiscsiError] = []
    for portal in _portals(access):
        try:
            login = iscsi.login(
                reach(portal),
                access.config.target_iqn,
                access.chap,
                access.incoming_chap,
                multipath=access.multipathing,
                initiator=access.initiator,
                user=access.sr_uuid or None,
            )
        except RelvmoiscsiError as failure:
            log.warning("%s: %s", portal, failure)
            failures.append(failure)
            continue
        stack.callback(_quietly, "the logout", partial(iscsi.logout, login, access.config.scsi_id))
        how = "logged in to" if login.created else "using the session to"
        log.info("%s %s", how, login.session)
        logins.append(login)
        if not access.multipathing:
            break
    if not logins:
        raise failures[0]
    return logins


def _portals(access: Access) -> Sequence[Portal]:
    """Where to try, in order: first where this host has a session already."""
    wanted = access.config.portals
    known = [session.portal for session in sessions_of(access.config.target_iqn)]
    if known and not access.multipathing:
        return [*known[:1], *wanted]
    return wanted


def _disks(access: Access, logins: Sequence[Login]) -> List[str]:
    """The disks of the LUN: at once, or after a rescan of the sessions that were there before."""
    scsi_id = access.config.scsi_id
    iscsi = OpenIscsi()
    sessions = [iscsi.rescan(login) for login in logins if not login.created]
    disks: Optional[List[str]] = udev.wait_for(lambda: _disks_of_all(scsi_id, len(logins)), LUN_SECONDS)
    disks = disks or udev.disks_of(scsi_id)
    if not disks:
        raise NotFound(_not_there(access, [*sessions, *(login.session for login in logins)]), "ISCSIDevice")
    log.info("the LUN %s is %s", scsi_id, ", ".join(disks))
    return disks


def _disks_of_all(scsi_id: str, paths: int) -> List[str]:
    disks = udev.disks_of(scsi_id)
    return disks if len(disks) >= paths else []


def _not_there(access: Access, sessions: Sequence[Session]) -> str:
    seen = [facts.scsi_id for facts in luns_of(sessions)]
    return "No LUN with the SCSIid {} appeared behind {} within {:g} seconds; there are {}.".format(
        access.config.scsi_id,
        access.config.target_iqn,
        LUN_SECONDS,
        ", ".join(sorted(set(filter(None, seen)))) or "none",
    )
