# SPDX-License-Identifier: LGPL-2.1-only
"""One SR on every host of the pool: PBDs, plugged on the master first; a host that is down is passed over and told."""

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.pool.calls import Calls, PoolFailure
from relvmoiscsi.pool.records import Pool

PLUGGED, DOWN = "plugged", "down"
MEMBER_SECONDS = 600.0  #: for a host that is not the master to plug it; a hung path may take for ever
_AWAY = ("HOST_OFFLINE", "HOST_NOT_LIVE")


class HostPlan(NamedTuple):
    """What there is to do for an SR on a host."""

    host: str  #: reference
    name: str
    pbd: str = ""  #: reference of the PBD there is; "" for one that is to be created
    is_plugged: bool = False
    is_down: bool = False  #: and the SR is not plugged there: left for a later run

    @property
    def creates(self) -> bool:
        """Is a PBD to be created? xapi takes it for a host that is down as well."""
        return not self.pbd

    @property
    def plugs(self) -> bool:
        return not (self.is_plugged or self.is_down)


def planned(pool: Pool, sr: Optional[str]) -> List[HostPlan]:
    """What there is to do for an SR on each host, the master first; for None, which no host has yet. Pure."""
    pbds = pool.pbds_of(sr) if sr is not None else {}
    found = []
    for host in pool.hosts_in_order():
        ref, is_plugged = (pbds[host][0], bool(pbds[host][1]["currently_attached"])) if host in pbds else ("", False)
        is_down = not (is_plugged or pool.live[host] or host == pool.master)
        found.append(HostPlan(host, pool.host_name(host), ref, is_plugged, is_down))
    return found


def plug_everywhere(
    calls: Calls, pool: Pool, sr: str, config: Mapping[str, str], plans: Sequence[HostPlan]
) -> Dict[str, str]:
    """How an SR is on the hosts when these plans are done, by name: PLUGGED, DOWN, or why it is not plugged.

    Raises PoolFailure when the master's PBD is not plugged.
    """
    there = pool.pbds_of(sr)
    alike = next((pbd["device_config"] for _, pbd in there.values()), config)  # as on the other hosts, if on any
    pbds = {each.host: each.pbd or _pbd(calls, sr, each.host, alike) for each in plans}
    states: Dict[str, str] = {}
    waiting: List[Tuple[str, str]] = []
    for each in plans:
        states[each.name] = DOWN if each.is_down else PLUGGED
        if each.plugs and each.host == pool.master:
            calls.run("PBD.plug", pbds[each.host])
        elif each.plugs:
            waiting.append((each.name, calls.start("PBD.plug", pbds[each.host])))
    for name, task in waiting:
        states[name] = _plugged(calls, task)
    return states


def _plugged(calls: Calls, task: str) -> str:
    try:
        calls.finish("PBD.plug", task, MEMBER_SECONDS)
    except PoolFailure as failure:
        return DOWN if failure.code in _AWAY else str(failure)
    return PLUGGED


def _pbd(calls: Calls, sr: str, host: str, config: Mapping[str, str]) -> str:
    try:
        return str(calls.call("PBD.create", {"host": host, "SR": sr, "device_config": dict(config)}))
    except PoolFailure as failure:
        if failure.code != "PBD_EXISTS":
            raise
        return failure.description[3]  # to plug one that is plugged does nothing
