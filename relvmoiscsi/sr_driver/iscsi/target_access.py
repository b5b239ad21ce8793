# SPDX-License-Identifier: LGPL-2.1-only
"""How a call reaches its target: portals, the initiator name of this host, secrets, and network interfaces.

The session belongs to this process (iscsi/). open-iscsi's sessions, records and locks are not involved.

An administrator may reserve network interfaces for iSCSI: open-iscsi ifaces whose names begin with `c_`. If there are
such ifaces, SM uses only these interfaces. A session of this process leaves through the same interface, or from the
same address, as open-iscsi's files say. Source: SM drivers/iscsilib.py, get_iscsi_interfaces; open-iscsi README, "iface
configs".
"""

import logging
import os
from contextlib import ExitStack, contextmanager
from copy import copy
from typing import Any, Callable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host.files import attribute, lines_of, matching
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.iscsi.lun_device import LunDevice
from relvmoiscsi.iscsi.lun_opening import LunName, TargetLuns, list_luns, open_lun
from relvmoiscsi.iscsi.names import Credentials, Initiator
from relvmoiscsi.iscsi.target_sessions import Targets, discover
from relvmoiscsi.portal import Portal
from relvmoiscsi.sr_driver.iscsi.iscsi_config import Chap, IscsiConfig
from relvmoiscsi.sr_types import MOST_LUNS

log = logging.getLogger(__name__)

Found = TypeVar("Found")


class Access(NamedTuple):
    """The parameters of a session, with resolved secrets."""

    config: IscsiConfig
    portals: Tuple[Portal, ...]
    initiators: Tuple[Initiator, ...]  #: one initiator for each network interface, in the order to try
    credentials: Credentials

    def to(self, target_iqn: str, portals: Tuple[Portal, ...]) -> "Access":
        """Return the access to another target, with the same secrets."""
        config = copy(self.config)
        config.target_iqn = target_iqn
        return self._replace(config=config, portals=portals)

    def discovered(self, deadline: Deadline, portals: Optional[Sequence[Portal]] = None) -> Targets:
        """Return the targets that the portals offer, and the portals of each. Raises NotFound, Refused, OutOfTime."""
        asked = self.portals if portals is None else portals
        return self.in_turn(lambda initiator: discover(asked, initiator, self.credentials, deadline))

    def luns(self, deadline: Deadline) -> TargetLuns:
        """Return the first MOST_LUNS LUNs behind the target. Raises NotFound, Refused, OutOfTime."""
        iqn = self.config.target_iqn
        return self.in_turn(lambda one: list_luns(self.portals, iqn, one, deadline, self.credentials, most=MOST_LUNS))

    def in_turn(self, try_by: Callable[[Initiator], Found]) -> Found:
        """Return the result of `try_by` with the first present interface through which a portal answers.

        Raises the error of the last interface. If an offload card of this host has the session, the error says what to
        do.
        """
        for initiator in self.initiators:
            try:
                return try_by(initiator)
            except (NotFound, Refused) as failure:
                if failure.sm_key not in ("ISCSITarget", "ISCSIInitiator"):
                    raise
                if initiator is self.initiators[-1]:
                    from relvmoiscsi.host.iscsi_sessions import offload_hint  # noqa: PLC0415 - a failed login needs it

                    failure.advising(offload_hint(self.config.target_iqn, THIS_HOST))
                    raise
                log.info("through %s: %s", initiator.interface, failure)
        raise AssertionError("there is an initiator")

    @contextmanager
    def lun(
        self, named: LunName, writable: bool, deadline: Deadline, scsi_id: Optional[str] = None
    ) -> Iterator[LunDevice]:
        """Open a LUN by its SCSIid or number for the block. A LUN given by number must have `scsi_id`, if given."""
        with ExitStack() as held:

            def open_by(initiator: Initiator) -> LunDevice:
                iqn = self.config.target_iqn
                session = open_lun(self.portals, iqn, initiator, named, writable, deadline, self.credentials, scsi_id)
                return held.enter_context(session)

            yield self.in_turn(open_by)


def access_of(config: IscsiConfig, host: Mapping[str, Any], xapi: Xapi, hide: Callable[[str], None]) -> Access:
    """Return the access to the targets of a device-config. `host` is xapi's record of this host.

    Read passwords from xapi and pass each to `hide` at once. Raises Refused (ConfigISCSIIQNMissing) if this host has no
    initiator name. Raises UsageError for half a pair of user and password. Raises XapiFailure.
    """
    user, secret = _credentials(config.chap, xapi, hide)
    incoming_user, incoming_secret = _credentials(config.incoming_chap, xapi, hide)
    name = config.local_iqn or host.get("other_config", {}).get("iscsi_iqn") or host.get("iscsi_iqn")
    if not name:
        problem = "This host has no iSCSI initiator name: xapi has none for it."
        raise Refused(problem, "ConfigISCSIIQNMissing").advising("Set the IQN of the host.")
    return Access(
        config=config,
        portals=config.portals,
        initiators=tuple(Initiator(str(name), host["uuid"], interface) for interface in interfaces(THIS_HOST)),
        credentials=Credentials(user, secret, incoming_user, incoming_secret),
    )


def _credentials(chap: Optional[Chap], xapi: Xapi, hide: Callable[[str], None]) -> Tuple[str, str]:
    if chap is None:
        return "", ""
    password = xapi.secret(chap.password) if chap.is_secret_uuid else chap.password
    hide(password)
    return chap.user, password


# --- network interfaces

DIRECTORIES = ("etc/iscsi/ifaces", "var/lib/iscsi/ifaces")
PREFIX = "c_"
_UNSET = ("", "<empty>", "default")


def interfaces(host: Host) -> List[str]:
    """Return network interfaces ("eth1") or source addresses in the order to try; [""] if any interface will do.

    The iface of an offload card has none. A hardware address wins.
    """
    found = []
    for path in [path for one in DIRECTORIES for path in matching(host.at(one), PREFIX + "*")]:
        pairs = [line.partition("=") for line in lines_of(path) if not line.startswith("#")]
        values = {name.strip(): value.strip() for name, is_set, value in pairs if is_set}
        hardware = values.get("iface.hwaddress", "")
        if values.get("iface.transport_name", "tcp") != "tcp":
            continue
        if hardware not in _UNSET:
            addresses = matching(host.at("sys/class/net"), "*/address")
            having = [one for one in addresses if attribute(one).lower() == hardware.lower()]
            found += [os.path.basename(os.path.dirname(one)) for one in having[:1]]
            continue
        named = (values.get(name, "") for name in ("iface.net_ifacename", "iface.ipaddress"))
        found += [name for name in named if name not in _UNSET][:1]
    return list(dict.fromkeys(found)) or [""]
