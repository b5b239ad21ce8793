# SPDX-License-Identifier: LGPL-2.1-only
"""How a call gets to its target: portals, this host's name, secrets; and a way round by another network interface.

The session is one of this process (iscsi/), and has nothing to do with the sessions, records and locks of open-iscsi.
"""

import logging
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar

from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.host.deadline import Deadline
from relvmoiscsi.host.iscsi_sessions import offload_hint
from relvmoiscsi.host.sm_log import SmLogHandler
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.iscsi.names import Credentials, Initiator, Portal, Target
from relvmoiscsi.iscsi.target_sessions import discover
from relvmoiscsi.sr_driver.iscsi.config import Chap, Config
from relvmoiscsi.sr_driver.iscsi.ifaces import interfaces
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.this_host import record_of_host

log = logging.getLogger(__name__)

Found = TypeVar("Found")


class Access(NamedTuple):
    """What a session takes, secrets resolved."""

    config: Config
    portals: Tuple[Portal, ...]
    initiators: Tuple[Initiator, ...]  #: one for each network interface to try, in turn
    credentials: Credentials

    def discovered(self, deadline: Deadline, portals: Optional[Sequence[Portal]] = None) -> Sequence[Target]:
        """The targets that the portals offer. Raises NotFound, Refused, OutOfTime."""
        asked = self.portals if portals is None else portals
        return self.in_turn(lambda initiator: discover(asked, initiator, self.credentials, deadline))

    def in_turn(self, try_by: Callable[[Initiator], Found]) -> Found:
        """What it gives by the first interface through which a portal is reached.

        Raises what it raises by the last one, with what a host does that reaches its targets by a card.
        """
        for initiator in self.initiators:
            try:
                return try_by(initiator)
            except NotFound as failure:
                if failure.sm_key != "ISCSITarget":
                    raise
                if initiator is self.initiators[-1]:
                    hint = offload_hint(self.config.target_iqn, THIS_HOST)
                    failure.message = f"{failure.message} {hint}".strip()
                    raise
                log.info("through %s: %s", initiator.interface, failure)
        raise AssertionError("there is an initiator")

    def login_failure(self, failure: RelvmoiscsiError, deadline: Deadline) -> RelvmoiscsiError:
        """The error of a login that was refused: ISCSIDiscovery where the portals have other targets, and not this."""
        if failure.sm_key != "ISCSILogin":
            return failure
        iqn = self.config.target_iqn
        try:
            offered = self.discovered(deadline)
        except (NotFound, Refused) as problem:
            log.info("which targets there are is not known: %s", problem)
            return failure
        if not offered or iqn in [target.iqn for target in offered]:
            return failure
        return NotFound(
            f"{self.portals[0]} offers this host no target {iqn}. Check the IQN, and whether the array shows the "
            f"target to this initiator. {failure.message}",
            "ISCSIDiscovery",
        )


def access_of(call: Call, config: Config, xapi: Xapi, smlog: SmLogHandler) -> Access:
    """What a session takes; passwords come from xapi, and are hidden from the log at once.

    Raises Refused (ConfigISCSIIQNMissing) where this host has no name, XapiFailure.
    """
    host = record_of_host(call, xapi)
    user, secret = _credentials(config.chap, xapi, smlog)
    incoming_user, incoming_secret = _credentials(config.incoming_chap, xapi, smlog)
    name = initiator_name(config, host)
    return Access(
        config=config,
        portals=tuple(Portal(*portal) for portal in config.portals),
        initiators=tuple(Initiator(name, host["uuid"], interface) for interface in interfaces(THIS_HOST)),
        credentials=Credentials(user, secret, incoming_user, incoming_secret),
    )


def initiator_name(config: Config, host: Mapping[str, Any]) -> str:
    """The IQN of this host. Raises Refused."""
    name = config.local_iqn or host.get("other_config", {}).get("iscsi_iqn") or host.get("iscsi_iqn")
    if not name:
        problem = "This host has no iSCSI initiator name: xapi has none for it. Set the IQN of the host."
        raise Refused(problem, "ConfigISCSIIQNMissing")
    return str(name)


def _credentials(chap: Optional[Chap], xapi: Xapi, smlog: SmLogHandler) -> Tuple[str, str]:
    if chap is None:
        return "", ""
    password = xapi.secret(chap.password.value) if chap.password.is_secret_uuid else chap.password.value
    smlog.hide(password)
    return chap.user, password
