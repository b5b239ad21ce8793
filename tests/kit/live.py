# SPDX-License-Identifier: LGPL-2.1-only
"""LUNs in use, made anew: every state in which a snapshot by the array may catch an SR, and its guests' data.

    live = STATES["clone: after_second_snap"]()
    live.built          the LUN
    live.leaves         VDI key -> the volumes, leaf first, whose data a guest must read through it in the end
    live.verdict        finished: the storage manager's work is ended; carried: nothing is to do; refused

What the data should be is said here, volume by volume, and not taken from any reader. Sources: sm 3.2.12, `_snapshot`,
`_doCoalesceLeaf`, `inflate`; blktap, `vhd_kill_footer`, `vhd_write_footer`, `vhd_change_parent`.
"""

import uuid
from functools import lru_cache, partial
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from . import builder
from .build_volumes import MGT_CAPACITY, MIB, Record, noise, uuids_by_key
from .builder import AREA_DEFAULT, SMALL_BAT, BuiltSr, Volume, build_sr, cbtlog, journal, jvhd, named, raw, trim, vhd
from .chains import Flat, digest_of_sectors

SIZE = 16 * MIB
EXTENT = 4 * MIB
GONE = "0a0b0c0d-0000-4000-8000-000000000001"
HOST = "0a0b0c0d-0000-4000-8000-000000000077"

FINISHED, CARRIED, REFUSED = "finished", "carried", "refused"


class Live(NamedTuple):
    """A LUN in use and what is to become of it."""

    build: Callable[[], BuiltSr]  #: makes the LUN once; what a state is about is known without
    leaves: Dict[str, Tuple[str, ...]]
    verdict: str
    words: Tuple[str, ...] = ()  #: what has to be said of it: parts of a sentence, keys in braces stand for UUIDs
    kept: Tuple[str, ...] = ()  #: identities that stay: they are a heartbeat's host's, or noise

    @property
    def built(self) -> BuiltSr:
        return self.build()

    def uuid(self, key: str) -> str:
        return self.built.truth.uuids[key]

    def said(self) -> List[str]:
        """`words` with their UUIDs."""
        return [_filled(word, self.built.truth.uuids) for word in self.words]

    def guest(self, key: str) -> Flat:
        """What a guest must read through a leaf."""
        truth, chain = self.built.truth, self.leaves[key]
        return digest_of_sectors(truth.volume(chain[0]).virtual_size, truth.guest_sectors(*chain))


def _filled(text: str, uuids: Dict[str, str]) -> str:
    for key, value in uuids.items():
        text = text.replace("{" + key + "}", value)
    return text


# -- volumes --------------------------------------------------------------------------------------------------------


def disk(key: str, parent: str = "", sectors: Sequence[int] = (), **more: Any) -> Volume:
    """A small VHD whose guest has written these sectors."""
    writes = tuple((sector, key) for sector in sectors)
    more.setdefault("bat_entries", SMALL_BAT)
    more.setdefault("virtual_size", SIZE)
    more.setdefault("writes", writes)
    return vhd(key, parent, blocks=0, **more)


def unlisted(volume: Volume) -> Volume:
    """The volume without an MGT record."""
    return volume._replace(record=None)


def listed(volume: Volume, like: Volume) -> Volume:
    """The volume with the MGT record of another."""
    return volume._replace(record=like.record)


#: VDIs that have nothing to do with it: a base, a VM that runs on it, its snapshot, a raw disk
BESIDE = (
    disk("beside base", sectors=(0, 1, 8192), hidden=True),
    disk("beside", "beside base", sectors=(1, 2, 4096), end="killed", label="runs é"),
    disk("beside snapshot", "beside base", snapshot_of="beside", label="runs é"),
    raw("beside raw", extents=1, writes=((0, "beside raw"), (8191, "beside raw"))),
)
BESIDE_LEAVES = {
    "beside": ("beside", "beside base"),
    "beside snapshot": ("beside snapshot", "beside base"),
    "beside raw": ("beside raw",),
}


def _live(
    volumes: Sequence[Volume],
    leaves: Dict[str, Tuple[str, ...]],
    verdict: str,
    words: Sequence[str] = (),
    **options: Any,
) -> Live:
    options.setdefault("area", AREA_DEFAULT)
    build = lru_cache(maxsize=None)(partial(build_sr, [*BESIDE, *volumes], **options))
    return Live(build, {**BESIDE_LEAVES, **leaves}, verdict, tuple(words))


