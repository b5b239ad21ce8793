# SPDX-License-Identifier: LGPL-2.1-only
"""Real initiators find our scripted target to be one, and the real targets that the tests start are there."""

import os
import subprocess

import pytest

from kit.iscsi.hostile import HostileTarget
from kit.iscsi.lun import MIB, Lun
from kit.iscsi.options import Chap
from kit.iscsi.programs import Export, Istgt, Tgt, require

USER, TARGET = Chap("user", "sesamesesame"), Chap("target", "emasesemases")
#: what libiscsi does: random names of keys where they mean nothing, NSG without T, R2T's StatSN counted
LIBISCSI = ("irrelevant", "reserved", "statsn", "identity", "isid kept")


def run(*argv):
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600, check=False
    )
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stdout.decode()}"
    return done.stdout.decode()


def url(target, number=None, chap=None, mutual=None, digest=""):
    account = f"{chap.user}%{chap.secret}@" if chap else ""
    place = "" if number is None else f"/{target.iqn}/{number}"
    options = [f"target_user={mutual.user}", f"target_password={mutual.secret}"] if mutual else []
    options += [f"header_digest={digest}"] if digest else []
    return f"iscsi://{account}{target.portal}{place}" + ("?" + "&".join(options) if options else "")


def write_and_compare(address, source, size=MIB):
    """QEMU copies a file of random bytes there, in its way, and compares; and writes and reads odd pieces."""
    run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", str(source), address)
    assert "identical" in run("qemu-img", "compare", "-f", "raw", "-F", "raw", str(source), address)
    said = run(
        "qemu-io", "-f", "raw", "-c", "write -P 7 4096 300k", "-c", "flush", "-c", "read -P 7 4096 300k", address
    )
    assert "wrote" in said and "verification failed" not in said.lower()


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.img"
    path.write_bytes(os.urandom(MIB))
    return path


@pytest.fixture
def qemu():
    require("qemu-img", "qemu-io", "iscsi-ls")
    if "iscsi" not in run("qemu-img", "--help").split("Supported formats:")[1]:
        require("the iSCSI driver of qemu-img (qemu-block-extra)")


@pytest.mark.parametrize("quirks", [
    (), ("small_bursts",), ("small_segments",), ("small_r2t",), ("no_immediate_data",), ("status_apart",),
    ("window_of_1",), ("answers_in_reverse",), ("pings",), ("attentions",),
    ("redirect_always",), ("high_statsn",), ("header_digest",), ("brings_up_markers",),
])  # fmt: skip
def test_qemu_reads_what_it_wrote(qemu, source, quirks):
    target = HostileTarget([Lun(0, MIB)], quirks, LIBISCSI)
    with target:
        write_and_compare(url(target, 0), source)

        assert target.lun(0).flushes
        assert target.lun(0).disk.peek(4096, 4096) == b"\7" * 4096


def test_qemu_proves_itself(qemu, source):
    with HostileTarget([Lun(0, MIB)], ignore=LIBISCSI, chap=USER) as target:
        write_and_compare(url(target, 0, USER), source)
        with pytest.raises(AssertionError, match="Authentication"):
            write_and_compare(url(target, 0, Chap("user", "wrongwrongwrong")), source)


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
        said = run("iscsi-ls", "-s", url(target))
        assert target.iqn in said and "Lun:16684" in said and said.count("DIRECT_ACCESS") == 3
        assert "HOSTILE000300" in run("iscsi-inq", "-e", "1", "-c", "128", url(target, 0x412C))
        assert "4096" in run("iscsi-readcapacity16", url(target, 1))


def exported(tmp_path, size=8 * MIB):
    path = tmp_path / "lun.img"
    path.write_bytes(bytes(size))
    return str(path)


@pytest.mark.parametrize("parameters", [
    {}, {"HeaderDigest": "CRC32C"}, {"MaxRecvDataSegmentLength": 512}, {"ImmediateData": "No"},
    {"chap": USER}, {"chap": USER, "mutual": TARGET},
])  # fmt: skip
def test_tgt_takes_what_qemu_writes(qemu, tmp_path, source, parameters):
    require("tgtd", "tgtadm", "setpriv")
    with Tgt(tmp_path, [Export(1, exported(tmp_path, MIB))], **parameters) as tgt:
        write_and_compare(url(tgt, 1, parameters.get("chap"), parameters.get("mutual")), source)


def test_tgt_has_the_luns_that_were_asked_for_and_lives_again_after_a_kill(tmp_path):
    require("tgtd", "tgtadm", "setpriv", "iscsi-ls")
    path = exported(tmp_path)
    with Tgt(tmp_path, [Export(1, path, 4096), Export(300, path, read_only=True)]) as tgt:
        before = run("iscsi-ls", "-s", url(tgt))
        assert "Lun:1 " in before and "Lun:16684" in before
        assert "BYTES:4096" in run("iscsi-readcapacity16", url(tgt, 1))

        tgt.freeze()
        with subprocess.Popen(["iscsi-ls", "-s", url(tgt)], stdout=subprocess.PIPE) as waiting:
            tgt.wait_for_initiator()
            assert waiting.poll() is None
            tgt.thaw()
            assert waiting.communicate(timeout=600)[0].decode() == before

        tgt.kill()
        with pytest.raises(AssertionError):
            run("iscsi-ls", url(tgt))
        tgt.start()
        assert run("iscsi-ls", "-s", url(tgt)) == before


@pytest.mark.parametrize("more", [{}, {"digest": "Header"}, {"chap": USER, "discovery_chap": True}])
def test_istgt_is_found(tmp_path, more):
    require("istgt", "setpriv", "iscsi-ls", "iscsi-inq")
    with Istgt(tmp_path, [exported(tmp_path)], **more) as istgt:
        chap, digest = more.get("chap"), "crc32c" if "digest" in more else ""
        if chap:
            with pytest.raises(AssertionError):  # the discovery, that is; iscsi-ls does not end where it is let in
                run("iscsi-ls", url(istgt))

        assert "iSCSI DISK" in run("iscsi-inq", url(istgt, 0, chap, digest=digest))
        assert not digest or "HeaderDigest=on" in istgt.log
