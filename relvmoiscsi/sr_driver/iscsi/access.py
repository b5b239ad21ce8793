# SPDX-License-Identifier: LGPL-2.1-only
"""What is needed to reach a LUN behind a target: the device-config, passwords, this host's name."""

import logging
import math
import os
from functools import lru_cache, partial
from typing import Dict, NamedTuple, Optional, Sequence, Set

from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host.deadline import Deadline
from relvmoiscsi.host.disk import multipath
from relvmoiscsi.host.iscsi.iscsiadm import Credentials
from relvmoiscsi.host.iscsi.login import END_SECONDS, Login, OpenIscsi
from relvmoiscsi.host.iscsi.luns import IdsOfPool, no_pool
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.iscsi.reach import reach
from relvmoiscsi.host.sm_log import SmLogHandler
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.host.xapi.lun_users import ids_named, read_pool
from relvmoiscsi.sr_driver.iscsi.config import Chap, Config
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.this_host import record_of_host

log = logging.getLogger(__name__)

_POOL_SECONDS = 4.0  # for xapi, while SM's iscsiadm lock is held; it usually takes a few milliseconds
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
    ids_of_pool: IdsOfPool = no_pool
    ids_in_the_end: IdsOfPool = no_pool  #: the same, as it is when this call has scanned
    left: Optional[Set[str]] = None  #: the notes that this call has left to others

    def open_iscsi(self, answer_seconds: float = math.inf) -> OpenIscsi:
        return OpenIscsi(
            lock_seconds=self.lock_seconds,
            deadline=self.deadline,
            answer_seconds=answer_seconds,
            ids_of_pool=self.ids_of_pool,
            left=self.left,
        )


def access_of(call: Call, config: Config, xapi: Xapi, smlog: SmLogHandler, deadline: Deadline) -> Access:
    """What is needed to reach the LUN; passwords come from xapi, and are hidden from the log at once."""
    host = record_of_host(call, xapi)
    other_config: Dict[str, str] = dict(host.get("other_config", {}))
    wanted = config.local_iqn or other_config.get("iscsi_iqn") or host.get("iscsi_iqn") or None
    ask = partial(ids_of_pool, xapi, deadline)
    return Access(
        config=config,
        chap=_credentials(config.chap, xapi, smlog),
        incoming_chap=_credentials(config.incoming_chap, xapi, smlog),
        initiator=OpenIscsi().iscsiadm.check_initiator(wanted),
        multipathing=multipath.is_on(call.device_config, other_config),
        sr_uuid=call.sr_uuid or _passing_uuid(),
        deadline=deadline,
        ids_of_pool=once(ask),
        ids_in_the_end=once(ask),
        left=set(),
    )


def ids_of_pool(xapi: Xapi, deadline: Deadline) -> Optional[Sequence[str]]:
    """Asked when LUNs are to go, as an SR may have been introduced during the call; None if xapi does not say."""
    try:
        return ids_named(read_pool(xapi.until(deadline.for_cleanup().part(_POOL_SECONDS))))
    except RelvmoiscsiError as problem:
        log.warning("the pool's records could not be read again: %s", problem)
        return None


def once(ask: IdsOfPool) -> IdsOfPool:
    """Asks a single time, whatever the answer: there are as many logouts as paths, and a xapi that hangs goes on so."""
    return lru_cache(maxsize=None)(ask)


def _passing_uuid() -> str:
    """For a call without an SR, a probe: SM counts UUIDs only, and must not log out under it either."""
    digits = os.urandom(16).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _credentials(chap: Optional[Chap], xapi: Xapi, smlog: SmLogHandler) -> Optional[Credentials]:
    if chap is None:
        return None
    password = xapi.secret(chap.password.value) if chap.password.is_secret_uuid else chap.password.value
    smlog.hide(password)
    return Credentials(chap.user, password)


def log_in(access: Access, portal: Portal, seconds: float, multipathing: bool = False) -> Login:
    """A session to the target at one portal, which may take so many seconds. Raises RelvmoiscsiError."""
    return access.open_iscsi(seconds).login(
        reach(portal, deadline=access.deadline.part(seconds)),
        access.config.target_iqn,
        access.chap,
        access.incoming_chap,
        multipath=multipathing,
        initiator=access.initiator,
        user=access.sr_uuid or None,
    )


def log_out(access: Access, login: Login, done_with: Optional[str] = None) -> None:
    """Give up a session; `done_with` is the SCSIid of the LUN whose lock is still held."""
    _in_the_end(access).open_iscsi().logout(login, done_with)


def end_what_waits(access: Access) -> None:
    """The lock of the LUN has been given back: end what other calls have left because of it, this one's as well."""
    open_iscsi = _in_the_end(access)._replace(left=None).open_iscsi()
    open_iscsi.end_what_waits(access.config.target_iqn, access.config.scsi_id)


def _in_the_end(access: Access) -> Access:
    lock_seconds = max(access.lock_seconds, LOGOUT_LOCK_SECONDS)  # within the deadline
    deadline = access.deadline.for_cleanup(END_SECONDS)
    return access._replace(ids_of_pool=access.ids_in_the_end, lock_seconds=lock_seconds, deadline=deadline)