# -- end footers ----------------------------------------------------------------------------------------------------


def end_footer(end: str) -> Live:
    """A VM's disk with something else than its footer in the last sector."""
    volumes = [
        disk("base", sectors=(3, 4, 5000), hidden=True),
        disk("disk", "base", sectors=(4, 5, 9000), end=end),
        disk("alone", sectors=(6, 7), end=end),
    ]
    return _live(volumes, {"disk": ("disk", "base"), "alone": ("alone",)}, CARRIED)


# -- inflate --------------------------------------------------------------------------------------------------------


def inflate(extents: int = 3, end: str = "", hidden: bool = False, chained: bool = True) -> Live:
    """`inflate_` of a volume that had one extent; its last sector then holds what `end` says."""
    grown = disk("disk", "base" if chained else "", sectors=(4, 5), extents=extents, end=end, hidden=hidden,
                 old_extents=1 if extents > 1 else 0)  # fmt: skip
    volumes = [disk("base", sectors=(3, 4, 5000), hidden=True), grown, journal("inflate", "disk", str(EXTENT))]
    leaves = {"disk": ("disk", "base") if chained else ("disk",)}
    if hidden:
        volumes.append(disk("child", "disk", sectors=(9,)))
        leaves = {"child": ("child", *leaves["disk"])}
    return _live(volumes, leaves, FINISHED, ("{disk}",))


# -- clone ----------------------------------------------------------------------------------------------------------

CLONE_STEPS = (
    "after_create_journal",
    "after_rename",
    "after_shrink_parent",
    "after_lvcreate",
    "after_first_snap",
    "after_second_lvcreate",
    "after_second_snap",
    "after_parent_hidden",
    "after_parent_ro",
    "before_remove_journal",
)
#: at these every kind of base is tried; at the others a VHD
CLONE_STEPS_THAT_TELL = ("after_shrink_parent", "after_first_snap", "after_second_snap", "after_parent_hidden",
                         "after_parent_ro")  # fmt: skip
CLONE_BASES = ("vhd", "child", "empty child", "raw")


def clone(
    step: str,
    base: str = "vhd",
    single: bool = False,
    cbt: str = "",
    blank: str = "zero",
    longer: int = 1,
    more: Sequence[Volume] = (),
    base_more: Any = None,
    broken: str = "",
    **options: Any,
) -> Live:
    """A snapshot of `orig` that came as far as `step`.

    `base`: what `orig` was: a VHD, the child of one, an empty child of one (the leaves then name its parent), a raw
    volume. `single`: no clone is made. `cbt`: a log of `orig` that is "there", "renamed" or "moved" to the clone.
    `blank`: what a volume holds before its VHD is made, zeros or a deleted VHD whose volume was `longer` extents less.
    `broken`: a key whose end footer is not there.
    """
    at = CLONE_STEPS.index(step)

    def reached(name: str) -> bool:
        return at >= CLONE_STEPS.index(name)

    def made(key: str, is_snapped: bool) -> Volume:
        volume = disk(key, above, label="disk é" if key == "orig" else None, end="zero" if key == broken else "")
        volume = volume if key == "orig" else unlisted(volume)
        return volume if is_snapped else volume._replace(blank=blank, longer=longer, extents=3)

    grand = "" if base in ("vhd", "raw") else "grand"
    data = (4, 5, 9000)
    holder, changes = "orig", {}
    if step != "after_create_journal":
        holder = "base"
        changes = {"hidden": reached("after_parent_hidden"), "writable": not reached("after_parent_ro")}
        changes.update(base_more or {})
    if base == "raw":
        held = raw(holder, extents=4, writes=tuple((sector, holder) for sector in data), **changes)
    else:
        held = disk(holder, grand, sectors=() if base.startswith("empty") else data, **changes)
    held = held if holder == "orig" else unlisted(held)
    above = "grand" if base.startswith("empty") else "base"
    volumes = [disk("grand", sectors=(3, 4, 5000), hidden=True)] if grand else []
    volumes.append(held)
    there = ["orig"] if holder == "orig" else []
    if reached("after_lvcreate"):
        volumes.append(made("orig", reached("after_first_snap")))
        there.append("orig")
    if reached("after_second_lvcreate") and not single:
        volumes.append(made("clone", reached("after_second_snap")))
        there.append("clone")
    volumes.extend(_cbt_logs(cbt))
    volumes.append(journal("clone", "orig", "{base}_" if single else "{base}_{clone}"))
    volumes.extend(more)
    also = [key for key in ("orig", "base", "clone") if key not in [volume.key for volume in volumes]]
    if "orig" in also:
        options["extra_records"] = (disk("orig", label="disk é").record._replace(uuid="orig"),)
    chain = (holder, grand) if grand else (holder,)
    leaves = {"orig": chain}
    complete = reached("after_first_snap") if single else reached("after_second_snap")
    if complete and not broken:
        below = ("grand",) if base.startswith("empty") else chain
        leaves = {key: (key, *below) for key in there}
    return _live(volumes, leaves, FINISHED, ("{orig}",), also=tuple(also), **options)


