# SPDX-License-Identifier: LGPL-2.1-only
"""Plug one SR on every host of the pool, the master first. A host that is down is skipped and named.

A host with an iSCSI session to the target does not find a LUN that the array mapped later. The storage manager logs in
for a plug, and does not scan an existing session. So before the plug, the host plugin of each host adds this one LUN to
the sessions of its host. The host then sees no other new LUN of the target.

Some plugins cannot add LUNs. Then the client asks the host for the storage manager's list of LUNs: SR.probe without
SCSIid, which fails with the list. The list scans the session for all LUNs. The client asks only hosts with an SR's
session. On a host without a session the plug logs in, and the list would end a session that a person has opened there.
Source: sm BaseISCSI.py attach and detach, iscsilib.py refresh_luns, LVHDoISCSISR.py _LUNprint, create_iscsi_sessions.
"""

import threading
from contextlib import suppress
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from relvmoiscsi import untrusted
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.host.xapi.api import AWAY
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone
from relvmoiscsi.pool.lun_answers import SCSI_ID_MISSING
from relvmoiscsi.pool.luns import PoolLun
from relvmoiscsi.pool.records import HostPlan, Pool, portal_of

PLUGGED, DOWN = "plugged", "down"
PLUGIN, ADD_LUN = "relvmoiscsi", "add_lun"
MEMBER_SECONDS = 600.0  #: time limit for parallel tasks on members; a plug or unplug on a dead path may hang


class Sessions:
    """The iSCSI sessions of the pool's hosts in one run, and which sessions were scanned for new LUNs.

    Every LUN of a target in this run has its new identities before a host plugs the first SR. So one scan per session
    is enough.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool, self._lock = pool, threading.Lock()
        self._scanned: Set[Tuple[str, str]] = set()  #: (host, IQN)
        self._without_plugin: Set[str] = set()  #: hosts whose plugin cannot add LUNs, or may not be called

    def show(self, calls: Calls, hosts: Sequence[str], config: Mapping[str, str], number: Optional[int]) -> None:
        """Make the hosts with a session to the target show the LUN of this device-config.

        `number` is the kernel's number of the LUN; None where the number is unknown. Raises PoolGone.
        """
        iqn, shown = config.get("targetIQN", ""), set()
        if number is not None and iqn and "*" not in iqn:
            words = (PLUGIN, ADD_LUN, {"iqn": iqn, "scsi_id": config.get("SCSIid", ""), "number": str(number)})
            asked = {host: (host, *words) for host in hosts if host not in self._without_plugin}
            for host, answer in _answers(calls, "host.call_plugin", asked).items():
                try:
                    if not untrusted.texts_of(untrusted.object_of(answer).get("problems")):
                        shown.add(host)  # every session to the IQN shows the LUN, or no session exists
                except ValueError:  # an answer such as that of an earlier version
                    self._without_plugin.add(host)
        self.scan(calls, [host for host in hosts if host not in shown], config)

    def scan(self, calls: Calls, hosts: Sequence[str], config: Mapping[str, str]) -> None:
        """Scan the target's session on each host that has such a session.

        A host that gives no list is ignored: the error of its plug says more. Raises PoolGone.
        """
        portal = portal_of(config)
        with self._lock:  # another LUN of the target waits for the list
            wanted = [host for host in hosts if (host, portal.iqn) not in self._scanned]
            attached = [pbd for pbd in self._pool.pbds.values() if pbd["currently_attached"]]
            used = {pbd["host"] for pbd in attached if portal.iqn in _iqns(pbd["device_config"])}
            words: Tuple[object, ...] = (portal.config(), portal.sr_type.stock, {})
            asked = {host: (host, *words) for host in wanted if host in used}
            _answers(calls, "SR.probe", asked)  # the probe "fails" with the list
            self._scanned.update((host, portal.iqn) for host in wanted)


def _iqns(config: Mapping[str, str]) -> Set[str]:
    """Return the IQNs to which the storage manager logs in for a PBD with this device-config.

    For the IQN "*", the storage manager notes the sessions at the first plug: "address,port,IQN|...". An IQN outside
    the note may belong to another array, where a person has opened the session of this host.
    """
    iqn = portal_of(config).iqn
    if "*" not in iqn:
        return {iqn} - {""}
    noted = (session.split(",") for session in config.get("multiSession", "").split("|"))
    return {words[2] for words in noted if len(words) > 2}


def _answers(calls: Calls, method: str, arguments: Mapping[str, Sequence[object]]) -> Dict[str, str]:
    """Call the method with the arguments of each host, all at once. Return the results by host; "" for an error."""
    answers, tasks = dict.fromkeys(arguments, ""), {}
    for host, words in arguments.items():
        with suppress(PoolFailure):
            tasks[host] = calls.start(method, *words)
    deadline = Deadline(MEMBER_SECONDS)
    for host, task in tasks.items():
        with suppress(PoolFailure):
            answers[host] = calls.wait(method, task, deadline)
    return answers


def plug_everywhere(
    calls: Calls, pool: Pool, sr: str, lun: PoolLun, plans: Sequence[HostPlan], sessions: Sessions
) -> Dict[str, str]:
    """Plug the SR as planned. Return by host name: PLUGGED, DOWN, or the error of the plug.

    Raises PoolFailure when the master does not plug the PBD.
    """
    config = lun.portal.config(lun.scsi_id)
    there = pool.pbds_of(sr)
    alike = next((pbd["device_config"] for _, pbd in there.values()), config)  # as the other hosts' PBDs
    pbds = {each.host: each.pbd for each in plans}
    for host in [each.host for each in plans if each.creates]:
        try:
            pbds[host] = str(calls.call("PBD.create", {"host": host, "SR": sr, "device_config": dict(alike)}))
        except PoolFailure as failure:
            if failure.code != "PBD_EXISTS":
                raise
            pbds[host] = failure.description[3]  # plugging a plugged PBD does nothing
    sessions.show(calls, [each.host for each in plans if each.plugs], config, lun.number)
    states: Dict[str, str] = {}
    waiting: List[Tuple[str, str]] = []
    for each in plans:
        states[each.name] = DOWN if each.is_down else PLUGGED
        if each.plugs and each.host == pool.master:
            try:
                calls.wait("PBD.plug", calls.start("PBD.plug", pbds[each.host]), Deadline(MEMBER_SECONDS))
            except PoolFailure as failure:
                raise _explained(failure, config) from failure
        elif each.plugs:
            waiting.append((each.name, calls.start("PBD.plug", pbds[each.host])))
    deadline = Deadline(MEMBER_SECONDS)
    for name, task in waiting:
        try:
            calls.wait("PBD.plug", task, deadline)
        except PoolGone as gone:  # so that the result names the SR and the other hosts
            states[name] = str(gone)
        except PoolFailure as failure:
            states[name] = DOWN if failure.code in AWAY else str(_explained(failure, config))
    return states


def _explained(failure: PoolFailure, config: Mapping[str, str]) -> PoolFailure:
    """Return a clearer error for the storage manager's "The SCSIid parameter is missing or incorrect"."""
    if failure.code != SCSI_ID_MISSING:
        return failure
    return PoolFailure(
        "PBD.plug: the host does not see the LUN {} behind {}. The array may not map the LUN to this host, or "
        "the host's iSCSI session may be older than the mapping.".format(
            config.get("SCSIid", ""), config.get("targetIQN", "")
        ),
        failure.description,
    ).advising(
        "Map the LUN to every host, and run `iscsiadm -m session --rescan` on this host. Then repeat the command."
    )
