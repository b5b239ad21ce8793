# SPDX-License-Identifier: LGPL-2.1-only
"""The device-config of an iSCSI call: checked, with lvmoiscsi's keys and their meaning.

All other keys are ignored: orchestrators send `resign`, `usediscoverynumber` and `LUNid`, and xapi adds keys.

relvmoiscsi adds `chapsecret` and `incoming_chapsecret`: the UUID of a Secret, as in `chappassword_secret`. xapi copies
the Secret of a key that ends in `password_secret` for each host before it calls the driver. SR.create of type
relvmoiscsi would leave these copies behind, with the password. Source: xen-api ocaml/xapi/xapi_secret.ml,
duplicate_passwds.
"""

import re
from typing import Mapping, NamedTuple, Optional, Tuple

from relvmoiscsi.errors import UsageError
from relvmoiscsi.portal import DEFAULT_PORT, Portal
from relvmoiscsi.sr_driver.transport import CallRequest, clear_databases_in, clone_of_in, scsi_id_in, vdi_in, vdis_in

ANY_IQN = "*"
_IQN = re.compile(r"(?:iqn\.|eui\.|naa\.)[!-.0-~]{1,219}\Z")  # printable, no slash: the IQN is a part of paths
_PORT = re.compile(r"[0-9]{1,5}\Z")  # int() accepts more than digits


class SecretKey(NamedTuple):
    """A password from the device-config: the password itself, or the UUID of a xapi Secret that holds it."""

    value: str
    is_secret_uuid: bool


class Chap(NamedTuple):
    """One direction of a CHAP login, as given: the user or the password may be empty (`Credentials` refuses that)."""

    user: str
    password: SecretKey


class _Keys(NamedTuple):
    target: str  #: as in the device-config
    portals: Tuple[Portal, ...]  #: in the order to try; the portals of `target` come first
    target_iqn: str  #: "" if the key is missing
    scsi_id: str  #: "" if the key is missing
    chap: Optional[Chap]
    incoming_chap: Optional[Chap]
    local_iqn: Optional[str]
    is_master: bool
    vdis: Optional[str] = None  #: "one" or "all"; None: the setting of the host
    vdi: Optional[str] = None  #: UUID of the VDI that stays, if several VDIs are live
    clone_of: str = ""  #: UUID of the SR of which the LUN is a clone, attached or not; "" if the key is missing
    clear_databases: bool = False  #: no VDI keeps the database of a pool


class IscsiConfig(_Keys, CallRequest):
    """The device-config of a call."""

    __slots__ = ()


def parse_config(device_config: Mapping[str, str]) -> IscsiConfig:
    """Check a device-config.

    Raises UsageError with lvmoiscsi's error keys: ConfigTargetMissing (95), ISCSIPort (142). An invalid value has the
    same key as a missing value.
    """
    target = device_config.get("target", "").strip()
    if not target:
        raise UsageError("The target (device-config:target) is missing.", "ConfigTargetMissing")
    iqn = device_config.get("targetIQN", "").strip()
    if iqn and iqn != ANY_IQN and not _IQN.match(iqn):
        raise UsageError(f"{iqn!r} is no IQN (device-config:targetIQN).", "ConfigTargetIQNMissing")
    scsi_id = scsi_id_in(device_config)
    port = _port(device_config.get("port", ""))
    return IscsiConfig(
        target=target,
        portals=tuple(dict.fromkeys(_portals(target, port) + _further_portals(device_config, iqn))),
        target_iqn="" if iqn == ANY_IQN else iqn,
        scsi_id=scsi_id,
        chap=_chap(device_config, "chap"),
        incoming_chap=_chap(device_config, "incoming_chap"),
        local_iqn=device_config.get("localIQN", "").strip() or None,
        is_master=device_config.get("SRmaster", "") != "false",
        vdis=vdis_in(device_config),
        vdi=vdi_in(device_config),
        clone_of=clone_of_in(device_config),
        clear_databases=clear_databases_in(device_config),
    )


def _port(text: str) -> int:
    if not text.strip():
        return DEFAULT_PORT
    if not _PORT.match(text.strip()) or not 0 < int(text) < 65536:
        raise UsageError(f"{text!r} is no port (device-config:port).", "ISCSIPort")
    return int(text)


def _portals(target: str, port: int) -> Tuple[Portal, ...]:
    """Parse a comma-separated list of addresses; an IPv6 address may be in brackets."""
    addresses = [part.strip().strip("[]") for part in target.split(",")]
    portals = tuple(Portal(address, port) for address in addresses if address)
    if not portals:
        raise UsageError(f"{target!r} names no target (device-config:target).", "ConfigTargetMissing")
    return portals


def _further_portals(config: Mapping[str, str], iqn: str) -> Tuple[Portal, ...]:
    """Return portals that SM has found: multihomelist "ip:port,ip:port", multiSession "ip,port,iqn|ip,port,iqn|".

    An item that is no portal is ignored: `target` alone suffices.
    """
    found = [item.strip().rpartition(":")[::2] for item in config.get("multihomelist", "").split(",")]
    for item in config.get("multiSession", "").split("|"):
        address, _, rest = item.strip().partition(",")
        port, _, name = rest.partition(",")
        if name == iqn:
            found.append((address, port))
    return tuple(
        Portal(address.strip("[]"), int(port))
        for address, port in found
        if address and _PORT.match(port) and 0 < int(port) < 65536
    )


def _chap(config: Mapping[str, str], name: str) -> Optional[Chap]:
    user, password = config.get(name + "user", ""), config.get(name + "password", "")
    secret = config.get(name + "password_secret", "") or config.get(name + "secret", "")
    if not (user or password or secret):
        return None
    return Chap(user, SecretKey(secret, True) if secret else SecretKey(password, False))