def _cbt_logs(cbt: str) -> List[Volume]:
    if cbt == "there":
        return [cbtlog("orig", parent=GONE)]
    if cbt == "renamed":
        return [cbtlog("clone", parent=GONE)]
    return [cbtlog("clone", parent=GONE, child="orig"), cbtlog("orig", parent="clone")] if cbt == "moved" else []


def clone_undone_halfway(grown: bool) -> Live:
    """sm was undoing the snapshot, and inflates the base for it, when the array took its copy."""
    base_more = {"extents": 4, "old_extents": 2, "end": "noise"} if grown else {"extents": 2}
    return clone("after_shrink_parent", base_more=base_more, more=[journal("inflate", "base", str(2 * EXTENT))])


def clone_with_full_mgt() -> Live:
    """There is no slot for the records of base and clone; a record has no volume any more, as sm leaves them."""
    taken = len(BESIDE) + 1
    names = uuids_by_key([f"gone {number}" for number in range(MGT_CAPACITY - taken)], "full")
    gone = tuple(Record(value, key) for key, value in names.items())
    return clone("after_parent_ro", extra_records=gone, area=builder.AREA_10M)


# -- leaf coalesce --------------------------------------------------------------------------------------------------

LEAF_STEPS = (
    "after_create_journal",
    "parent_writable",
    "before_coalesce",
    "coalescing",
    "after_coalesce",
    "one_renamed",
    "both_renamed",
    "after_hidden",
    "old_deleted",
)
LEAF_STEPS_THAT_TELL = ("before_coalesce", "one_renamed", "both_renamed", "after_hidden", "old_deleted")
LEAF_PARENTS = ("vhd", "child", "raw")


def leaf(step: str, parent: str = "vhd", inflating: bool = False, parent_end: str = "", child_end: str = "") -> Live:
    """A leaf coalesce of `child` into `parent` that came as far as `step`.

    `inflating`: the parent is being inflated for it, or was when the run was cut.
    """
    at = LEAF_STEPS.index(step)

    def reached(name: str) -> bool:
        return at >= LEAF_STEPS.index(name)

    old, new = (3, 4, 5000, 8200), (4, 5, 8200, 9000)
    taken = new if reached("after_coalesce") else new[:2] if reached("coalescing") else ()
    writes = tuple((sector, "parent") for sector in old if sector not in taken)
    writes += tuple((sector, "child") for sector in taken)
    changes: Dict[str, Any] = {
        "hidden": not reached("before_coalesce"),
        "writable": reached("parent_writable"),
        "writes": writes,
        "named_as": "child" if reached("both_renamed") else "",
        "label": "base copy",
    }
    if parent == "raw":
        held = raw("parent", extents=4, **changes)
    else:
        changes.update(end=parent_end)
        if inflating:
            changes.update(extents=4, old_extents=3, end="another VHD")
        held = disk("parent", "grand" if parent == "child" else "", **changes)
    volumes = [disk("grand", sectors=(12,), hidden=True)] if parent == "child" else []
    volumes.append(held)
    plain = disk("child", "parent", sectors=new, label="leaf é")
    if not reached("old_deleted"):
        hidden = {"hidden": True, "writable": True} if reached("after_hidden") else {}
        child = disk("child", "parent", sectors=new, old=reached("one_renamed"), end=child_end, **hidden)
        volumes.append(listed(child, plain))
    volumes.append(journal("leaf", "child", "{parent}"))
    if inflating:
        owner = "child" if reached("both_renamed") else "parent"
        volumes.append(journal("inflate", owner, str(3 * EXTENT)))
    options: Dict[str, Any] = {}
    if reached("old_deleted"):
        options = {"also": ("child",), "extra_records": (plain.record._replace(uuid="child"),)}
    chain = ("parent", "grand") if parent == "child" else ("parent",)
    leaves = {"child": chain if reached("old_deleted") else ("child", *chain)}
    return _live(volumes, leaves, FINISHED, ("{child}",), **options)


