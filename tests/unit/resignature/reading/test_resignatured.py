# SPDX-License-Identifier: LGPL-2.1-only
"""A label says that a LUN was resignatured, and PV and VG prove it: then no part of the LUN names another SR.

A writer of the LUN has changed the rest. The storage manager and tapdisk would follow these names.
"""

import pytest

from kit import build_lvm, golden, live
from kit.builder import SMALL_BAT, build_sr, journal, qcow2, raw, vhd
from kit.cuts import SCSI_ID, entropy, resignature
from kit.forged_record import prove_record
from kit.lvmreader import read_label, read_mda
from kit.spoiled import Spoiled
from relvmoiscsi import engine
from relvmoiscsi.errors import FormatError
from relvmoiscsi.formats import vhd as vhds

OTHER_SR = "0a0b0c0d-1111-4222-8333-444444444444"
OTHER_VDI = "0a0b0c0d-5555-4666-8777-888888888888"
REQUEST = engine.ResignatureRequest(scsi_id=SCSI_ID)
HEADER, LOCATORS = 512, "locators"


def spelled(identity):
    return identity.replace("-", "--")


class Done:
    """A LUN that was resignatured, and what a writer does to it."""

    def __init__(self):
        table = {"bat_entries": SMALL_BAT}
        volumes = [vhd("base", hidden=True, in_mgt=False, **table), vhd("leaf", "base", blocks=0, **table)]
        built = build_sr([*volumes, raw("other"), raw("journal", in_mgt=False)], free_extents=8)
        self.old_sr, self._spoiled = built.truth.sr_uuid, Spoiled(built)
        self.disk = self._spoiled.disk
        self.ids = resignature(self.disk).ids
        self.sr, self.vdis = self.ids.new_sr, {key: self.ids.uuids[old] for key, old in built.truth.uuids.items()}

    def name_parent_of_leaf(self, *places, sr, vdi):
        """Let header or locators of the leaf name the VHD `vdi` of `sr`; the header's checksum is right."""
        header = vhds.DynamicHeader.at(self._spoiled.peek(("leaf", HEADER), 1024))
        if HEADER in places:
            name = self._renamed(header.parent_name, vhds.NAME_CODEC, sr, vdi)
            self._spoiled.poke(("leaf", HEADER), bytes(vhds.sealed(header.replace(parent_name=name))))
        for number, (_at, one) in enumerate(vhds.used_locators(header)):
            if LOCATORS in places or number in places:
                place, codec = ("leaf", one.data_offset), vhds.LOCATOR_CODECS[one.code]
                text = self._spoiled.peek(place, one.data_length)
                self._spoiled.poke(place, self._renamed(text, codec, sr, vdi))

    def _renamed(self, text, codec, sr, vdi):
        for old, new in ((self.sr, sr), (self.vdis["base"], vdi)):
            text = text.replace(spelled(old).encode(codec), spelled(new).encode(codec))
        return text

    def begin_work(self, journal_name):
        """Let a journal of SM say that work on the leaf was under way. The base copy of a snapshot is the base."""
        (area,) = read_label(self.disk).mdas
        text = read_mda(self.disk, area).text.decode("latin-1")
        at = text.index("LV-" + self.vdis["journal"])
        name = journal_name.format(**self.vdis)
        rest = text[at:].replace("LV-" + self.vdis["journal"], name, 1)
        data = (text[:at] + rest.replace("flags = []", 'flags = []\ntags = ["journaler"]', 1)).encode("latin-1")
        build_lvm.put_text(self.disk, area, 512, data)
        self.disk.poke(area.offset, build_lvm.mda_header(area, [build_lvm.raw_locn(512, data)]))
        value = self.vdis["base"] + "_"
        self._spoiled.poke(("journal", 0), f"{len(value)} {value}".encode().ljust(512, b"\0"))

    def begin_snapshot(self):
        self.begin_work("clone_{leaf}_1")

    def begin_inflation(self):
        self.begin_work("inflate_{leaf}_4194304")

    def make_leaf_of_another_vhd(self):
        header = vhds.DynamicHeader.at(self._spoiled.peek(("leaf", HEADER), 1024)).replace(parent_uuid=b"\x77" * 16)
        self._spoiled.poke(("leaf", HEADER), bytes(vhds.sealed(header)))

    def name_sr_in_mgt(self, sr):
        mgt = self._spoiled.peek(("MGT", 0), 2048)
        self._spoiled.poke(("MGT", 0), mgt.replace(self.sr.encode(), sr.encode()))

    def clear_leaf(self):
        self._spoiled.poke(("leaf", 0), bytes(4096))

    def write_to_leaf(self, first=None, last=None):
        """Put these bytes into the first and the last sector of the leaf."""
        size = self._spoiled.truth.volume("leaf").size
        for offset, data in ((0, first), (size - 512, last)):
            if data is not None:
                self._spoiled.poke(("leaf", offset), data.ljust(512, b"\0"))

    def leaf_footer(self, **changes):
        return bytes(vhds.sealed(vhds.Footer.at(self._spoiled.peek(("leaf", 0), 512)).replace(**changes)))


