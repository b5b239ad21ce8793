# SPDX-License-Identifier: LGPL-2.1-only
"""Real LVM2 beside a run: what the run holds keeps every LVM command from the clone, and no command from other groups.

A run holds the device for itself (O_EXCL) and LVM's locks on the old and the new name of the volume group. `P_global`
stays free. Each LVM command of the tables starts while the run stands still behind one of its flushes.
"""

import contextlib
import threading
import time
from typing import NamedTuple

import pytest

from kit import builder, golden
from kit.judges import dice, expected, vg_of, with_new_ids
from kit.reader import read_vg
from relvmoiscsi import engine
from relvmoiscsi.device import Device
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.host.locks.lvm_locks import lvm_locks

SECONDS = 600  #: no test takes that long, unless a process waits for ever

JOURNAL, CONTENTS, HEADERS = 1, 3, 5  #: flushes of a run; the fourth is the commit
IN_THE_MIDDLE = (JOURNAL, CONTENTS, HEADERS)

#: of each kind the commands that LVM has. OLD is the name of the group, LV a volume of it, DEVICE its disk
COMMANDS = {
    "of the group": {  # each waits for the lock of the group
        "lvcreate": "-an -Zn -Wn -l 1 -n new OLD", "lvremove": "-y OLD/LV", "lvrename": "OLD LV new",
        "lvchange": "--addtag new OLD/LV", "vgchange": "--addtag new OLD", "vgrename": "OLD new", "vgexport": "OLD",
        "vgck": "--updatemetadata OLD", "vgchange -u": "OLD", "vgremove": "-ff -y OLD",
        "vgcfgrestore": "--force -f BACKUP OLD",
    },
    "of the disk": {  # the same, but they look which group the disk is in: after the commit that is the new one
        "vgs": "", "pvs": "", "vgscan": "", "pvchange": "--addtag new DEVICE", "pvchange -u": "DEVICE",
        "pvresize": "DEVICE", "vgimportclone": "DEVICE",
    },
    "of a free disk": {  # each needs the disk for itself
        "pvcreate": "-ff -y DEVICE", "pvremove": "-ff -y DEVICE", "vgcreate": "-y new DEVICE",
        "vgextend": "-y OTHER DEVICE",
    },
    "elsewhere": {  # each works on another group, or another disk
        "vgchange -an": "OTHER", "vgchange": "--addtag new OTHER", "lvcreate": "-an -Zn -Wn -l 1 -n new OTHER",
        "pvcreate": "-y BLANK", "vgcreate": "new BLANK", "vgextend": "-y OTHER BLANK", "vgremove": "-ff -y OTHER",
        "pvscan": "--cache BLANK",
    },
}  # fmt: skip


def each_of(*kinds):
    rows = [(kind, command) for kind in kinds for command in COMMANDS[kind]]
    return pytest.mark.parametrize("kind, command", rows, ids=[f"{command} {kind}" for kind, command in rows])


class Standing(Device):
    """A device on which a run stands still behind flush number `behind`, until it is told to `go_on`."""

    def __init__(self, device, behind):
        self.name, self.size_bytes = device.name, device.size_bytes
        self.block_size, self.physical_block_size = device.block_size, device.physical_block_size
        self._device, self._left = device, behind
        self.stands, self.go_on = threading.Event(), threading.Event()

    def read(self, ranges):
        return self._device.read(ranges)

    def write(self, chunks):
        self._device.write(chunks)

    def flush(self):
        self._device.flush()
        self._left -= 1
        if not self._left:
            self.stands.set()
            assert self.go_on.wait(SECONDS)

    def end_late_writes(self, of_another_host: bool = False) -> None:
        """No earlier run has sent a write that is still under way."""


