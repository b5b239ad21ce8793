# SPDX-License-Identifier: LGPL-2.1-only
"""The initiator against real targets, tgt and istgt, and its PDUs before tshark."""

import random
import threading

import pytest
from test_dissected import none_is_malformed

from kit import golden
from kit.iscsi.hostile import HostileTarget
from kit.iscsi.lun import MIB
from kit.iscsi.options import Chap
from kit.iscsi.programs import Export, Istgt, Tgt, require
from kit.iscsi.proxy import CuttingProxy
from kit.sparse import SparseDisk
from relvmoiscsi import engine
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.iscsi import Credentials, Initiator, Portal, connect, discover, link, list_luns, open_lun

ME = Initiator("iqn.2026-01.test:me", "0a0b0c0d-0000-4000-8000-000000000001")
USER, TARGET = Chap("user", "sesamesesame"), Chap("target", "emasesemases")
BOTH = Credentials(*USER, *TARGET)
NONE = Credentials()
PHYSICAL_BLOCK = 4096  #: of tgt's LUNs with blocks of 512


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A machine may stand still for longer than a target may be silent."""
    for name in ("SILENCE_SECONDS", "NO_STEP_SECONDS"):
        monkeypatch.setattr(link, name, 600.0)


def entropy(name):
    dice = random.Random(f"seed of {name}")
    return lambda count: bytes(dice.getrandbits(8) for _ in range(count))


def resignatured(device, name, scsi_id):
    return engine.resignature(device, engine.prepare(device, entropy(name), engine.ResignatureRequest(scsi_id=scsi_id)))


def lun_of(target, number=1, writable=True, credentials=NONE, seconds=600):
    return open_lun(
        [Portal("127.0.0.1", target.port)], target.iqn, ME, number, writable, Deadline(seconds), credentials
    )


def image(tmp_path, name="lun.img", size=4 * MIB):
    path = tmp_path / name
    with open(str(path), "wb") as file:
        file.truncate(size)
    return path


def work(device):
    """Every way of moving data: small, unaligned, of several bursts."""
    data = random.Random("work").getrandbits(8 * MIB).to_bytes(MIB, "big")
    step = device.block_size
    device.write([Chunk(step * 3 * number, data[number * step : (number + 1) * step]) for number in range(40)])
    device.write([Chunk(MIB, data)])
    device.flush()
    found = device.read([Range(step * 3 * number, step) for number in range(40)] + [Range(MIB + 5, MIB - 10)])
    assert found[:-1] == [data[number * step : (number + 1) * step] for number in range(40)]
    assert found[-1] == data[5:-5]


@pytest.mark.states("name", few=3)
@pytest.mark.parametrize("name", golden.NAMES + golden.LIVE_NAMES)
def test_a_resignature_through_tgt_gives_the_bytes_of_one_on_the_file(tmp_path, name):
    require("tgtd", "tgtadm", "setpriv")
    disk = (golden.load if name in golden.NAMES else golden.load_live)(name).disk
    for file in ("lun.img", "file.img"):
        disk.to_file(str(tmp_path / file))
    with Tgt(tmp_path, [Export(1, tmp_path / "lun.img")]) as tgt, lun_of(tgt) as device:
        scsi_id = device.info.scsi_id
        assert device.physical_block_size == PHYSICAL_BLOCK
        resignatured(device, name, scsi_id)
    with open_device(str(tmp_path / "file.img"), writable=True) as file:
        file.physical_block_size = PHYSICAL_BLOCK
        resignatured(file, name, scsi_id)

    assert SparseDisk.from_file(str(tmp_path / "lun.img")) == SparseDisk.from_file(str(tmp_path / "file.img"))


@pytest.mark.states("more")
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"HeaderDigest": "CRC32C"},
        {"DataDigest": "CRC32C"},
        {"HeaderDigest": "CRC32C", "DataDigest": "CRC32C", "MaxRecvDataSegmentLength": 8192},
        {"MaxRecvDataSegmentLength": 512},
        {"ImmediateData": "No"},
        {"FirstBurstLength": 4096, "MaxBurstLength": 8192},
        {"chap": USER},
        {"chap": USER, "mutual": TARGET},
    ],
    ids=lambda more: ", ".join(more) or "plain",
)
def test_tgt_is_read_and_written(tmp_path, more):
    require("tgtd", "tgtadm", "setpriv")
    credentials = BOTH if "mutual" in more else Credentials(*USER) if "chap" in more else Credentials()
    with Tgt(tmp_path, [Export(1, image(tmp_path))], **more) as tgt, lun_of(tgt, credentials=credentials) as device:
        work(device)


def test_luns_of_any_number_and_block_are_found(tmp_path):
    require("tgtd", "tgtadm", "setpriv")
    exports = [
        Export(1, image(tmp_path)),
        Export(300, image(tmp_path, "b.img"), 4096),
        Export(7, image(tmp_path, "c.img")),
    ]
    with Tgt(tmp_path, exports[:2] + [exports[2]._replace(read_only=True)]) as tgt:
        portals = [Portal("127.0.0.1", tgt.port)]
        assert [(found.iqn, found.portals) for found in discover(portals, ME, Credentials(), Deadline(600))] == [
            (tgt.iqn, tuple(portals))
        ]
        found = list_luns(portals, tgt.iqn, ME, Deadline(600))
        assert [(one.number, one.block_size, one.problem) for one in found] == [
            (1, 512, ""),
            (7, 512, ""),
            (300, 4096, ""),
        ]
        assert len({one.scsi_id for one in found}) == 3
        with lun_of(tgt, 300) as device:
            work(device)
        with pytest.raises(RelvmoiscsiError, match="read-only"), lun_of(tgt, 7):
            pass
        with lun_of(tgt, 7, writable=False) as device:
            assert device.read([Range(0, 512)]) == [bytes(512)]


@pytest.mark.parametrize(
    "credentials, words",
    [
        (Credentials(), "CHAP"),
        (Credentials(USER.user, "another secret"), "CHAP user or secret"),
        (Credentials(*USER, TARGET.user, "another secret"), "could not prove itself"),
    ],
)
def test_tgt_refuses_and_is_refused(tmp_path, credentials, words):
    require("tgtd", "tgtadm", "setpriv")
    with Tgt(tmp_path, [Export(1, image(tmp_path))], chap=USER, mutual=TARGET) as tgt:
        asked = lun_of(tgt, credentials=credentials)
        with pytest.raises(RelvmoiscsiError, match=words) as caught, asked:
            pass

    assert caught.value.sm_key == "ISCSILogin"


def test_a_target_that_is_killed_and_started_again_has_all_bytes(tmp_path, monkeypatch):
    require("tgtd", "tgtadm", "setpriv")
    path, asked = image(tmp_path), threading.Event()

    def why_not(portal, *rest, real=connect._why_not):
        asked.set()  # a connection was refused
        return real(portal, *rest)

    monkeypatch.setattr(connect, "_why_not", why_not)
    with Tgt(tmp_path, [Export(1, path)]) as tgt, lun_of(tgt) as device:
        for number in range(2):
            device.write([Chunk(4096 * number, bytes([number + 1]) * 4096)])
            tgt.kill()
            flush = threading.Thread(target=device.flush)
            flush.start()
            assert asked.wait(600)
            asked.clear()
            tgt.start()  # in this thread, as the program ends with the thread that starts it
            flush.join()
        assert device.read([Range(0, 8192)]) == [b"".join(bytes([number + 1]) * 4096 for number in range(2))]


def test_a_target_that_stops_for_a_while_is_waited_for_or_left_for_another_session(tmp_path, monkeypatch):
    require("tgtd", "tgtadm", "setpriv")
    with Tgt(tmp_path, [Export(1, image(tmp_path))]) as tgt, lun_of(tgt) as device:
        for patience in (600.0, 0.4):
            monkeypatch.setattr(link, "SILENCE_SECONDS", patience)
            tgt.freeze()
            timer = threading.Timer(1.0, tgt.thaw)
            timer.start()
            device.write([Chunk(0, b"w" * 512)])
            device.flush()
            assert device.read([Range(0, 512)]) == [b"w" * 512]
            timer.join()


@pytest.mark.parametrize("digest", ["Auto", "Header Data"])
def test_istgt_is_read_and_written(tmp_path, digest):
    require("istgt", "setpriv")
    with Istgt(tmp_path, [image(tmp_path)], digest=digest) as istgt, lun_of(istgt, 0) as device:
        work(device)


def test_istgt_wants_chap_for_the_discovery(tmp_path):
    require("istgt", "setpriv")
    with Istgt(tmp_path, [image(tmp_path)], chap=USER, mutual=TARGET, discovery_chap=True) as istgt:
        found = discover([Portal("127.0.0.1", istgt.port)], ME, BOTH, Deadline(600))
        assert istgt.iqn in [one.iqn for one in found]
        with lun_of(istgt, 0, credentials=BOTH) as device:
            work(device)


def test_tshark_finds_no_malformed_pdu(tmp_path):
    require("tshark")
    pieces = []
    for quirks in ((), ("header_digest",), ("pings", "small_segments", "no_immediate_data"), ("chap_mutual",)):
        with HostileTarget(quirks=quirks) as target, CuttingProxy(target.portal) as proxy:
            options = target.options
            credentials = Credentials(*(options.chap or ("", "")), *(options.mutual or ("", "")))
            where = [Portal("127.0.0.1", proxy.port)]
            discover(where, ME, credentials, Deadline(600))
            with open_lun(where, target.iqn, ME, target.luns[0].scsi_id, True, Deadline(600), credentials) as device:
                device.write([Chunk(512 * 3 * number, bytes([number]) * 1024) for number in range(40)])
                device.flush()
                device.read([Range(0, 65536)])
                device._link.session.reset_lun(target.luns[0].address)
                device._link.wait(lambda device=device: device._link.session.reset_response is not None, "the reset")
        pieces.append(proxy.pieces)

    none_is_malformed(tmp_path, pieces, ("0x01", "0x02", "0x03", "0x04", "0x06"))
