# SPDX-License-Identifier: LGPL-2.1-only
"""One SR on every host of the pool: PBDs, plugged on the master first; a host that is down is passed over and told."""

from typing import Dict, List, Mapping, NamedTuple, Tuple

from relvmoiscsi.pool.calls import Calls, PoolFailure
from relvmoiscsi.pool.records import Pool

PLUGGED, DOWN = "plugged", "down"
MEMBER_SECONDS = 600.0  #: for a host that is not the master to plug it; a hung path may take for ever
_AWAY = ("HOST_OFFLINE", "HOST_NOT_LIVE")


class OnHosts(NamedTuple):
    """How an SR is on the hosts."""

    hosts: Dict[str, str]  #: by name: PLUGGED, DOWN, or why it is not plugged
    changed: bool

    @property
    def is_everywhere(self) -> bool:
        return all(state == PLUGGED for state in self.hosts.values())


def plug_everywhere(calls: Calls, pool: Pool, sr: str, config: Mapping[str, str]) -> OnHosts:
    """A PBD on each host, and all of them plugged. Raises PoolFailure when the master's is not."""
    pbds, created = _pbds(calls, pool, sr, config)
    states: Dict[str, str] = {}
    waiting: List[Tuple[str, str]] = []
    changed = created
    for host in pool.hosts_in_order():
        pbd, is_plugged = pbds[host]
        changed = changed or not is_plugged
        if is_plugged:
            states[pool.host_name(host)] = PLUGGED
        elif host == pool.master:
            calls.run("PBD.plug", pbd)
            states[pool.host_name(host)] = PLUGGED
        elif not pool.live[host]:
            states[pool.host_name(host)] = DOWN
        else:
            states[pool.host_name(host)] = ""
            waiting.append((pool.host_name(host), calls.start("PBD.plug", pbd)))
    for name, task in waiting:
        states[name] = _plugged(calls, task)
    return OnHosts(states, changed)


def _plugged(calls: Calls, task: str) -> str:
    try:
        calls.finish("PBD.plug", task, MEMBER_SECONDS)
    except PoolFailure as failure:
        return DOWN if failure.code in _AWAY else str(failure)
    return PLUGGED


def _pbds(calls: Calls, pool: Pool, sr: str, config: Mapping[str, str]) -> Tuple[Dict[str, Tuple[str, bool]], bool]:
    """((reference, is plugged) by host, whether any was created). Raises PoolFailure."""
    there = pool.pbds_of(sr)
    found = {host: (ref, bool(pbd["currently_attached"])) for host, (ref, pbd) in there.items()}
    missing = [host for host in pool.hosts_in_order() if host not in found]
    alike = next((pbd["device_config"] for _, pbd in there.values()), config)  # as on the other hosts, if on any
    for host in missing:
        found[host] = _pbd(calls, {"host": host, "SR": sr, "device_config": dict(alike)})
    return found, bool(missing)


def _pbd(calls: Calls, record: Mapping[str, object]) -> Tuple[str, bool]:
    try:
        return str(calls.call("PBD.create", record)), False
    except PoolFailure as failure:
        if failure.code != "PBD_EXISTS":
            raise
        return failure.description[3], False  # to plug one that is plugged does nothing
