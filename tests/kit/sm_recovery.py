# SPDX-License-Identifier: LGPL-2.1-only
"""What the storage manager itself would make of its unfinished work on a LUN: which volumes there would be after it.

The model is a judge. It follows sm 3.2.12 (`_undoAllJournals`: inflate, jvhd, clone, leaf), works on what the tests'
own reader sees, and writes nothing. An LV may get another name, and keeps its contents. `found` says where on the
unchanged LUN the data of a volume lies. So `Recovery.guest` is what a guest must read afterwards.
"""

import re
from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Tuple

from .chains import Flat, flatten
from .reader import UUID, Journal, Sr, Vhd, kind_of, read_sr
from .sparse import SparseDisk


class Impossible(Exception):
    """The storage manager would fail as well, or restore what must not come back."""


class Volume(NamedTuple):
    """A volume that a VDI lives in, as it should be after the recovery."""

    found: str  #: the LV's name on the LUN as it was found
    hidden: bool
    writable: bool


class Recovery(NamedTuple):
    volumes: Dict[str, Volume]  #: by LV name
    done: Tuple[str, ...]  #: what was done about each journal, in order
    introduced: FrozenSet[str]  #: UUIDs of VDIs that get an MGT record
    disk: SparseDisk  #: as found
    parents: Dict[str, str]  #: LV name to the LV name of its parent, where it has one
    grown: FrozenSet[str]  #: LV names, as found, whose last sector is not theirs yet

    @property
    def leaves(self) -> List[str]:
        """LV names of what a VM or a person may use."""
        return [name for name, volume in self.volumes.items() if not volume.hidden and "OLD_" not in name]

    @property
    def garbage(self) -> List[str]:
        """LV names of what the garbage collector will remove: old leaves, hidden volumes that nobody needs."""
        found: List[str] = []
        while True:
            needed = {parent for name, parent in self.parents.items() if name not in found}
            more = [
                name
                for name, volume in self.volumes.items()
                if name not in found and name not in needed and (volume.hidden or "OLD_" in name)
            ]
            if not more:
                return found
            found.extend(more)

    def guest(self, name: str) -> Flat:
        """What a guest reads through a volume after the recovery. Raises ChainError."""
        return flatten(self.disk, name, {now: volume.found for now, volume in self.volumes.items()}, self.grown)


def recovery(disk: SparseDisk) -> Recovery:
    """The outcome of the storage manager's own recovery of the SR on `disk`. Raises Impossible."""
    sr = read_sr(disk)
    assert sr is not None, f"there is no SR on {disk.name}"
    state = _State(sr)
    for kind, act in (("inflate", _inflate), ("jvhd", _jvhd), ("clone", _clone), ("leaf", _leaf)):
        for journal in _journals(sr, kind):
            act(state, journal)
    state.done += [f"{name} removed" for name in sr.others if name == sr.uuid + "_trim_lv"]  # trim_util.py, do_trim
    state.must_scan()
    parents = {name: state.vhd(name).parent[1] for name in state.volumes if kind_of(name) == "vhd"}
    return Recovery(
        state.volumes,
        tuple(state.done),
        frozenset(state.introduced),
        disk,
        {name: parent for name, parent in parents.items() if parent},
        frozenset(state.grown),
    )


def _journals(sr: Sr, kind: str) -> Iterator[Journal]:
    if kind == "jvhd":
        for name in sr.others:
            if name.startswith("jvhd_"):
                yield Journal(name, "jvhd", name[5:], "", False)
    for journal in sr.journals:
        if journal.type == kind:
            yield journal