class World:
    """A clone, another group and a blank disk, which one LVM sees; and what a run would make of the clone.

    Where LVM does not see the clone, it sees the clone's original.
    """

    def __init__(self, lvm, loops, tmp_path, sees_clone=True):
        self.before = golden.load("one").disk
        self.loop, other, blank = loops(self.before), loops(builder.one_vhd().disk), loops(_blank(self.before))
        seen = self.loop if sees_clone else loops(self.before)
        self.lvm = lvm.over(seen.path, other.path, blank.path)
        self.names = {"OLD": vg_of(self.before).name, "LV": vg_of(self.before).lvs[0].name, "DEVICE": seen.path,
                      "OTHER": vg_of(builder.one_vhd().disk).name, "BLANK": blank.path, "new": "new",
                      "BACKUP": str(tmp_path / "backup")}  # fmt: skip
        self.lvm("vgcfgbackup", "-f", self.names["BACKUP"], self.names["OLD"])
        self.after = self.before.copy()
        self.ids = engine.resignature(self.after, engine.prepare(self.after, dice("new ids"))).ids

    def begin(self, kind, command):
        given = [f"{self.names['OLD']}/{self.names['LV']}" if word == "OLD/LV" else self.names.get(word, word)
                 for word in COMMANDS[kind][command].split()]  # fmt: skip
        return self.lvm.begin(*command.split(), *given)

    def locked(self, prepared, timeout=SECONDS):
        return lvm_locks(engine.vg_names(prepared.plan.run), self.lvm.lock_directory, timeout)

    @contextlib.contextmanager
    def run_under_way(self, behind, with_locks=True):
        """The run stands behind a flush within the block, and then goes on to its end. Gives its errors."""
        errors = []
        with self.loop.open() as device, contextlib.ExitStack() as held:
            prepared = engine.prepare(device, dice("new ids"))
            if with_locks:
                held.enter_context(self.locked(prepared))
            standing = Standing(device, behind)
            run = threading.Thread(target=self._run, args=(standing, prepared, errors), daemon=True)
            run.start()
            assert standing.stands.wait(SECONDS)
            try:
                yield errors
            finally:
                standing.go_on.set()
                run.join(SECONDS)

    @staticmethod
    def _run(device, prepared, errors):
        try:
            engine.resignature(device, prepared)
        except RelvmoiscsiError as error:
            errors.append(error)


def _blank(disk):
    blank = disk.copy()
    blank.poke(0, bytes(8192))
    return blank


@pytest.fixture
def world(lvm, loops, tmp_path):
    return World(lvm, loops, tmp_path)


def waits_or_has_ended(command):
    """Once a command waits for an flock (True) or has ended (False)."""
    until = time.monotonic() + SECONDS
    while command.poll() is None:
        with open("/proc/locks", encoding="ascii") as locks:
            if any(line.split()[1:3] == ["->", "FLOCK"] and line.split()[5] == str(command.pid) for line in locks):
                return True
        assert time.monotonic() < until, "the command neither waits nor ends"
        time.sleep(0.01)  # the kernel tells nobody that a process begins to wait
    return False


class Ended(NamedTuple):
    """What became of a command that has begun while the run stood still."""

    has_waited: bool
    status: int
    said: str


def beside_the_run(world, kind, command, behind, with_locks=True):
    """The run has gone on and ended. It must have been well, unless it is `with_locks` no more."""
    with world.run_under_way(behind, with_locks) as errors:
        process = world.begin(kind, command)
        has_waited = waits_or_has_ended(process)
    ended = Ended(has_waited, *said_by(process))
    assert not with_locks or errors == [], ended
    return ended, errors


def verify_harmless(world, kind, command, behind, waits, fails):
    """The command ends as told, and the disk is what the run alone makes of it."""
    ended, _ = beside_the_run(world, kind, command, behind)

    assert (ended.has_waited, ended.status != 0) == (waits, fails), ended
    assert world.loop.disk() == world.after, ended


def said_by(process):
    said = process.communicate(timeout=SECONDS)[0].decode()
    return process.returncode, said


@pytest.mark.states("command", few=2)
@pytest.mark.parametrize("behind", IN_THE_MIDDLE)
@each_of("of the group")
def test_a_command_on_the_old_group_waits_and_then_finds_no_such_group(kind, command, behind, world):
    verify_harmless(world, kind, command, behind, waits=True, fails=True)


