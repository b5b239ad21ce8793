# SPDX-License-Identifier: LGPL-2.1-only
"""The initiator against real targets, tgt and istgt, and its PDUs before tshark."""

import os
import random
import subprocess
import threading

import pytest

from kit.iscsi.hostile import HostileTarget
from kit.iscsi.lun import MIB
from kit.iscsi.options import Chap
from kit.iscsi.programs import Export, Istgt, Tgt, require
from kit.iscsi.proxy import CuttingProxy, write_pcap
from kit.iscsi.wire import Pdu
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.iscsi import Credentials, Initiator, Portal, connect, discover, link, list_luns, open_lun

ME = Initiator("iqn.2026-01.test:me", "0a0b0c0d-0000-4000-8000-000000000001")
USER, TARGET = Chap("user", "sesamesesame"), Chap("target", "emasesemases")
BOTH, NONE = Credentials(*USER, *TARGET), Credentials()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A machine may stand still for longer than a target may be silent."""
    for name in ("SILENCE_SECONDS", "NO_STEP_SECONDS"):
        monkeypatch.setattr(link, name, 600.0)


@pytest.fixture
def tgt(tmp_path):
    """Starts tgt with an image as its LUN 1, or with these LUNs."""
    require("tgtd", "tgtadm", "setpriv")
    return lambda exports=None, **more: Tgt(tmp_path, exports or [Export(1, image(tmp_path))], **more)


def image(tmp_path, name="lun.img"):
    path = tmp_path / name
    with open(str(path), "wb") as file:
        file.truncate(4 * MIB)
    return path


def lun_of(target, number=1, writable=True, credentials=NONE):
    portals = [Portal("127.0.0.1", target.port)]
    return open_lun(portals, target.iqn, ME, number, writable, Deadline(600), credentials)


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


@pytest.mark.parametrize("more", [
    {"HeaderDigest": "CRC32C", "MaxRecvDataSegmentLength": 512}, {"ImmediateData": "No", "DataDigest": "CRC32C"},
    {"FirstBurstLength": 4096, "MaxBurstLength": 8192}, {"chap": USER, "mutual": TARGET},
], ids=", ".join)  # fmt: skip
def test_tgt_is_read_and_written(tgt, more):
    with tgt(**more) as target, lun_of(target, credentials=BOTH if "mutual" in more else NONE) as device:
        work(device)


def test_luns_of_any_number_and_block_are_found(tgt, tmp_path):
    exports = [Export(1, image(tmp_path)), Export(300, image(tmp_path, "b.img"), 4096)]
    exports.append(Export(7, image(tmp_path, "c.img"), read_only=True))
    with tgt(exports) as target:
        portals = [Portal("127.0.0.1", target.port)]
        found = discover(portals, ME, NONE, Deadline(600))
        assert found == {target.iqn: tuple(portals)}
        found = list_luns(portals, target.iqn, ME, Deadline(600)).disks
        listed = [(one.number, one.block_size, one.problem) for one in found]
        assert listed == [(1, 512, ""), (7, 512, ""), (300, 4096, "")]
        assert len({one.scsi_id for one in found}) == 3
        with lun_of(target, 300) as device:
            work(device)
        with pytest.raises(RelvmoiscsiError, match="read-only"), lun_of(target, 7):
            pass
        with lun_of(target, 7, writable=False) as device:
            assert device.read([Range(0, 512)]) == [bytes(512)]


def test_a_target_that_is_killed_and_started_again_has_all_bytes(tgt, monkeypatch):
    asked = threading.Event()

    class NoListener(connect.Unreachable):
        def __init__(self, *words):
            super().__init__(*words)
            asked.set()  # a connection was refused

    monkeypatch.setattr(connect, "Unreachable", NoListener)
    with tgt() as target, lun_of(target) as device:
        for number in range(2):
            device.write([Chunk(4096 * number, bytes([number + 1]) * 4096)])
            target.kill()
            flush = threading.Thread(target=device.flush)
            flush.start()
            assert asked.wait(600)
            asked.clear()
            target.start()  # in this thread, as the program ends with the thread that starts it
            flush.join()
        assert device.read([Range(0, 8192)]) == [b"".join(bytes([number + 1]) * 4096 for number in range(2))]


@pytest.mark.parametrize("size_bytes", [2 * MIB, 8 * MIB], ids=["smaller", "larger"])
def test_a_lun_that_tgt_makes_smaller_is_refused_and_a_lun_that_has_grown_is_gone_on_with(tgt, tmp_path, size_bytes):
    """tgt gives the LUN another file under the same name, and sends no unit attention."""
    other = image(tmp_path, "other.img")
    os.truncate(str(other), size_bytes)
    with tgt() as target, lun_of(target) as device:
        device.write([Chunk(0, b"w" * 512)])
        device.flush()

        for change in ("online=0", f"path={other}", "online=1"):
            target.admin("--op", "update", "-m", "logicalunit", "-t", "1", "-l", "1", "--params", change)

        if size_bytes == 8 * MIB:
            device.write([Chunk(0, b"x" * 512)])
            device.flush()
            assert (device.size_bytes, device.read([Range(0, 512)])) == (4 * MIB, [b"x" * 512])
        else:
            for act in (device.flush, lambda: device.write([Chunk(0, b"x" * 512)])):
                with pytest.raises(Refused, match="had 4194304 bytes .* has 2097152 bytes"):
                    act()
            assert other.read_bytes() == bytes(2 * MIB)


def test_a_target_that_stops_for_a_while_is_waited_for_or_left_for_another_session(tgt, monkeypatch):
    with tgt() as target, lun_of(target) as device:
        for patience in (600.0, 0.4):
            monkeypatch.setattr(link, "SILENCE_SECONDS", patience)
            target.freeze()
            timer = threading.Timer(1.0, target.thaw)
            timer.start()
            device.write([Chunk(0, b"w" * 512)])
            device.flush()
            assert device.read([Range(0, 512)]) == [b"w" * 512]
            timer.join()


def test_istgt_is_read_and_written_with_digests_and_wants_chap_for_the_discovery(tmp_path):
    require("istgt", "setpriv")
    with Istgt(tmp_path, [image(tmp_path)], digest="Header Data") as istgt, lun_of(istgt, 0) as device:
        work(device)
    with Istgt(tmp_path, [image(tmp_path)], chap=USER, mutual=TARGET, discovery_chap=True) as istgt:
        found = discover([Portal("127.0.0.1", istgt.port)], ME, BOTH, Deadline(600))
        assert istgt.iqn in found
        with lun_of(istgt, 0, credentials=BOTH) as device:
            work(device)


def none_is_malformed(tmp_path, runs, opcodes):
    """Each run has all these opcodes. tshark takes long to start, so it is asked once, and shown a malformed PDU."""
    path = str(tmp_path / "seen.pcap")
    pieces = [(100 * run + number, *rest) for run, seen in enumerate(runs) for number, *rest in seen]
    cut_short = Pdu(0x21, byte3=2, tag=1, data=b"\0\x12\x70")  # 18 bytes of sense data are announced
    write_pcap([*pieces, (100 * len(runs), "in", cut_short.encoded(False, False))], path)

    seen, malformed = {}, []
    fields = ("-e", "tcp.port", "-e", "iscsi.opcode", "-e", "_ws.malformed")
    rows = subprocess.check_output(["tshark", "-n", "-r", path, "-Y", "iscsi", "-T", "fields", *fields])
    for row in rows.decode().splitlines():
        ports, said, problem = row.split("\t")
        run = (max(map(int, ports.split(","))) - 40000) // 100
        seen[run] = seen.get(run, "") + said + ","
        malformed += [run] * bool(problem)
    for run in range(len(runs)):
        assert [opcode for opcode in opcodes if opcode not in seen[run]] == []
    assert malformed == [len(runs)]


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
