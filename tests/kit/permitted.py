# SPDX-License-Identifier: LGPL-2.1-only
"""States of an SR that LVM and the storage manager permit, whoever made them: names, tags, sizes, records, settings.

    state = drawn(pick)                  `pick(options)` gives one of them: hypothesis, or `random.Random(n).choice`
    state.built()                        a LUN in memory, from `kit.builder`
    made_by_lvm(state, own, loop)        the same on a loop device, made by real lvcreate, lvrename, lvchange ...

`judged` says what must be true of each of them: a LUN that `check` calls good is resignatured, or there is no room.
"""

import os
import re
from types import MappingProxyType
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple, Union

from relvmoiscsi import engine
from relvmoiscsi.errors import RelvmoiscsiError

from . import build_lvm, reader
from .build_volumes import MIB, Record
from .builder import AREA_DEFAULT, SMALL_BAT, BuiltSr, Truth, Volume, build_sr, cbtlog, journal, named, qcow2, raw, vhd
from .judges import Loop, Lvm, lv_ranges, put_in
from .outcome import Outcome, entropy_of, names_of
from .sparse import SparseDisk

Pick = Callable[[Sequence[Any]], Any]

#: keys of UUIDs: of a VDI in a freed slot of MGT, of one that has a record and no volume, of one that only a snapshot
#: or a CBT log names, of nothing on the LUN
FREED, LISTED, LINKED, NOWHERE = "freed", "listed", "linked", "nowhere"

#: names of volumes that are not the storage manager's; {u} and {v} are UUIDs, {l} an LVM id. LVM permits 74 letters in
#: the group of an SR
NAMES = (
    *("data", "123", "a+b_c.d-", ".x", "MGT.old", "mgt", "lvol0", "hidden", "hb-{u}", "{u}", "backup_{u}", "{u}_bak"),
    *("old_VHD-{u}", "old-LV-{u}", "x.QCOW2-{u}", "bak_VHD-OLD_{u}", "{u}.cbtlog.bak", "old_{u}.cbtlog"),
    *("VG_XenStorage-{u}", "vhd-{u}", "LV_{u}", "a{u}", "{u}f", "f{u}{v}", "{u}-{v}", "{u}_{v}", "novel_{u}_1"),
    *("zero_{u}_1", "coalesce_{u}_old_VHD", "relink_{u}", "{l}", "of-{l}-x", "{u}{l}"),
)
#: names of which most are refused
ALMOST_SMS = ("VHD-{u}.bak", "LV-data", "VHD-", "QCOW2-{u}x", "{u}_trim_lv", "inflate_{u}_1", "jvhd_{u}", "leaf_{u}_1")
TAGS = ("hidden", "journaler", "cbtlog", "jvhd", "{u}", "owner-{u}", "{l}", "of={l}", "a/b=c!d:e&f#g", "x{u}{v}")

#: settings of a volume: what LVM is told, and the line of the text that it then writes another way
LV_SETTINGS: Dict[str, Tuple[Tuple[str, ...], str, str]] = {
    "skipped at activation": (("-ky",), "flags = []", 'flags = ["ACTIVATION_SKIP"]'),
    "not activated by itself": (("--setautoactivation", "n"), "flags = []", 'flags = ["NOAUTOACTIVATE"]'),
    "contiguous": (("--alloc", "contiguous"), "segment_count", 'allocation_policy = "contiguous"\nsegment_count'),
    "read ahead": (("-r", "128"), "segment_count", "read_ahead = 128\nsegment_count"),
    "fixed minor": (("-y", "-My", "--minor", "77"), '"VISIBLE"]', '"FIXED_MINOR", "VISIBLE"]'),
}
#: the same of the group and its disk; {pv} is the disk
VG_SETTINGS: Dict[str, Tuple[Tuple[str, ...], str, str]] = {
    "cling": (
        ("vgchange", "--alloc", "cling", "{vg}"),
        "metadata_copies",
        'allocation_policy = "cling"\nmetadata_copies',
    ),
    "few volumes": (("vgchange", "-l", "200", "{vg}"), "max_lv = 0", "max_lv = 200"),
    "few disks": (("vgchange", "-p", "5", "{vg}"), "max_pv = 0", "max_pv = 5"),
    "not resizeable": (("vgchange", "-xn", "{vg}"), '"RESIZEABLE", ', ""),
    "not allocatable": (("pvchange", "-xn", "{pv}"), '"ALLOCATABLE"', ""),
    "not activated by itself": (
        ("vgchange", "--setautoactivation", "n", "{vg}"),
        "flags = []",
        'flags = ["NOAUTOACTIVATE"]',
    ),
}
DEVICES = ("/dev/sdb", "/dev/disk/by-id/lvm-pv-uuid-{l}", "/dev/disk/by-id/{u}", "/dev/mapper/a--b")
COMMANDS = ("", "lvrename {u} old_VHD-{v}", "lvchange -S lv_uuid={l}", "lvcreate -n f{u}a", "vgcfgrestore -f {u}.{l}")