def leaf_and_clone() -> Live:
    """Two disks of the SR in the middle of work, each of its own kind."""
    both = [
        disk("parent", writes=((4, "child"), (3, "parent")), writable=True),
        listed(disk("child", "parent", sectors=(4,), old=True), disk("child")),
        journal("leaf", "child", "{parent}"),
        disk("base", sectors=(7, 8), writable=True)._replace(record=None),
        disk("orig", "base"),
        unlisted(disk("clone", "base")),
        journal("clone", "orig", "{base}_{clone}"),
        disk("grows", sectors=(1,), extents=2, old_extents=1, end="zero"),
        journal("inflate", "grows", str(EXTENT)),
    ]
    leaves: Dict[str, Tuple[str, ...]] = {
        "child": ("child", "parent"),
        "orig": ("orig", "base"),
        "clone": ("clone", "base"),
        "grows": ("grows",),
    }
    return _live(both, leaves, FINISHED, ("{child}", "{orig}", "{grows}"))


# -- what real programs tolerate ------------------------------------------------------------------------------------


def _carried(*volumes: Volume, words: Sequence[str] = (), **options: Any) -> Live:
    """A plain leaf beside what is odd about the LUN."""
    leaves = {"disk": ("disk",)}
    return _live([disk("disk", sectors=(4, 5)), *volumes], leaves, CARRIED, words, **options)


def _poked(live: Live, key: str, offset: int, data: bytes) -> Live:
    """The LUN with other bytes in one of its volumes."""
    for place in live.built.truth.device_ranges(key, offset, len(data)):
        live.built.disk.poke(place.offset, data[: place.length])
        data = data[place.length :]
    live.built.disk.freeze()
    return live


def unparsable_record() -> Live:
    """The first sector of a record without its opener, as sm 3.0 left it behind a longer label."""
    live = _carried(disk("unlabelled", sectors=(6,)), words=("MGT",))
    number = [record.uuid for record in live.built.truth.records].index(live.uuid("unlabelled"))
    live.leaves["unlabelled"] = ("unlabelled",)
    return _poked(live, "MGT", 2048 + 1024 * number, b" " * 20)


def senseless_record() -> Live:
    """A record of which not even the UUID can be read."""
    extra = (Record("0a0b0c0d-0000-4000-8000-000000000009", "lost"),)
    live = _carried(words=("MGT",), extra_records=extra)
    return _poked(live, "MGT", 2048 + 1024 * (len(live.built.truth.records) - 1), noise(1024, "senseless"))


def stale_cbt_log() -> Live:
    """lvcreate does not wipe: the log holds what its extent held before."""
    live, stale = _carried(cbtlog("disk")), noise(4096, "former owner")
    kept = tuple(str(uuid.UUID(bytes=stale[at : at + 16])) for at in (0, 16))
    return _poked(live, "cbtlog of disk", 0, stale)._replace(kept=kept)


def reparenting(header: str, locators: str) -> Live:
    """`vhd-util modify -p` was cut: the header names one parent, the locators the other. Both hold the same data."""
    volumes = [
        disk("grand", writes=((3, "grand"), (4, "base"), (9000, "base")), hidden=True),
        disk("base", "grand", sectors=(4, 9000), hidden=True),
        disk("moves", header, sectors=(5,), located=locators),
    ]
    chain = {"base": ("moves", "base", "grand"), "grand": ("moves", "grand")}[header]
    return _carried(*volumes, words=("{moves}",))._replace(leaves={"disk": ("disk",), **BESIDE_LEAVES, "moves": chain})


def foreign_volumes() -> Live:
    """CloudStack's heartbeat and an administrator's own volume, with something in them."""
    heartbeat = "hb-" + HOST
    live = _carried(named(heartbeat, extents=1), named("backup_data", extents=2), words=(heartbeat, "backup_data"))
    live = _poked(live, heartbeat, 0, noise(512, "heartbeat"))
    live = _poked(live, "backup_data", EXTENT - 512, noise(1024, "backup"))
    return live._replace(kept=(HOST, heartbeat))