def locators(done):
    done.name_parent_of_leaf(LOCATORS, sr=OTHER_SR, vdi=OTHER_VDI)


def last_locator(done):
    done.name_parent_of_leaf(2, sr=OTHER_SR, vdi=done.vdis["base"])


def header(done):
    done.name_parent_of_leaf(HEADER, sr=OTHER_SR, vdi=done.vdis["base"])


def leaf_that_goes(done):
    """The settled LUN is without the leaf. SM finds a leaf that is whole, and completes the snapshot."""
    done.name_parent_of_leaf(HEADER, LOCATORS, sr=OTHER_SR, vdi=done.vdis["base"])
    done.make_leaf_of_another_vhd()
    done.begin_snapshot()


def leaf_that_goes_unread(done):
    done.begin_snapshot()
    done.clear_leaf()


def leaf_that_goes_without_a_copy(done):
    """libvhd finds the VHD by the footer in the last sector."""
    leaf_that_goes(done)
    done.write_to_leaf(first=b"")


def leaf_that_goes_with_an_old_footer(done):
    """libvhd also finds a footer that ends the volume, and has 511 bytes."""
    leaf_that_goes(done)
    done.write_to_leaf(first=b"", last=b"\0" + done.leaf_footer()[:511])


def leaf_that_goes_without_an_end(done):
    """libvhd finds the VHD by the copy of the footer in the first sector."""
    leaf_that_goes(done)
    done.write_to_leaf(last=b"")


def leaf_that_goes_with_another_end(done):
    """The end footer may lead libvhd to another header."""
    done.make_leaf_of_another_vhd()
    done.begin_snapshot()
    done.write_to_leaf(last=done.leaf_footer(uuid=b"\x66" * 16, data_offset=1 << 20))


def leaf_that_grows(done):
    """SM overwrites the end footer of another VHD, and keeps the parent."""
    header(done)
    done.begin_inflation()
    done.write_to_leaf(last=done.leaf_footer(uuid=b"\x66" * 16))


def mgt(done):
    done.name_sr_in_mgt(done.old_sr)


#: by what a writer does: words of the problem, and whether another resignature mends it
FORGED = {
    locators: (f"it is a volume of another SR, {OTHER_SR}", False),
    last_locator: (f"it is a volume of another SR, {OTHER_SR}", False),
    header: (f"it is a volume of another SR, {OTHER_SR}", False),
    leaf_that_goes: (f"it is a volume of another SR, {OTHER_SR}", True),
    leaf_that_goes_unread: ("VHD footer copy at byte 0", True),
    leaf_that_goes_without_a_copy: ("VHD footer copy at byte 0", True),
    leaf_that_goes_with_an_old_footer: ("VHD footer copy at byte 0", True),
    leaf_that_goes_without_an_end: (f"it is a volume of another SR, {OTHER_SR}", True),
    leaf_that_goes_with_another_end: ("it is the footer of another VHD", True),
    leaf_that_grows: (f"it is a volume of another SR, {OTHER_SR}", False),
    mgt: ("it names the SR ", True),
}


