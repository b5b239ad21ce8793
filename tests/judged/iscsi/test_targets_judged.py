# SPDX-License-Identifier: LGPL-2.1-only
"""Real initiators find our scripted target to be one."""

import os
import subprocess

import pytest

from kit.iscsi.hostile import HostileTarget
from kit.iscsi.lun import MIB, Lun
from kit.iscsi.options import Chap
from kit.iscsi.programs import require

USER, TARGET = Chap("user", "sesamesesame"), Chap("target", "emasesemases")
#: what libiscsi does: random names of keys where they mean nothing, NSG without T, R2T's StatSN counted; and after
#: seconds of silence, as on a busy machine, a ping that is not immediate
LIBISCSI = ("irrelevant", "reserved", "statsn", "identity", "isid kept", "cmdsn")


def run(*argv):
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(argv, timeout=600, check=False, **pipes)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stdout.decode()}"
    return done.stdout.decode()


def url(target, number=0, chap=None, mutual=None):
    account = f"{chap.user}%{chap.secret}@" if chap else ""
    options = f"?target_user={mutual.user}&target_password={mutual.secret}" if mutual else ""
    return f"iscsi://{account}{target.portal}/{target.iqn}/{number}{options}"


@pytest.fixture
def write_and_compare(tmp_path):
    """QEMU copies a file of random bytes there, in its way, and compares; and writes and reads odd pieces."""
    require("qemu-img", "qemu-io")
    if "iscsi" not in run("qemu-img", "--help").split("Supported formats:")[1]:
        require("the iSCSI driver of qemu-img (qemu-block-extra)")
    source = tmp_path / "source.img"
    source.write_bytes(os.urandom(MIB))

    def to(address):
        run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", str(source), address)
        assert "identical" in run("qemu-img", "compare", "-f", "raw", "-F", "raw", str(source), address)
        commands = ("-c", "write -P 7 4096 300k", "-c", "flush", "-c", "read -P 7 4096 300k")
        said = run("qemu-io", "-f", "raw", *commands, address)
        assert "wrote" in said and "verification failed" not in said.lower()

    return to


@pytest.mark.parametrize("quirks", [
    (), ("small_bursts",), ("small_segments",), ("small_r2t",), ("no_immediate_data",), ("status_apart",),
    ("window_of_1",), ("answers_in_reverse",), ("pings",), ("attentions",),
    ("redirect_always",), ("high_statsn",), ("header_digest",), ("brings_up_markers",),
])  # fmt: skip
def test_qemu_reads_what_it_wrote(write_and_compare, quirks):
    with HostileTarget([Lun(0, MIB)], quirks, LIBISCSI) as target:
        write_and_compare(url(target))

        assert target.lun(0).flushes
        assert target.lun(0).disk.peek(4096, 4096) == b"\7" * 4096


def test_qemu_proves_itself(write_and_compare):
    with HostileTarget([Lun(0, MIB)], ignore=LIBISCSI, chap=USER) as target:
        write_and_compare(url(target, 0, USER))
        with pytest.raises(AssertionError, match="Authentication"):
            write_and_compare(url(target, 0, Chap("user", "wrongwrongwrong")))


def test_libiscsi_wants_a_proof_and_takes_the_right_one_alone():
    require("iscsi-inq")
    with HostileTarget(ignore=LIBISCSI, chap=USER, mutual=TARGET) as target:
        assert "HOSTILE" in run("iscsi-inq", url(target, 0, USER, TARGET))
        assert len(target.challenges) == 1
    for cheat in ("wrong", "none", "name"):
        with HostileTarget(ignore=LIBISCSI, chap=USER, mutual=TARGET, cheats=cheat) as target:
            with pytest.raises(AssertionError, match="CHAP"):
                run("iscsi-inq", url(target, 0, USER, TARGET))
            assert not target.commands


def test_libiscsi_lists_and_asks():
    require("iscsi-ls", "iscsi-inq", "iscsi-readcapacity16")
    with HostileTarget([Lun(0, MIB), Lun(1, 8 * MIB, block_size=4096), Lun(300)], ignore=LIBISCSI) as target:
        said = run("iscsi-ls", "-s", f"iscsi://{target.portal}")
        assert target.iqn in said and "Lun:16684" in said and said.count("DIRECT_ACCESS") == 3
        assert "HOSTILE000300" in run("iscsi-inq", "-e", "1", "-c", "128", url(target, 0x412C))
        assert "4096" in run("iscsi-readcapacity16", url(target, 1))
