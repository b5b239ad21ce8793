# SPDX-License-Identifier: LGPL-2.1-only
"""What the tests of cuts, failures, recovery and undo share: images, entropy that repeats, and a judge.

A `Judge` knows what a LUN was before a run and what it is after one that nobody cut, both read with the independent
reader. `Judge.faults` says what is wrong with a disk that a power cut left; none is the claim of docs/protocol.rst:

    view        before any recovery LVM sees exactly the old VG or exactly the new one
    state       `inspect` calls it clean, unfinished or resignatured
    journal     an unfinished one has its journal
    recovery    rolls back before the commit; behind it, ends in the bytes of the run that nobody cut; twice equals once
    undo        gives the old bytes back, everywhere but in the free space of the ring
"""

import contextlib
import functools
import re
from typing import NamedTuple

from kit import build_lvm, builder, golden, lvmreader, reader
from kit.builder import AREA_DEFAULT, SMALL_BAT, vhd
from kit.crash import CrashDisk, FailingDisk
from kit.outcome import entropy_of as entropy
from kit.sparse import Recalled
from kit.spoiled import Spoiled
from relvmoiscsi import engine
from relvmoiscsi.device import Range
from relvmoiscsi.errors import DeviceError, Refused, RelvmoiscsiError
from relvmoiscsi.resignature.protocol.commit_record import read_commit_record
from relvmoiscsi.resignature.protocol.journal import EarlierRun, read_journal
from relvmoiscsi.resignature.reading import survey

SCSI_ID = "3600a098038303053743f4a4f4e4b6d41"
OTHER_SCSI_ID = "3600a098038303053743f4a4f4e4b6d42"

SECTOR = 512


# -- images ---------------------------------------------------------------------------------------------------------


def two_volumes(**options):
    """A base and its child: few enough writes for every cut of every recovery."""
    volumes = [vhd("base", hidden=True, bat_entries=SMALL_BAT), vhd("disk", "base", bat_entries=SMALL_BAT)]
    return builder.build_sr(volumes, **options).disk


def _512e(disk):
    """Blocks of 512 bytes on a disk that tears 4096."""
    disk.physical_block_size = 4096
    return disk


def a_broken_vdi(**options):
    """The same beside a VDI whose image cannot be read, and a VDI that was made of it."""
    volumes = [vhd("base", hidden=True, bat_entries=SMALL_BAT), vhd("disk", "base", bat_entries=SMALL_BAT)]
    volumes += [vhd("broken", bat_entries=SMALL_BAT), vhd("child", "broken", bat_entries=SMALL_BAT)]
    return Spoiled(builder.build_sr(volumes, **options)).poke(("broken", 0), bytes(4096))


IMAGES = {
    "one VDI": lambda: builder.one_vhd(area=AREA_DEFAULT).disk,
    "a chain": lambda: two_volumes(area=AREA_DEFAULT),
    "everything": lambda: builder.everything(area=AREA_DEFAULT).disk,
    "fragmented": lambda: builder.fragmented_locators(area=AREA_DEFAULT).disk,
    "two areas": lambda: builder.two_metadata_areas().disk,
    "second area ignored": lambda: builder.two_metadata_areas("ignored").disk,
    "text wraps": lambda: builder.wrapped_text().disk,
    "qcow2": lambda: builder.qcow2_chain(area=AREA_DEFAULT).disk,
    "blocks of 4096": lambda: builder.four_k(area=AREA_DEFAULT).disk,
    "blocks of 4096, text wraps": lambda: builder.wrapped_text(block_size=4096).disk,  # the header's block has its end
    "512e": lambda: _512e(two_volumes(area=AREA_DEFAULT)),
    "512e, text wraps": lambda: _512e(builder.wrapped_text().disk),
    "label in sector 3": lambda: two_volumes(area=AREA_DEFAULT, label_sector=3),
    "golden tree": lambda: golden.load("tree").disk,
}
#: LUNs that are damaged, and are resignatured without a VDI
BROKEN = a_broken_vdi(area=AREA_DEFAULT)
WITHOUT = {"without": (BROKEN.truth.uuids["broken"],)}


