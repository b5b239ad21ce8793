# SPDX-License-Identifier: LGPL-2.1-only
"""tshark takes apart what the scripted target sends, and finds no malformed PDU."""

import subprocess

from kit.iscsi.hostile import HostileTarget
from kit.iscsi.lun import MIB, Lun
from kit.iscsi.programs import require
from kit.iscsi.proxy import CuttingProxy, write_pcap
from kit.iscsi.wire import Pdu


def dissected(path, condition, *names):
    """The values of fields in packets for which a condition of tshark's holds, one row for each packet."""
    argv = ["tshark", "-n", "-r", str(path), "-Y", condition, "-T", "fields"]
    argv += [word for name in names for word in ("-e", name)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


def test_no_pdu_is_malformed(tmp_path):
    require("tshark", "qemu-io")
    ignore = ("irrelevant", "reserved", "statsn", "identity", "isid kept")
    pieces = []
    for quirks in ((), ("header_digest",), ("pings", "small_data_in", "small_r2t")):
        with HostileTarget([Lun(0, MIB)], quirks, ignore) as target, CuttingProxy(target.portal) as proxy:
            argv = ["qemu-io", "-f", "raw", "-c", "write -P 7 0 300k", "-c", "flush", "-c", "read -P 7 0 300k"]
            argv.append(f"iscsi://{proxy.portal}/{target.iqn}/0")
            done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600, check=False)
        assert done.returncode == 0, done.stdout.decode()
        pieces.append(proxy.pieces)

    none_is_malformed(tmp_path, pieces, ("0x01", "0x03", "0x21", "0x23", "0x25", "0x26", "0x31"))


def none_is_malformed(tmp_path, runs, opcodes):
    """Each run has all these opcodes. tshark takes long to start, so it is asked once, and shown a malformed PDU."""
    path = str(tmp_path / "seen.pcap")
    pieces = [(100 * run + number, *rest) for run, seen in enumerate(runs) for number, *rest in seen]
    cut_short = Pdu(0x21, byte3=2, tag=1, data=b"\0\x12\x70")  # 18 bytes of sense data are announced
    write_pcap([*pieces, (100 * len(runs), "in", cut_short.encoded(False, False))], path)

    seen, malformed = {}, []
    for row in dissected(path, "iscsi", "tcp.port", "iscsi.opcode", "_ws.malformed"):
        ports, said, problem = row.split("\t")
        run = (max(map(int, ports.split(","))) - 40000) // 100
        seen[run] = seen.get(run, "") + said + ","
        malformed += [run] * bool(problem)
    for run in range(len(runs)):
        assert [opcode for opcode in opcodes if opcode not in seen[run]] == []
    assert malformed == [len(runs)]
