# SPDX-License-Identifier: LGPL-2.1-only
"""A probe waits for nobody: xapi attaches no disk on this host while it runs."""

import json
import uuid
from xml.etree import ElementTree

import pytest

from kit import builder, golden
from kit.clock import Clock
from kit.cuts import SCSI_ID as CUT_ID
from kit.cuts import done
from kit.driver_calls import DEVICE_CONFIG, SCSI_ID
from kit.sparse import SparseDisk
from relvmoiscsi import engine
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.device import CountingDevice, ForwardingDevice
from relvmoiscsi.errors import Busy, DeviceError, FormatError, NotFound
from relvmoiscsi.formats import saved_vms
from relvmoiscsi.lun.call import CallLun
from relvmoiscsi.pool import lun_answers, luns
from relvmoiscsi.pool.records import ProbePortal
from relvmoiscsi.sr_driver import probe
from relvmoiscsi.sr_driver.hba import HBA
from relvmoiscsi.sr_driver.iscsi import ISCSI
from relvmoiscsi.sr_driver.protocol import Call


@pytest.fixture
def probing():
    """A probe whose LUN cannot be reached for this reason; what it was given."""

    def ends_in(error, seconds=0, transport=ISCSI):
        found, clock = [], Clock()

        class Unreached(CallLun):
            def read(self, work):
                found.append(self)
                clock.now += seconds
                raise error

        def open_lun(call, config, xapi, smlog, deadline, lock_seconds):
            return Unreached(config.scsi_id, deadline, lock_seconds)

        answer = probe.sr_probe(
            Call("sr_probe", {}),
            ISCSI.parse_config(DEVICE_CONFIG),
            None,
            None,
            Deadline(50, clock),
            transport._replace(open_lun=open_lun),
        )
        return answer, found[0]

    return ends_in


def test_where_somebody_is_at_work_it_says_so_at_once(probing):
    answer, lun = probing(Busy("The lock /var/lock/sm/x is held by process 12."))

    (row,) = ElementTree.fromstring(answer).findall("SR")
    assert {field.tag: field.text for field in row} == {
        "Devlist": SCSI_ID,
        "state": "busy",
        "problem": "The lock /var/lock/sm/x is held by process 12.",
    }
    assert (lun.lock_seconds, lun.deadline.left) == (0, 12)
    _, lun = probing(Busy("A slow host scanned for nine seconds and had 2.7 left for a map."), transport=HBA)
    assert lun.deadline.left == 50


@pytest.mark.parametrize("seconds, words", [(13, "no such LUN. Nothing was written."), (0, "no such LUN")])
def test_anything_else_is_an_error_that_says_what_the_lun_is_at_the_end_of_its_time(probing, seconds, words):
    with pytest.raises(NotFound, match=words):
        probing(NotFound("There is no such LUN."), seconds=seconds)


def test_a_copy_of_a_resignatured_lun_is_told_from_that():
    """Both hold the same SR; the mark in the label says which LUN it was made on."""
    disk = done(golden.load("one").disk)
    first, second = (ElementTree.fromstring(probe.document(disk, scsi_id)) for scsi_id in (CUT_ID, CUT_ID[:-1] + "9"))

    assert first.findtext("SR/UUID") == second.findtext("SR/UUID")
    assert (first.findtext("SR/copied"), second.findtext("SR/copied")) == (None, "true")


def test_what_one_vdi_would_come_to_is_said_of_a_lun_with_an_sr_alone():
    chain, empty = golden.load("chain").disk, SparseDisk(1 << 20)
    first, second = (ElementTree.fromstring(probe.document(disk, CUT_ID)) for disk in (chain, empty))

    assert first.findtext("SR/one_vdi") == engine.one_vdi(chain, engine.inspect(chain).lun).state
    assert (second.findtext("SR/state"), second.find("SR/one_vdi")) == ("empty", None)


def test_what_the_vdis_of_a_resignatured_lun_were_unless_they_do_not_fit_into_an_answer(monkeypatch):
    before = golden.load("chain").disk
    old = engine.inspect(before).lun.disks()
    after = done(before.copy())

    assert ElementTree.fromstring(probe.document(after, CUT_ID)).findtext("SR/old_vdis").split() == sorted(old)
    assert ElementTree.fromstring(probe.document(before, CUT_ID)).find("SR/old_vdis") is None
    monkeypatch.setattr(probe, "MOST_BYTES", len(probe.document(after, CUT_ID)) - 200)
    assert ElementTree.fromstring(probe.document(after, CUT_ID)).find("SR/old_vdis") is None


# --- what others than the storage manager may have written


def with_contents(volumes, contents):
    """An SR with these volumes, and their content by key."""
    built = builder.build_sr(volumes)
    for key, content in contents.items():
        done = 0
        for part in built.truth.device_ranges(key, 0, len(content)):
            built.disk.poke(part.offset, content[done : done + part.length])
            done += part.length
    return built.disk