class State(NamedTuple):
    volumes: Tuple[Volume, ...]
    records: Tuple[Record, ...]
    settings: Tuple[Tuple[str, str], ...] = ()  #: (key of a volume, or "", one of LV_SETTINGS or VG_SETTINGS)
    tags: Tuple[str, ...] = ()  #: of the group
    pv_tags: Tuple[str, ...] = ()
    device: str = "/dev/sdb"
    command: str = ""
    bug: str = ""  #: as `Options.mgt_bug`
    mgt: bool = True
    lost_bytes: int = 0  #: the disk is so much smaller than LVM was told
    renamed: bool = False  #: `vgrename` has given the SR another UUID, which MGT does not know
    areas: int = 1  #: metadata areas

    def built(self) -> BuiltSr:
        built = build_sr(
            self.volumes,
            area=AREA_DEFAULT,
            extent_size=MIB,
            also=(FREED, LISTED, LINKED, NOWHERE),
            extra_records=self.records,
            mgt_bug=self.bug,
            mgt=self.mgt,
            vg_name="VG_XenStorage-0a0b0c0d-0000-4000-8000-0000000000aa" if self.renamed else "",
            second_area="same" if self.areas == 2 else "",
        )
        disk, truth = built.disk.copy(), built.truth
        text = disk.peek(truth.areas[0].offset + truth.text_offset, truth.text_length).decode()
        data = self._edited(text, truth).encode()
        for area in truth.areas:
            build_lvm.put_text(disk, area, truth.text_offset, data)
            disk.poke(area.offset, build_lvm.mda_header(area, [build_lvm.raw_locn(truth.text_offset, data)]))
        return built._replace(disk=cut(disk, self.lost_bytes))

    def _edited(self, text: str, truth: Truth) -> str:
        fill = Filler(truth)
        head, _, pv = text.partition("pv0 {")
        head = head.replace("flags = []\n", "flags = []\n" + _tag_line(map(fill, self.tags)), 1)
        pv = pv.replace("flags = []\n", "flags = []\n" + _tag_line(map(fill, self.pv_tags)), 1)
        text = head + "pv0 {" + pv
        text = text.replace('device = "/dev/sdb"', f'device = "{fill(self.device)}"', 1)
        text = text.replace('description = "Write from lvcreate."', f'description = "{fill(self.command)}"', 1)
        for key, name in self.settings:
            _command, old, new = LV_SETTINGS[name] if key else VG_SETTINGS[name]
            at = text.index(f"\n{truth.volume(key).name} {{\n") if key else 0
            text = text[:at] + text[at:].replace(old, new, 1)
        return text


def cut(disk: SparseDisk, lost_bytes: int) -> SparseDisk:
    """The disk without its last bytes."""
    found = SparseDisk(disk.size_bytes - lost_bytes, disk.block_size, disk.name)
    for start, data in disk.runs():
        found.poke(start, data[: max(0, found.size_bytes - start)])
    return found


def _tag_line(tags: Iterable[str]) -> str:
    listed = ", ".join(f'"{tag}"' for tag in tags)
    return f"tags = [{listed}]\n" if listed else ""