def mgt_ranges(spoiled):
    """Where MGT lies on the device: the records of VDIs that are left behind change there."""
    return spoiled.truth.device_ranges("MGT", 0, spoiled.truth.volume("MGT").size)


@functools.lru_cache(maxsize=None)
def _image(name):
    disk = IMAGES[name]()
    disk.name = name
    disk.freeze()
    return disk


def image(name):
    """A copy of an image."""
    return _image(name).copy()


# -- runs -----------------------------------------------------------------------------------------------------------


def resignature(disk, seed=0, scsi_id=SCSI_ID, **more):
    return engine.resignature(
        disk, engine.prepare(disk, entropy(seed), engine.ResignatureRequest(scsi_id=scsi_id, **more))
    )


def undo(disk, seed=0):
    return engine.undo(disk, entropy(("undo", seed)))


def recover(disk, scsi_id=None):
    """Recover what is unfinished. False: nothing was."""
    mark = engine.find_unfinished(disk)
    if mark is None:
        return False
    engine.recover(disk, mark, scsi_id)
    return True


def read_mark(disk):
    """An earlier run, finished or not; None without a commit record."""
    label = survey.read_label(disk)
    tail = read_commit_record(label, disk.name)
    return None if tail is None else EarlierRun(label, tail, read_journal(disk, tail, label))


def recorded(disk, run=resignature, dropped_flush=None, **more):
    """A disk that remembers a run on it. Of the same run on the same bytes it is the same one: leave it as it is."""
    disk.freeze()
    return _recorded(_SameDisk(disk), run, dropped_flush, tuple(sorted(more.items())))


class _SameDisk:
    """A disk, equal to others with the same bytes, blocks and name."""

    def __init__(self, disk):
        self.disk = disk.copy()
        self.key = (disk.content(), disk.block_size, disk.physical_block_size, disk.name)

    def __eq__(self, other):
        return self.key == other.key

    def __hash__(self):
        return hash(self.key)


@functools.lru_cache(maxsize=256)
def _recorded(same, run, dropped_flush, more):
    crash = CrashDisk(same.disk, dropped_flush)
    run(crash, **dict(more))
    return crash


def done(disk, run=resignature, **more):
    """A copy of `disk` after a run that nobody cut."""
    return recorded(disk, run, **more).current.copy()


def cut_before(disk, flush, run=resignature, blocks=0, **more):
    """A copy of `disk` whose run lost power after `flush` - 1 flushes and `blocks` blocks more."""
    found = recorded(disk, run, **more).after_group(flush - 1, blocks)
    found.name = disk.name
    found.freeze()
    return found


def durable(crash):
    """What is on the disk if power goes now and nothing but what was flushed has reached it."""
    return crash.after_group(len(crash.groups) - 1)


# -- places ---------------------------------------------------------------------------------------------------------


def label_range(disk):
    """The label sector."""
    label = lvmreader.read_label(disk)
    return Range(label.sector * SECTOR, SECTOR)


def free_ring(disk):
    """The parts of the metadata areas that hold neither a header nor a committed text."""
    free = []
    for area in lvmreader.read_label(disk).mdas:
        mda = lvmreader.read_mda(disk, area)
        before_wrap = min(len(mda.text), area.length - mda.text_offset)
        live = [Range(area.offset + mda.text_offset, before_wrap)] if mda.text else []
        live += [Range(area.offset + SECTOR, len(mda.text) - before_wrap)] if mda.text else []
        position = area.offset + SECTOR
        for part in sorted(live) + [Range(area.end, 0)]:
            free.append(Range(position, max(0, part.offset - position)))
            position = max(position, part.end)
    return free


def same_but_for(one, other, ranges):
    return one.same_except(other, ranges)


# -- LVM ------------------------------------------------------------------------------------------------------------


def lvm_commit(disk, edit=None, times=1, precommit=False, wrap=False):
    """Change the VG as LVM does: the next text behind the committed one, round the ring; then the header.

    It goes to all areas that the label lists. `edit` changes the text, whose seqno grows by itself. `precommit`: LVM
    comes as far as slot 1. `wrap`: so many updates have come before that the text goes round the end of the ring.
    """
    for _ in range(times):
        for area in lvmreader.read_label(disk).mdas:
            mda = lvmreader.read_mda(disk, area)
            if not mda.ignored:
                _commit_in(disk, area, mda, edit, precommit, wrap)


