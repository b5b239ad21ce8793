# SPDX-License-Identifier: LGPL-2.1-only
"""Who else has the disks of a copy of a VM, as of now: of two runs at once one copy stays.

Whoever finds a copy that is done before its own last mark destroys its own; so does whoever finds after its last mark
one of an older run, done or not. A run's VM is there before it looks for others, and it looks after its last mark, so
one of two that have marked theirs sees the other; and the older one gives way only as long as its own is not done. One
of an older run that is not done is awaited; where nothing comes of it the younger one gives way all the same, and says
so. Nor does a copy stay whose disk somebody else's VM has got meanwhile.
"""

import time
from typing import Dict, List, NamedTuple, Sequence, Tuple, Union

from relvmoiscsi.errors import Refused
from relvmoiscsi.pool.calls import Calls, PoolFailure, Record, passing
from relvmoiscsi.pool.records import RUN
from relvmoiscsi.pool.vms import inventory, ova
from relvmoiscsi.pool.vms.cloned import ALREADY, FAILED, MADE, Cloned
from relvmoiscsi.pool.vms.destroying import BY_HAND, destroy_own, destroyed_again
from relvmoiscsi.pool.vms.inventory import COPY_OF, ON_SR, Copy


class User(NamedTuple):
    """Another VM that has a disk of a copy, as of now."""

    userdevice: str  #: of the copy's disk
    ref: str
    vm: Record

    @property
    def age(self) -> Tuple[str, str]:
        """The older run has the smaller."""
        return self.vm["other_config"].get(RUN, ""), str(self.vm["uuid"])


def users_of(calls: Calls, copy: Copy, vm: str, disks: Sequence[ova.Disk]) -> List[User]:
    """The other VMs that have disks of the copy `vm`, the oldest first, as of now; snapshots never run."""
    found: Dict[str, User] = {}
    for disk in disks:
        for vbd in calls.call("VDI.get_VBDs", copy.by_uuid[disk.new]):
            with passing("HANDLE_INVALID"):  # it was taken off just now
                ref = str(calls.call("VBD.get_VM", vbd))
                if ref not in (vm, *found):
                    found[ref] = User(disk.userdevice, ref, calls.call("VM.get_record", ref))
    return sorted((user for user in found.values() if not user.vm["is_a_snapshot"]), key=lambda user: user.age)


def taken_by_others(copy: Copy, users: Sequence[User]) -> str:
    """Who has one of the disks and is no copy; "" where nobody does. Copies share what their originals share."""
    for user in users:
        if not _is_of(copy, user.vm):
            return f"its disk {user.userdevice} is a disk of the VM {user.vm['name_label']!r} meanwhile"
    return ""


def _is_of(copy: Copy, vm: Record) -> bool:
    config = vm["other_config"]
    return COPY_OF in config and config.get(ON_SR) == copy.uuid and (inventory.is_own(vm) or inventory.is_half(vm))


def of_same(copy: Copy, users: Sequence[User], original: str) -> List[User]:
    """Those that are copies of the same VM, done or half."""
    return [user for user in users if _is_of(copy, user.vm) and user.vm["other_config"][COPY_OF] == original]


def without_twins(calls: Calls, copy: Copy, results: Sequence[Cloned], run: str, patience: float) -> List[Cloned]:
    """What is made stays where nobody else has its disks, and no older run has made a copy. What is half is told."""
    return [_looked_at(calls, copy, each, run, patience) if each.status == MADE else each for each in results]


def _looked_at(calls: Calls, copy: Copy, mine: Cloned, run: str, patience: float) -> Cloned:
    try:
        return _without_twin(calls, copy, mine, run, patience)
    except PoolFailure as failure:
        return mine.noted(f"whether another run has made one too could not be seen: {failure}")


def _without_twin(calls: Calls, copy: Copy, mine: Cloned, run: str, patience: float) -> Cloned:
    ref = str(calls.call("VM.get_by_uuid", mine.uuid))
    own = User("", ref, calls.call("VM.get_record", ref)).age
    end = time.monotonic() + patience
    while True:
        users = users_of(calls, copy, ref, mine.disks)
        taken = taken_by_others(copy, users)
        if taken:
            return _given_way(calls, copy, mine, ref, run, destroyed_again(mine.vm_name, taken))
        twins = of_same(copy, users, mine.vm)
        older = [user.vm for user in twins if user.age < own]
        done = [vm for vm in older if inventory.is_own(vm)]
        if done:
            return _given_way(calls, copy, mine, ref, run, done[0])
        if not older:
            return mine._replace(notes=[*mine.notes, *_twin_notes([user.vm for user in twins])])
        left = end - time.monotonic()
        if left <= 0:
            return _given_way(calls, copy, mine, ref, run, _is_at_work(mine.vm_name, older[0]))
        time.sleep(min(1.0, left))  # whoever makes it is about to finish it, or to give way


def _given_way(calls: Calls, copy: Copy, mine: Cloned, ref: str, run: str, why: Union[Refused, Record]) -> Cloned:
    """One's own copy is destroyed, for another or because it must not be; where it is in use, it stays and that is
    told.
    """
    try:
        destroy_own(calls, ref, run, copy, mine.born)
    except Refused as error:
        notes = [str(why)] if isinstance(why, Refused) else _twin_notes([why])
        return mine._replace(notes=[*mine.notes, f"it stays: {error}", *notes])
    if isinstance(why, Refused):
        return Cloned(mine.vm, mine.vm_name, FAILED, error=why)
    return Cloned(mine.vm, mine.vm_name, ALREADY, str(why["name_label"]), str(why["uuid"]))


def _twin_notes(others: Sequence[Record]) -> List[str]:
    return [
        f"another run has made a copy too, {vm['name_label']!r} ({vm['uuid']})"
        if inventory.is_own(vm)
        else f"another run has left a copy half beside it, {vm['name_label']!r} ({vm['uuid']}): if no run is at work "
        f"and nobody uses it, {BY_HAND}"
        for vm in others
    ]


def _is_at_work(name: str, other: Record) -> Refused:
    return Refused(
        f"Another run makes a copy of {name!r} as well, {other['name_label']!r} ({other['uuid']}), and began first. "
        "The one of this run was destroyed again; run the same when that has ended, which finishes what it has left."
    )
