# SPDX-License-Identifier: LGPL-2.1-only
"""tshark takes apart what the scripted target sends, and finds no malformed PDU."""

import subprocess

import pytest

from kit.iscsi.hostile import HostileTarget
from kit.iscsi.lun import MIB, Lun
from kit.iscsi.programs import require
from kit.iscsi.proxy import CuttingProxy, write_pcap
from kit.iscsi.wire import Pdu


def dissected(path, condition, *names):
    """The values of fields in packets for which a condition of tshark's holds, one row for each packet."""
    argv = ["tshark", "-n", "-r", str(path), "-Y", condition, "-T", "fields"]
    argv += [word for name in names for word in ("-e", name)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


@pytest.mark.parametrize("quirks", [(), ("header_digest",), ("pings", "small_data_in", "small_r2t")])
def test_no_pdu_is_malformed(tmp_path, quirks):
    require("tshark", "qemu-io")
    ignore = ("irrelevant", "reserved", "statsn", "identity", "isid kept")
    path = tmp_path / "seen.pcap"
    with HostileTarget([Lun(0, MIB)], quirks, ignore) as target, CuttingProxy(target.portal) as proxy:
        argv = ["qemu-io", "-f", "raw", "-c", "write -P 7 0 300k", "-c", "flush", "-c", "read -P 7 0 300k"]
        argv.append(f"iscsi://{proxy.portal}/{target.iqn}/0")
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20, check=False)
    assert done.returncode == 0, done.stdout.decode()
    write_pcap(proxy.pieces, str(path))

    opcodes = ",".join(dissected(path, "iscsi", "iscsi.opcode"))
    for opcode in ("0x01", "0x03", "0x21", "0x23", "0x25", "0x26", "0x31"):
        assert opcode in opcodes, opcode
    assert dissected(path, "_ws.malformed", "frame.number") == []


def test_tshark_tells_a_malformed_one(tmp_path):
    require("tshark")
    path = str(tmp_path / "seen.pcap")
    cut_short = Pdu(0x21, byte3=2, tag=1, data=b"\0\x12\x70")  # 18 bytes of sense data are announced
    write_pcap([(1, "in", cut_short.encoded(False, False))], path)

    assert dissected(path, "_ws.malformed", "frame.number") == ["1"]