class Filler:
    """Puts identities of a LUN for their keys in braces; `lvm_ids`: of another LUN, by those of the builder."""

    def __init__(self, truth: Truth, lvm_ids: Mapping[str, str] = MappingProxyType({})) -> None:
        ids = {"vg": truth.vg_id, "pv": truth.pv_id, **{volume.key: volume.lv_id for volume in truth.volumes}}
        self.names = {f"{{lvm id of {key}}}": lvm_ids.get(lvm_id, lvm_id) for key, lvm_id in ids.items()}
        self.names.update((f"{{{key}}}", uuid) for key, uuid in truth.uuids.items())

    def __call__(self, text: str) -> str:
        for key, identity in self.names.items():
            text = text.replace(key, identity)
        return text


# -- drawing a state ------------------------------------------------------------------------------------------------


def drawn(pick: Pick) -> State:
    """Any of these states."""
    disks, has_mgt, renamed = _disks(pick), pick((True, True, True, True, False)), pick((False, False, False, True))
    keys = [disk.key for disk in disks]
    own = [] if renamed else ["sr"]  # the former UUID of a renamed SR is an identity in MGT alone
    # a name with the UUID of a VDI that is there is refused: few of those
    shaped = _Shapes(
        pick, [*keys, *own, *3 * [FREED, LISTED, LINKED, NOWHERE]], ["vg", "pv", *(["MGT"] if has_mgt else []), *keys]
    )
    volumes = [*disks, *_logs_and_journals(pick, keys)]
    names = [shaped(pick(NAMES)) for _ in range(pick((0, 1, 2, 3)))]
    names += [shaped(pick(ALMOST_SMS)) for _ in range(pick((0, 0, 0, 0, 0, 1)))]
    new = set(names) - {volume.name for volume in volumes}
    volumes += [named(name, extents=pick((1, 1, 2))) for name in sorted(new)]
    volumes = [
        volume._replace(tags=_tags(pick, shaped, volume), writable=pick((True, True, False))) for volume in volumes
    ]
    others = [(volume.key, pick(tuple(LV_SETTINGS)[:4])) for volume in volumes if pick((False, False, True))]
    fixed = [(volumes[0].key, "fixed minor")] if volumes and pick(29 * (False,) + (True,)) else []
    return State(
        tuple(volumes),
        _records(pick, keys),
        (*others, *fixed, *((("", pick(tuple(VG_SETTINGS))),) if pick((False, True)) else ())),
        tuple(dict.fromkeys(shaped(pick(TAGS)) for _ in range(pick((0, 0, 1, 2))))),
        tuple(dict.fromkeys(shaped(pick(TAGS)) for _ in range(pick((0, 0, 1))))),
        shaped(pick(DEVICES)),
        shaped(pick(COMMANDS)),
        pick(("", "", "", "shifted", "damaged")),
        has_mgt,
        pick((0, 0, 512, MIB // 2)),
        renamed,
        pick((1, 1, 1, 2)),
    )


class _Shapes:
    """Puts keys in braces into a shape: any UUIDs and any LVM id."""

    def __init__(self, pick: Pick, uuids: Sequence[str], lvm_ids: Sequence[str]) -> None:
        self.pick, self.uuids, self.lvm_ids = pick, uuids, lvm_ids

    def __call__(self, shape: str) -> str:
        for letter in "uv":
            if "{" + letter + "}" in shape:
                shape = shape.replace("{" + letter + "}", "{" + self.pick(self.uuids) + "}")
        return shape.replace("{l}", "{lvm id of " + self.pick(self.lvm_ids) + "}") if "{l}" in shape else shape


def _disks(pick: Pick) -> List[Volume]:
    disks: List[Volume] = []
    for number in range(pick((0, 1, 1, 2, 3))):
        parents = [disk.key for disk in disks if disk.hidden]
        snapshots_of = ("", "", LINKED, FREED, "OpaqueRef:NULL", *(disk.key for disk in disks))
        more = {"hidden": pick((False, False, True)), "in_mgt": pick((True, True, True, False)),
                "label": pick(("disk", "é&<", "")), "extents": pick((0, 4, 5)),
                "snapshot_of": pick(snapshots_of)}  # fmt: skip
        make = pick((vhd, vhd, raw, qcow2))
        if make is qcow2:
            disks.append(qcow2(f"disk{number}", **{**more, "extents": pick((4, 5))}))
        elif make is vhd:
            end = pick(("", "", "killed", "zero"))
            old = pick((False, False, False, True))
            more.update(bat_entries=SMALL_BAT, blocks=pick((0, 1)), end=end, old=old)
            disks.append(vhd(f"disk{number}", pick(("", *parents)), **{**more, "extents": pick((4, 5))}))
        else:
            disks.append(raw(f"disk{number}", **more))
    return disks


def _logs_and_journals(pick: Pick, keys: Sequence[str]) -> List[Volume]:
    found = [
        cbtlog(key, pick(("", LINKED, FREED, *keys)), pick(("", *keys))) for key in keys if pick((False, False, True))
    ]
    if keys and pick((False, False, True)):
        found.append(journal(pick(("coalesce", "relink", "zero")), pick((*keys, NOWHERE))))
    return found


def _tags(pick: Pick, shaped: _Shapes, volume: Volume) -> Tuple[str, ...]:
    more = [shaped(pick(TAGS if volume.kind != "named" else TAGS[4:])) for _ in range(pick((0, 0, 0, 1, 2)))]
    return tuple(dict.fromkeys([*volume.tags, *more]))


def _records(pick: Pick, keys: Sequence[str]) -> Tuple[Record, ...]:
    pool = Record(LISTED, metadata_of_pool="OpaqueRef:0a0b0c0d-0000-4000-8000-0000000000bb")
    kinds = (Record(FREED, deleted=True), pool, Record(FREED, snapshot_of=LINKED, deleted=True))
    kinds += tuple(Record(key, "again", vdi_type=pick(("vhd", "aio", "qcow2"))) for key in keys[:1])
    return tuple(record for record in kinds if pick((False, True)))


# -- the same by LVM ------------------------------------------------------------------------------------------------


def made_by_lvm(state: State, own: Lvm, loop: Loop, pick: Pick) -> None:
    """Make the state on an empty loop device, in any order, by LVM's commands; then put the contents in."""
    built = state.built()
    truth = built.truth
    vg, pv = truth.vg_name, loop.path
    own("vgcreate", "-s", "1m", "--pvmetadatacopies", str(state.areas), vg, pv)
    names = {volume.key: f"made{number}" for number, volume in enumerate(truth.volumes)}
    for volume in truth.volumes:
        own.create(vg, names[volume.key], extents=pick((1, volume.size // MIB)))
    for volume in reversed(truth.volumes):
        own.attempt("lvextend", "-l", str(volume.size // MIB), f"{vg}/{names[volume.key]}")
    own.create(vg, "removed")
    own.remove(vg, "removed")
    (seen,) = own.seen()
    made = {names[volume.key]: volume.lv_id for volume in truth.volumes}
    lvm_ids = {truth.vg_id: seen.vg[1], truth.pv_id: seen.pvs[0][1], **{made[lv[0]]: lv[1] for lv in seen.lvs}}
    fill = Filler(truth, lvm_ids)
    for key, name in names.items():
        volume = truth.volume(key)
        final = replaced(volume.name, lvm_ids)
        own("lvrename", vg, name, final)
        for tag in volume.tags:
            own("lvchange", "--addtag", replaced(tag, lvm_ids), f"{vg}/{final}")
        for owner, setting in state.settings:
            if owner == key:
                own("lvchange", *LV_SETTINGS[setting][0], f"{vg}/{final}")
        if not volume.writable:
            own("lvchange", "-pr", f"{vg}/{final}")
    for tag in state.tags:
        own("vgchange", "--addtag", fill(tag), vg)
    for tag in state.pv_tags:
        own("pvchange", "--addtag", fill(tag), pv)
    if state.lost_bytes and pick((False, True)):
        own("pvresize", "-y", "--setphysicalvolumesize", f"{built.disk.size_bytes}b", pv, warnings=("Pretending",))
    if pick((False, True)):
        backup = os.path.join(own.directory, "restored")
        own("vgcfgbackup", "-f", backup, vg)
        own("vgcfgrestore", "-f", backup, vg, warnings=_NO_MAPPER)
    for owner, setting in state.settings:
        if not owner:
            own(*(word.format(vg=vg, pv=pv) for word in VG_SETTINGS[setting][0]))
    (seen,) = own.seen()
    disk = loop.disk()
    for volume in truth.volumes:
        parts = (built.disk.peek(*part) for part in truth.device_ranges(volume.key, 0, volume.size))
        put_in(disk, lv_ranges(seen, replaced(volume.name, lvm_ids)), 0, b"".join(parts))
    loop.put(disk)


#: what `vgcfgrestore` says where there is no device-mapper
_NO_MAPPER = ("open failed: No such device", "kernel device-mapper driver", "device-mapper is available",
              "Incompatible libdevmapper", "Failed to check for active volumes")  # fmt: skip


def replaced(text: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        text = text.replace(old, new)
    return text


# -- the judgement --------------------------------------------------------------------------------------------------

NO_ROOM = "there is no room for the journal"


def judged(before: SparseDisk) -> Union[Outcome, RelvmoiscsiError]:
    """What a resignature makes of a LUN that LVM and the storage manager read, or why it is refused.

    A LUN that `check` calls good becomes the same SR under new identities; any other is refused with what `check` says.
    """
    found, after = engine.inspect(before), before.copy()
    try:
        prepared = engine.prepare(after, entropy_of("ids"))
    except RelvmoiscsiError as refusal:
        assert after == before
        if found.lun is None:
            assert refusal.message == found.problem.message
        else:
            assert NO_ROOM in refusal.message
        return refusal
    assert found.lun is not None, found.problem
    outcome = Outcome(before, after, prepared.plan.run.ids, engine.resignature(after, prepared), prepared)
    assert_carried_over(outcome)
    assert engine.inspect(after).state == engine.RESIGNATURED
    assert engine.compare(before, after).problems == []
    assert_names_what_it_refuses(before)
    undone = after.copy()
    engine.undo(undone, entropy_of("undo"))
    assert reader.essence(undone) == reader.essence(before)
    return outcome


def assert_carried_over(outcome: Outcome) -> None:
    """Nothing of the LUN is shared, nothing is lost; tags stay, whatever they say."""
    before, after, names = outcome.before, outcome.after, names_of(outcome.ids)
    if outcome.sr_before.mgt:
        names.setdefault(outcome.sr_before.mgt.sr_uuid, outcome.ids.new_sr)
    shared = reader.identities(before) & reader.identities(after)
    assert [one for one in shared if any(old in one for old in names)] == []
    assert [one for one in shared if SM_SPELLED.search(one)] == []
    expected, found = (_without_tags(reader.essence(disk)) for disk in (before, after))
    assert found == reader.renamed(expected, names)
    assert [lv.tags for lv in outcome.sr_after.vg.lvs] == [lv.tags for lv in outcome.sr_before.vg.lvs]
    assert outcome.sr_after.vg.tags == outcome.sr_before.vg.tags
    assert reader.same_guest(before, after, reader.layout_of(before))


def assert_names_what_it_refuses(disk: SparseDisk) -> None:
    """A request for one VDI, or to clear databases, may be refused for many reasons, but never for its plan."""
    for request in (
        engine.ResignatureRequest(one=engine.OneVdiRequest()),
        engine.ResignatureRequest(clear_databases=True),
    ):
        try:
            engine.prepare(disk, entropy_of("one"), request)
        except RelvmoiscsiError as refusal:
            assert "does not check" not in refusal.message and "does not read back" not in refusal.message
            assert request.one is not None


SM_SPELLED = re.compile(f"(?:VHD|LV|QCOW2)-(?:OLD_)?{reader.UUID}|{reader.UUID}[.]cbtlog|VG_XenStorage-{reader.UUID}")


def _without_tags(essence: Tuple[Any, ...]) -> Tuple[Any, ...]:
    (what, *view), *rest = essence
    values = reader.Vg(*view, None, None)
    lvs = tuple(lv._replace(tags=()) for lv in values.lvs)
    return (what, values._replace(tags=(), lvs=lvs), *rest)