@pytest.mark.parametrize("forge", FORGED, ids=lambda forge: forge.__name__)
def test_a_resignatured_lun_that_names_another_sr_is_damaged_at_each_entrance(forge):
    done, (words, _is_mended) = Done(), FORGED[forge]
    original = done.disk.copy()
    forge(done)
    before = done.disk.copy()

    found = engine.inspect(done.disk)
    assert engine.find_done(done.disk, REQUEST) is None
    with pytest.raises(FormatError) as prepared:
        engine.prepare(done.disk, entropy(9), REQUEST)
    with pytest.raises(FormatError) as compared:
        engine.compare(original, done.disk)

    assert found.state == engine.DAMAGED and found.lun is None and found.readable is not None
    for problem in (found.problem, prepared.value, compared.value):
        assert words in problem.message, problem
    assert prepared.value.message.endswith("was resignatured before, and was damaged after that.")
    assert all(" --again" in problem.advice for problem in (found.problem, prepared.value))
    assert done.disk == before


@pytest.mark.parametrize("forge", [one for one in FORGED if FORGED[one][1]], ids=lambda forge: forge.__name__)
def test_another_resignature_mends_what_the_advice_says_so_of(forge):
    done = Done()
    forge(done)

    resignature(done.disk, seed=2, again=True)

    found = engine.inspect(done.disk)
    assert found.state == engine.RESIGNATURED and found.lun.sr_uuid != done.sr and found.lun.work is None


def cut_reparenting(done):
    """`vhd-util modify -p` writes the locators first, and was cut. Both names are of this SR."""
    done.name_parent_of_leaf(LOCATORS, sr=done.sr, vdi=done.vdis["journal"])


def leaf_before_its_image(done):
    done.begin_snapshot()
    done.clear_leaf()
    done.write_to_leaf(last=b"of a guest")


def leaf_of_a_lost_parent(done):
    """LVM does not wipe a new volume: this one has the VHD of a disk that was deleted, of a parent that is gone."""
    done.name_parent_of_leaf(HEADER, LOCATORS, sr=done.sr, vdi=OTHER_VDI)
    done.begin_snapshot()


def leaf_of_another_parent(done):
    """The same, when the SR has got another VHD of the parent's name."""
    done.make_leaf_of_another_vhd()
    done.begin_snapshot()


HONEST = [Done.begin_snapshot, cut_reparenting, leaf_before_its_image, leaf_of_a_lost_parent, leaf_of_another_parent]


@pytest.mark.parametrize("honest", HONEST, ids=lambda honest: honest.__name__)
def test_the_work_of_the_storage_manager_on_a_resignatured_lun_is_no_damage(honest):
    done = Done()
    honest(done)

    assert engine.inspect(done.disk).state == engine.RESIGNATURED
    assert isinstance(engine.prepare(done.disk, entropy(9), REQUEST), engine.AlreadyDone)
    assert engine.find_done(done.disk, REQUEST) is not None


def qcow2_before_its_image():
    """A snapshot behind `lvcreate`, in front of `qemu-img create`."""
    leaf_and_base = [qcow2("base", vate=0, in_mgt=False), qcow2("leaf", "base")]
    built = build_sr([*leaf_and_base, raw("other"), journal("clone", "leaf", "{base}_")])
    return Spoiled(built).poke(("leaf", 0), bytes(4096)).disk


AT_WORK = {name: lambda name=name: golden.load_live(name).disk for name in golden.LIVE_NAMES}
AT_WORK.update({name: lambda make=make: make().built.disk for name, make in live.STATES.items()})
AT_WORK["clone: after_lvcreate, QCOW2"] = qcow2_before_its_image


@pytest.mark.states
@pytest.mark.parametrize("name", AT_WORK)
def test_a_resignatured_lun_may_be_in_each_state_in_which_a_run_takes_a_clone(name):
    disk = AT_WORK[name]()
    is_taken = engine.inspect(disk.copy()).state == engine.CLEAN
    done = prove_record(disk.copy(), SCSI_ID)

    found = engine.inspect(done)

    assert found.state == (engine.RESIGNATURED if is_taken else engine.DAMAGED), found.problem
    assert (engine.find_done(done, REQUEST) is not None) == is_taken
    if is_taken:
        assert isinstance(engine.prepare(done, entropy(9), REQUEST), engine.AlreadyDone)