def _commit_in(disk, area, mda, edit, precommit, wrap):
    text, count = re.subn(rb"(?<=\nseqno = )\d+", lambda seqno: b"%d" % (int(seqno.group()) + 1), mda.text)
    assert count == 1
    if edit:
        text = edit(text)
    at = area.length - 2 * SECTOR if wrap else mda.text_offset + build_lvm.ring_size(len(mda.text))
    if at >= area.length:
        at -= area.length - SECTOR
    build_lvm.put_text(disk, area, at, text)
    slots = [build_lvm.raw_locn(at, text)]
    if precommit:
        slots = [build_lvm.raw_locn(mda.text_offset, mda.text)] + slots
    disk.poke(area.offset, build_lvm.mda_header(area, slots))


def with_new_volume(text):
    """The metadata text with one more logical volume, a raw one, in a free extent."""
    tree = next(iter(lvmreader.parse_text(text).values()))
    last = tree["physical_volumes"]["pv0"]["pe_count"] - 2
    name = "LV-0a0b0c0d-0000-4000-8000-00000000000a"
    volume = build_lvm.LvText(name, builder.lvm_id(name), True, (), ((1, last),), 1795219866)
    lines = build_lvm.lv_text(volume).encode()
    return text.replace(b"logical_volumes {\n\n", b"logical_volumes {\n\n" + lines + b"\n\n", 1)


# -- the judge ------------------------------------------------------------------------------------------------------


class Fault(NamedTuple):
    claim: str  #: view, state, journal, recovery, guest, twice, undo, durable
    cut: str
    problem: str