def garbage_collection() -> Live:
    """What the garbage collector leaves of its work, which a new name is enough for."""
    volumes = [
        disk("parent", sectors=(3, 4), hidden=True, writable=True),
        disk("middle", "parent", sectors=(4,), hidden=True),
        disk("top", "middle", sectors=(9,), end="killed"),
        disk("obsolete", "middle", sectors=(9,), hidden=True, old=True),
        journal("coalesce", "middle"),
        journal("relink", "middle"),
        raw("grown", extents=2, writes=((0, "grown"),)),
        journal("zero", "grown", str(EXTENT)),
    ]
    live = _carried(*volumes)
    live.leaves.update({"top": ("top", "middle", "parent"), "grown": ("grown",)})
    return live


# -- refused --------------------------------------------------------------------------------------------------------


def _refused(*volumes: Volume, words: Sequence[str] = (), **options: Any) -> Live:
    return _live([disk("disk", sectors=(4, 5)), *volumes], {}, REFUSED, words, **options)


def unwritten_value(kind: str) -> Live:
    """The journal's volume is there, and what it is to say is not: nothing has happened yet."""
    base = disk("base", sectors=(3,), hidden=True)
    orig = disk("orig", "base", sectors=(4,))
    live = _live([base, orig, journal(kind, "orig", "{base}")], {"orig": ("orig", "base")}, FINISHED, ("{orig}",))
    return _poked(live, f"{kind} of orig", 0, noise(512, "former owner"))


def unwritten_value_of_nothing(kind: str) -> Live:
    live = _refused(journal(kind, "orig", "{disk}"), words=(kind + "_", "{orig}"), also=("orig",))
    return _poked(live, f"{kind} of orig", 0, noise(512, "former owner"))


# -- all of them ----------------------------------------------------------------------------------------------------

_Maker = Callable[[], Live]

_ENDS = ("killed", "zero", "noise", "bad checksum", "resized", "hidden")

#: extents, and the end footer
_INFLATES: Dict[str, Tuple[int, str]] = {
    "after_create_journal": (1, ""),
    "after_create_journal, running": (1, "killed"),
    "after_setSize, noise": (3, "noise"),
    "after_setSize, another VHD": (3, "another VHD"),
    "after_setSize, killed": (3, "killed"),
    "after_zeroOut": (3, "zero"),
    "after_setSizePhys": (3, ""),
}
_INFLATE_KINDS = {"": {}, ", hidden": {"hidden": True}, ", chained": {"chained": False}}

_SINGLE_STEPS = ("after_create_journal", "after_shrink_parent", "after_lvcreate", "after_first_snap", "after_parent_ro")
_CBT_STEPS = (("after_shrink_parent", "there"), ("after_parent_ro", "there"), ("after_parent_ro", "renamed"),
              ("before_remove_journal", "moved"))  # fmt: skip

#: what `clone` is called with besides the step
_CLONES: Dict[str, Tuple[str, Dict[str, Any]]] = {
    "after_lvcreate, over a deleted VHD": ("after_lvcreate", {"blank": "beside"}),
    "after_second_lvcreate, over a deleted VHD": ("after_second_lvcreate", {"blank": "beside"}),
    "after_lvcreate, over a whole deleted VHD": ("after_lvcreate", {"blank": "beside", "longer": 0}),
    "after_second_lvcreate, over a whole deleted VHD": ("after_second_lvcreate", {"blank": "beside", "longer": 0}),
    "first leaf without its end footer": ("after_first_snap", {"broken": "orig"}),
    "second leaf without its end footer": ("after_second_snap", {"broken": "clone"}),
    "base hidden at its end alone": ("after_second_snap", {"base_more": {"end": "hidden"}}),
    "base without an end footer": ("after_second_snap", {"base_more": {"end": "killed"}}),
    "base without an end footer, hidden": ("after_parent_ro", {"base_more": {"end": "zero"}}),
    "base without an end footer, undone": (
        "after_first_snap", {"base_more": {"end": "killed", "hidden": True, "writable": False}}),
}  # fmt: skip