def answered(volumes, records=None):
    """The answer about an SR with these volumes, its state first."""
    text = probe.document(with_contents(volumes, records or {}), SCSI_ID)
    assert len(text.encode()) < 65536
    return text


def saved_names(*names):
    vms = [saved_vms.SavedVm(str(uuid.UUID(int=at)), name, "Halted", ()) for at, name in enumerate(names)]
    return saved_vms.pack(
        "0a0b0c0d-0000-4000-8000-000000000001", "2026-11-28T00:00:00Z", 1, [saved_vms.packed(vm, b"x") for vm in vms]
    )


@pytest.mark.parametrize("names", [["n" * 1100000], ["web"] * 20000, ["\N{SNOWMAN}" * 200] * 100, ["&" * 128] * 500])
def test_names_that_a_guest_has_written_fill_no_answer(names):
    text = answered(
        [builder.raw("web", label=saved_vms.NAME_LABEL), builder.vhd("other")], {"web": saved_names(*names)}
    )

    lun = lun_answers.reported(luns.PoolLun("3600a", "", ProbePortal("192.0.2.1", "iqn.x:y", "3260")), text)
    assert lun.kind == "clean" and lun.vms_saved
    assert lun.vms[-1:] in (("…",), ("n" * 128,), ())


HUGE = saved_vms.SavedHeader(bytes(512)).replace(
    magic=saved_vms.MAGIC, version=1, index_length=saved_vms.MOST_INDEX_BYTES, length=saved_vms.MOST_BYTES
)
HUGE = bytes(HUGE.replace(crc=saved_vms._crc(HUGE)))


def named_as_records(count):
    """An SR with the records of "web", and with raw disks of that name whose headers claim the most bytes."""
    disks = [builder.raw(f"r{at}", label=saved_vms.NAME_LABEL, extents=17) for at in range(count)]
    contents = {**dict.fromkeys((disk.key for disk in disks), HUGE), "web": saved_names("web")}
    return with_contents([builder.raw("web", label=saved_vms.NAME_LABEL), *disks], contents)


def test_disks_with_the_name_of_saved_records_cost_a_probe_their_headers_alone():
    """Any VM administrator may make such disks, and each may claim 64 MiB."""

    def cost(count):
        device = CountingDevice(named_as_records(count))
        text = probe.document(device, SCSI_ID)
        assert ElementTree.fromstring(text).findtext("SR/vms") == '["web"]'
        return device.bytes_read, device.read_batches

    (few, batches), (many, as_many) = cost(1), cost(31)
    assert many - few < 30 * 8192 and batches == as_many


def test_a_disk_with_the_name_of_saved_records_that_cannot_be_read_hides_no_lun():
    class Bad(ForwardingDevice):
        def read(self, ranges):
            if any(part.length == 512 and bytes(disk.read([part])[0][:16]) == saved_vms.MAGIC for part in ranges):
                raise DeviceError("sdb", "read", ranges[0].offset, 512, "a bad sector")
            return super().read(ranges)

    disk = named_as_records(1)
    found = ElementTree.fromstring(probe.document(Bad(disk), SCSI_ID))
    assert found.findtext("SR/state") == "clean" and found.find("SR/vms") is None


def test_a_few_names_are_all_there():
    text = answered(
        [builder.raw("web", label=saved_vms.NAME_LABEL)], {"web": saved_names("web", "d\N{SNOWMAN}b", "<&>")}
    )
    assert json.loads(ElementTree.fromstring(text).findtext("SR/vms")) == ["web", "d\N{SNOWMAN}b", "<&>"]


def test_names_that_cannot_be_read_hide_no_lun():
    for names in ("x", "[1]", json.dumps(["n" * 20000]), "[" * 30):
        text = f"<SRlist><SR><state>clean</state><vms>{names}</vms></SR></SRlist>"
        lun = lun_answers.reported(luns.PoolLun("3600a", "", ProbePortal("192.0.2.1", "iqn.x:y", "3260")), text)
        assert (lun.kind, lun.vms) == ("clean", None)


def test_the_databases_of_many_pools_are_an_error_and_not_a_part_of_them():
    """A part could lack the pool that asks, and its refusal to attach."""

    def of(count):
        disks = [builder.vhd(f"disk{at}") for at in range(count)]
        names = [disk.record._replace(metadata_of_pool=f"OpaqueRef:{at:036}") for at, disk in enumerate(disks)]
        return answered([disk._replace(record=record) for disk, record in zip(disks, names)])

    assert len(ElementTree.fromstring(of(30)).findtext("SR/metadata_of").split()) == 30
    with pytest.raises(FormatError, match="names the databases of 101 pools"):
        of(101)