@pytest.mark.states("command", few=2)
@pytest.mark.parametrize("behind", IN_THE_MIDDLE)
@each_of("of the disk")
def test_a_command_that_looks_which_group_the_disk_is_in_leaves_volumes_and_group_whole(kind, command, behind, world):
    """If it has read the old group, it waits and writes nothing."""
    ended, _ = beside_the_run(world, kind, command, behind)

    assert ended.has_waited, ended
    if behind != HEADERS:
        assert world.loop.disk() == world.after, ended
        return
    own = world.lvm.over(world.loop.path)
    (seen,), new = own.seen(), expected(with_new_ids(vg_of(world.before), world.ids), world.loop.path)
    assert ended.status == 0 and seen.lvs == new.lvs and own("vgck") == "", ended
    if command not in ("pvchange -u", "vgimportclone"):  # which are asked for other ids
        assert (seen.name, seen.vg[1], seen.pvs[0][1]) == (new.name, new.vg[1], new.pvs[0][1]), ended


@pytest.mark.states("command", few=2)
@pytest.mark.parametrize("behind", IN_THE_MIDDLE)
@each_of("of a free disk")
def test_a_command_that_makes_or_wipes_a_pv_does_not_get_the_disk(kind, command, behind, world):
    verify_harmless(world, kind, command, behind, waits=False, fails=True)


@pytest.mark.states("command", few=2)
@pytest.mark.parametrize("behind", IN_THE_MIDDLE)
@each_of("elsewhere")
def test_a_command_on_another_group_ends_while_the_run_stands_still(kind, command, behind, world):
    verify_harmless(world, kind, command, behind, waits=False, fails=False)


@pytest.mark.states("command")
@each_of("of the group")
def test_twin_without_the_locks_the_command_does_harm(kind, command, world):
    ended, errors = beside_the_run(world, kind, command, CONTENTS, with_locks=False)

    assert not ended.has_waited and ended.status == 0, ended
    assert errors or world.loop.disk() != world.after


@pytest.mark.parametrize("command", ["pvcreate", "pvremove"])
def test_twin_without_the_claim_the_command_wipes_the_disk(command, world):
    assert said_by(world.begin("of a free disk", command))[0] == 0

    assert world.lvm.over(world.loop.path).attempt("vgs", world.names["OLD"]).status != 0


@contextlib.contextmanager
def asking(world):
    """An LVM command that has read the group, asks whether to go on, and holds the lock of the group meanwhile."""
    process = world.lvm.begin("pvresize", "--setphysicalvolumesize", "900M", world.names["DEVICE"])
    said = b""
    while b"Proceed?" not in said:
        piece = process.stdout.read1(4096)
        assert piece, said
        said += piece
    yield process
    process.communicate(b"y\n", timeout=SECONDS)
    assert process.returncode == 0


def test_a_command_that_read_before_the_run_keeps_the_run_from_beginning(world):
    with world.loop.open() as device:
        prepared = engine.prepare(device, dice("new ids"))
        with asking(world), pytest.raises(Refused, match="did not become free in time"), world.locked(prepared, 0):
            pytest.fail("the lock is held twice")
        assert world.lvm.over(world.loop.path).seen()[0].name == world.names["OLD"]


def test_twin_without_the_locks_a_command_that_read_before_the_run_restores_old_bytes(world):
    with world.loop.open() as device:
        prepared = engine.prepare(device, dice("new ids"))
        with asking(world):
            engine.resignature(device, prepared)
            assert world.loop.disk() == world.after

    assert read_vg(world.loop.disk()).name == world.names["OLD"]


# --- a clone that LVM does not see


@pytest.fixture
def unseen(lvm, loops, tmp_path):
    return World(lvm, loops, tmp_path, sees_clone=False)


@pytest.mark.states("command")
@each_of("of the group", "of the disk", "of a free disk")
def test_a_clone_that_lvm_does_not_see_needs_no_lock_and_commands_on_its_original_wait_for_nothing(
    kind, command, unseen
):
    ended, errors = beside_the_run(unseen, kind, command, CONTENTS, with_locks=False)

    assert not ended.has_waited and errors == [], ended
    assert unseen.loop.disk() == unseen.after, ended


def test_twin_with_the_locks_of_its_names_a_command_on_the_original_waits(unseen):
    ended, _ = beside_the_run(unseen, "of the group", "lvcreate", CONTENTS)

    assert ended.has_waited and ended.status == 0, ended