def _all() -> Iterator[Tuple[str, _Maker]]:
    for end in _ENDS:
        yield f"end footer: {end}", partial(end_footer, end)
    for name, (extents, end) in _INFLATES.items():
        for word, kind in _INFLATE_KINDS.items() if end in ("zero", "another VHD") else [("", {})]:
            yield f"inflate: {name}{word}", partial(inflate, extents, end, **kind)
    alone = [journal("inflate", "disk", str(EXTENT))]  # the volume went, and its journal stayed
    yield "inflate: of nothing", partial(_live, alone, {}, FINISHED, ("{disk}",), also=("disk",))
    for step in CLONE_STEPS:
        for base in CLONE_BASES if step in CLONE_STEPS_THAT_TELL else ("vhd",):
            yield f"clone: {step}, {base}", partial(clone, step, base)
    for step in _SINGLE_STEPS:
        yield f"clone: {step}, single", partial(clone, step, single=True)
        yield f"clone: {step}, single of raw", partial(clone, step, "raw", True)
    for step, cbt in _CBT_STEPS:
        yield f"clone: {step}, log {cbt}", partial(clone, step, cbt=cbt)
    for name, (step, more) in _CLONES.items():
        yield f"clone: {name}", partial(clone, step, **more)
    yield "clone: undone halfway, journal", partial(clone_undone_halfway, False)
    yield "clone: undone halfway, grown", partial(clone_undone_halfway, True)
    yield "clone: no free slot in MGT", clone_with_full_mgt
    yield "clone: value not written", partial(unwritten_value, "clone")
    for step in LEAF_STEPS:
        for parent in LEAF_PARENTS if step in LEAF_STEPS_THAT_TELL else ("vhd",):
            yield f"leaf: {step}, {parent}", partial(leaf, step, parent)
        if step in LEAF_STEPS_THAT_TELL:
            yield f"leaf: {step}, inflating", partial(leaf, step, inflating=True)
    yield "leaf: parent shown at its end alone", partial(leaf, "parent_writable", parent_end="unhidden")
    yield "leaf: parent without an end footer", partial(leaf, "before_coalesce", parent_end="killed")
    yield "leaf: both renamed, old without an end footer", partial(leaf, "after_hidden", child_end="killed")
    yield "leaf: child hidden at its end alone", partial(leaf, "both_renamed", child_end="hidden")
    yield "leaf, clone and inflate", leaf_and_clone
    yield "leaf: value not written", partial(unwritten_value, "leaf")
    yield "trim", partial(_live, [disk("disk"), trim(extents=2)], {"disk": ("disk",)}, FINISHED, ("_trim_lv",))


_CARRIED: Dict[str, _Maker] = {
    "slot 1 in use": lambda: _carried(precommitted=True),
    "parent gone": lambda: _carried(disk("orphan", GONE, sectors=(1,)), words=("{orphan}", GONE)),
    "MGT record without its opener": unparsable_record,
    "MGT record that makes no sense": senseless_record,
    "CBT log not initialised": lambda: _poked(
        _carried(cbtlog("disk"), words=("{disk}.cbtlog",)), "cbtlog of disk", 0, bytes(4096)
    ),
    "CBT log with stale bytes": stale_cbt_log,
    "metadata areas of two generations": lambda: _carried(second_area="older"),
    "header names the old parent": lambda: reparenting("base", "grand"),
    "header names the new parent": lambda: reparenting("grand", "base"),
    "foreign volumes": foreign_volumes,
    "garbage collection": garbage_collection,
}

_REFUSED: Dict[str, _Maker] = {
    "poisoned copy": lambda: _refused(disk("resizes", poisoned=True), words=("{resizes}",)),
    "poisoned end footer": lambda: _refused(disk("resizes", end="poisoned"), words=("{resizes}",)),
    "jvhd_": lambda: _refused(disk("resizes", poisoned=True), jvhd("resizes"), words=("{resizes}",)),
    "volume without a VHD": lambda: _refused(disk("blank", blank="zero", extents=2), words=("{blank}",)),
    "clone_ with neither base nor original": lambda: _refused(
        journal("clone", "orig", "{base}_{clone}"), words=("{orig}",), also=("orig", "base", "clone")
    ),
    "leaf_ with neither parent nor child": lambda: _refused(
        journal("leaf", "child", "{parent}"), words=("{child}",), also=("child", "parent")
    ),
    "two MGT records of one VDI": lambda: _refused(
        words=("{disk}",), extra_records=(disk("disk", label="an older label").record._replace(uuid="disk"),)
    ),
    "clone_ without a value or a volume": lambda: unwritten_value_of_nothing("clone"),
    "leaf_ without a value or a volume": lambda: unwritten_value_of_nothing("leaf"),
}

STATES: Dict[str, _Maker] = {**dict(_all()), **_CARRIED, **_REFUSED}