class _State:
    """The volumes while they are renamed, removed and marked."""

    def __init__(self, sr: Sr) -> None:
        self.sr = sr
        self.volumes: Dict[str, Volume] = {}
        self.done: List[str] = []
        self.introduced: List[str] = []
        self.grown: List[str] = []
        hidden = {vhd.name: bool(vhd.hidden) for vhd in sr.vhds}
        for lv in sr.vg.lvs:
            if kind_of(lv.name) in ("vhd", "raw", "qcow2"):
                is_hidden = hidden.get(lv.name, "hidden" in lv.tags)
                self.volumes[lv.name] = Volume(lv.name, is_hidden, "WRITE" in lv.status)

    def of(self, vdi: str) -> str:
        """The LV of a VDI; empty: it has none."""
        found = [name for name in ("VHD-" + vdi, "LV-" + vdi) if name in self.volumes]
        return found[0] if found else ""

    def vhd(self, name: str) -> Vhd:
        return self.sr.vhd(self.volumes[name].found)

    def rename(self, old: str, vdi: str) -> str:
        new = re.sub(UUID + "$", vdi, old).replace("OLD_", "")
        self.volumes[new] = self.volumes.pop(old)
        return new

    def mark(self, name: str, hidden: bool, writable: bool) -> None:
        self.volumes[name] = self.volumes[name]._replace(hidden=hidden, writable=writable)

    def scans(self, name: str) -> bool:
        """Whether `vhd-util scan` takes the volume for a VHD: the footer at its start and the header."""
        if kind_of(name) != "vhd":
            return True
        bad = ("footer at its start is bad", "header is bad")
        return not any(word in problem for word in bad for problem in self.vhd(name).problems)

    def checks(self, name: str) -> bool:
        """Whether `vhd-util check` is content: both footers valid and equal, its parent there and the right one."""
        vhd = self.vhd(name)
        if vhd.problems or vhd.end != "same":
            return False
        parent = vhd.parent[1]
        if not parent:
            return True
        there = parent in self.volumes and self.scans(parent)
        return there and vhd.prt_uuid == (self.vhd(parent).uuid if kind_of(parent) == "vhd" else "")

    def is_leaf_of(self, name: str, base: str) -> bool:
        """Whether a leaf is whole and was made of a base, or of what an empty base was made of.

        sm does not ask for the second. But lvcreate does not wipe: what it would take for the leaf then may be what a
        deleted VDI left in those extents.
        """
        above = self.of(base)
        grand = self.vhd(above).parent[1] if kind_of(above) == "vhd" else ""
        return self.checks(name) and self.vhd(name).parent[1] in (above, grand or above)

    def must_scan(self) -> None:
        for name in self.volumes:
            if not self.scans(name):
                raise Impossible(f"{name} holds no VHD, and every scan fails")
            if kind_of(name) == "vhd" and (self.vhd(name).poisoned or self.vhd(name).end == "poisoned"):
                raise Impossible(f"{name} is being resized")


def _inflate(state: _State, journal: Journal) -> None:
    """The volume goes back to its old size, if it is there, with a footer of its own at the end."""
    if state.of(journal.uuid):
        state.grown.append(state.volumes[state.of(journal.uuid)].found)
    state.done.append("{}: {}".format(journal.name, "deflated" if state.of(journal.uuid) else "nothing to do"))


def _jvhd(state: _State, journal: Journal) -> None:
    raise Impossible(f"{journal.name} would bring back the old header of {journal.uuid}")


def _clone(state: _State, journal: Journal) -> None:
    orig = journal.uuid
    match = re.match(f"({UUID})_({UUID})?$", journal.value)
    if match is None:
        _unwritten(state, journal)
        return
    base, clone = match.group(1), match.group(2) or ""
    if not state.of(base):
        if not state.of(orig):
            raise Impossible(f"neither the base {base} nor the original {orig} is there")
        state.done.append(f"{journal.name}: nothing to do")
        return
    leaves = [state.of(leaf) for leaf in (orig, clone) if leaf]
    if all(leaf and state.scans(leaf) for leaf in leaves) and all(state.is_leaf_of(leaf, base) for leaf in leaves):
        state.mark(state.of(base), hidden=True, writable=False)
        state.introduced.extend(leaf for leaf in (clone, base) if leaf)
        state.done.append(f"{journal.name}: completed")
        return
    for leaf in leaves:
        if leaf:
            del state.volumes[leaf]
    state.mark(state.of(base), hidden=False, writable=True)
    state.rename(state.of(base), orig)
    state.done.append(f"{journal.name}: undone")


def _unwritten(state: _State, journal: Journal) -> None:
    """sm makes the journal's volume and then writes into it; before that it does nothing else.

    Cut between the two, sm itself needs a person to remove the journal.
    """
    if not state.of(journal.uuid):
        raise Impossible(f"{journal.name} does not say what it is for")
    state.done.append(f"{journal.name}: nothing to do")


def _leaf(state: _State, journal: Journal) -> None:
    child, parent = journal.uuid, journal.value
    if not re.match(UUID + "$", parent):
        _unwritten(state, journal)
        return
    old = "VHD-OLD_" + child
    if not state.of(parent) and old not in state.volumes:
        if not state.of(child):
            raise Impossible(f"neither {child} nor {parent} is there")
        state.done.append(f"{journal.name}: finished")
        return
    if not state.of(parent):
        state.rename(state.of(child), parent)
    if not state.of(child):
        if old not in state.volumes:
            raise Impossible(f"neither {child} nor {old} is there")
        state.rename(old, child)
    state.mark(state.of(parent), hidden=True, writable=False)
    volume = state.volumes[state.of(child)]
    state.mark(state.of(child), hidden=False, writable=volume.writable)
    state.done.append(f"{journal.name}: undone")