class Judge:
    """What a LUN may be at any time of a run between `original` and `resignatured`, whichever way it leads.

    `target` is where recovery of a run that was cut behind its commit has to end, byte for byte; None: at
    `resignatured`. Before the commit it has to end at `start`, but for free ring space; None: at `original`. `states`
    are what `inspect` calls the two LUNs, `allowed` the bytes that may change where it is more than identities.
    """

    def __init__(self, original, resignatured, target=None, states=("clean", "resignatured"), allowed=None, start=None):
        self.original, self.resignatured = original, resignatured
        self.target, self.start = target or resignatured, start or original
        self.states = states
        self.vg_view = Recalled(lambda disk, _: lvmreader.vg_view(disk))
        self.inspected = Recalled(lambda disk, _: engine.inspect(disk)[:4])
        self.views = [lvmreader.vg_view(original), lvmreader.vg_view(resignatured)]
        self.start_view = lvmreader.vg_view(self.start)
        self.label = label_range(original)
        self.state_of = dict(zip((self.label_in(original), self.label_in(resignatured)), states))
        self.at_rest = {self.label_in(original): original, self.label_in(resignatured): resignatured}
        self.rings = {self.label_in(disk): free_ring(disk) for disk in (original, resignatured)}
        self.allowed = allowed or reader.layout_of(original).allowed
        self.seen, self.at_the_end = set(), set()  # what was looked at, what recovery led to
        assert all(same_but_for(original, disk, self.allowed) for disk in (resignatured, self.target))

    def watch(self, crash):
        """Learn from a run that was recorded which label sectors it writes."""
        for group in crash.groups:
            for block in group:
                if block.offset <= self.label.offset < block.offset + len(block.data):
                    at = self.label.offset - block.offset
                    self.state_of.setdefault(block.data[at : at + SECTOR], "unfinished")
        self.state_of.setdefault(self.label_in(crash.base), "unfinished")
        return self

    def label_in(self, disk):
        return disk.peek(self.label.offset, SECTOR)

    def state(self, disk):
        """What `inspect` should call a disk, by its label alone."""
        return self.state_of.get(self.label_in(disk), "unfinished")

    def new_faults(self, cut, disk, with_undo=True):
        """`faults`, of a disk that is like none before: cuts at different moments often leave the same bytes."""
        content = disk.content()
        if (content, True) in self.seen or (content, with_undo) in self.seen:
            return []
        self.seen.add((content, with_undo))
        return self.faults(cut, disk, with_undo)

    @property
    def looked_at(self):
        return len({content for content, _ in self.seen})

    def faults(self, cut, disk, with_undo=True):
        """Everything that is wrong with a disk that lost power."""
        found = self._view_faults(cut, disk) + self._state_faults(cut, disk)
        looks = [("recovery", self._recovery_faults)] + ([("undo", self._undo_faults)] if with_undo else [])
        for claim, look in looks:
            try:
                found += look(cut, disk.copy())
            except RelvmoiscsiError as error:
                found.append(Fault(claim, cut, f"{type(error).__name__}: {error}"))
        return found

    def _view_faults(self, cut, disk):
        if self.vg_view(disk) in self.views:
            return []
        return [Fault("view", cut, f"LVM sees {lvmreader.vg_view(disk)}")]

    def _state_faults(self, cut, disk):
        state, _lun, _tail, run = self.inspected(disk)
        if state == "unfinished" and run is None:
            return [Fault("journal", cut, "its mark leads to no journal")]
        return [] if state == self.state(disk) else [Fault("state", cut, "it is called " + state)]

    def _recovery_faults(self, cut, disk):
        found = []
        rest = self.at_rest.get(self.label_in(disk))
        if rest is not None:
            found += self._unlike(cut, "recovery", disk, rest)
        before = disk.copy()
        if not recover(disk) and disk == before:
            self.at_the_end.add(disk.content())  # it is how recovery found it
        if rest is None and self.vg_view(before) == self.start_view:
            found += self._unlike(cut, "recovery", disk, self.start)
        elif disk != (before if rest is not None else self.target):
            goal = before if rest is not None else self.target
            found.append(Fault("recovery", cut, f"it ends unlike it should at {disk.differences(goal)[:8]}"))
            if not same_but_for(disk, self.original, self.allowed):
                found.append(Fault("guest", cut, "bytes that are no identity have changed"))
        if disk.content() not in self.at_the_end:
            self.at_the_end.add(disk.content())
            again = disk.copy()
            if recover(again) or again != disk:
                found.append(Fault("twice", cut, "recovering again does something"))
        return found

    def _undo_faults(self, cut, disk):
        before = disk.copy()
        try:
            undo(disk)
        except Refused:
            if self.state(before) == self.states[0] != "resignatured" and disk == before:
                return []
            raise
        return self._unlike(cut, "undo", disk, self.original)

    def _unlike(self, cut, claim, disk, rest):
        """A fault unless the disk is `rest`, but for what lies in free ring space."""
        ring = self.rings[self.label_in(rest)]
        places = [item for item in disk.differences(rest) if not any(_inside(item, part) for part in ring)]
        return [Fault(claim, cut, f"it is not as it was at {places[:8]}")] if places else []


def _inside(item, part):
    return part.offset <= item.offset and item.end <= part.end


def every_fault(judge, crash, undo_every=1, **how):
    """The faults of all disks that power cuts during a recorded run could leave; the count of disks is printed.

    Undo is tried on one disk out of `undo_every`; 0: on none.
    """
    return list(each_fault(judge, crash, undo_every, **how))


def each_fault(judge, crash, undo_every=1, **how):
    """As `every_fault`, one after the other: whoever looks for one need not look on."""
    judge.watch(crash)
    for number, (cut, disk) in enumerate(crash.crash_images(**how)):
        yield from judge.new_faults(cut, disk, with_undo=undo_every > 0 and number % undo_every == 0)
    left = durable(crash)
    if left != crash.current:
        lost = left.differences(crash.current)[:8]
        yield Fault("durable", "after the run", f"it was reported as done, and {lost} could still be lost")
    print(f"{crash.name}: {judge.looked_at} different disks")


# --- writes that land late


def late_writes(base, end=None):
    """(n, failing disk) for each write of a resignature, or each before `end`, that fails and is on its way still."""
    whole = FailingDisk(base.copy())
    resignature(whole)
    for n, tried in enumerate(whole.tried, 1):
        if tried.action == "write" and (end is None or tried.offset < end):
            failing = FailingDisk(base.copy(), n, leaves="late")
            with contextlib.suppress(DeviceError):
                resignature(failing)
                raise AssertionError("a write failed, and nobody says so")
            assert failing.pending
            yield n, failing
