# SPDX-License-Identifier: LGPL-2.1-only
"""The command as a process, given URLs of LUNs of tgt: its bytes, its user, its secrets, its death."""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from kit import golden
from kit.iscsi.lun import MIB
from kit.iscsi.options import Chap
from kit.iscsi.programs import Export, Tgt, require
from kit.iscsi.proxy import SILENCE, Cut, CuttingProxy
from kit.shell import SR, TOP, environment
from kit.sparse import SparseDisk

USER, TARGET = Chap("user", "sesamesesame"), Chap("target", "emasesemases")
#: on Debian; it owns nothing
PYTHON = "/usr/bin/python3"  # that of a venv may lie where nobody else may look
NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")

#: The command, with a run's number that is no random one, and image files that tear what the disks of tgt tear.
SAME = """
import sys
from types import SimpleNamespace
from relvmoiscsi import cli
from relvmoiscsi.cli import on_lun, resignature, settling

def opened(path, writable):
    device = real(path, writable)
    device.physical_block_size = 4096
    return device

real, on_lun.open_device = on_lun.open_device, opened
resignature.os = settling.os = SimpleNamespace(urandom=bytes)
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def public():
    """The package where nobody can import it: this checkout may lie where only root may look, and so do pytest's own
    directories.
    """
    with tempfile.TemporaryDirectory(prefix="relvmoiscsi-public-") as path:
        package = os.path.join(path, "relvmoiscsi")
        shutil.copytree(str(TOP / "relvmoiscsi"), package, ignore=shutil.ignore_patterns("*.pyc"))
        os.chmod(path, 0o755)
        subprocess.run([PYTHON, "-m", "compileall", "-q", package], check=True)  # nobody keeps what is compiled
        yield path


@pytest.fixture(autouse=True)
def place(public):
    """A directory that nobody may use, until the test ends; the command runs beside it."""
    require("tgtd", "tgtadm", "setpriv")
    path = Path(tempfile.mkdtemp(dir=public))
    path.chmod(0o777)
    return path


@pytest.fixture
def start(public):
    """The command as nobody, who may not even read /etc/iscsi/initiatorname.iscsi."""

    def started(*argv, code=None, **more):
        python = [PYTHON, "-c", code] if code else [PYTHON, "-m", "relvmoiscsi"]
        return subprocess.Popen(
            [*NOBODY, *python, *map(str, argv)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env=environment(PYTHONPATH=public, **more), cwd=public,
        )  # fmt: skip

    return started


@pytest.fixture
def run(start):
    def ran(*argv, status=0, **more):
        return ended(start(*argv, **more), status)

    return ran


def ended(process, status=0):
    said = process.communicate(timeout=600)[0].decode()
    assert process.returncode == status, said
    return said


def url(tgt, number=1, user="", at=None):
    return f"iscsi://{user + '@' if user else ''}{(at or tgt).portal}/{tgt.iqn}/{number}"


def image(tmp_path, name):
    path = tmp_path / name
    golden.load("chain").disk.to_file(str(path))
    path.chmod(0o666)
    return path


def test_each_command_leaves_the_bytes_that_it_leaves_on_an_image_file(place, run):
    lun, file = image(place, "lun.img"), image(place, "file.img")
    with Tgt(place, [Export(1, lun)]) as tgt:
        scsi_id = next(word for word in run("show", url(tgt)).split() if word.startswith("36"))[:-1]
        before = SparseDisk.from_file(str(lun))
        run("check", url(tgt))
        assert "no disk: it is the controller of an array" in run("show", url(tgt, 0), status=3)
        assert SparseDisk.from_file(str(lun)) == before
        words = ("--yes", "--scsi-id", scsi_id)
        for command in (("resignature", "--sr-uuid", SR), ("recover",), ("undo",)):
            said = run(command[0], url(tgt), *words, *command[1:], code=SAME).split("next, on the pool master")[0]
            assert said == run(command[0], file, *words, *command[1:], code=SAME).replace(str(file), url(tgt))
            assert SparseDisk.from_file(str(lun)) == SparseDisk.from_file(str(file)), command
        assert SparseDisk.from_file(str(lun)) != before  # the journals of both runs stay


def test_chap_by_the_environment_and_by_a_file_and_the_password_is_nowhere(place, start, run):
    lun = image(place, "lun.img")
    chap = place / "chap"
    chap.write_text(
        f"LIBISCSI_CHAP_USERNAME=user\nLIBISCSI_CHAP_PASSWORD={USER.secret}\n"
        f"LIBISCSI_CHAP_TARGET_USERNAME=target\nLIBISCSI_CHAP_TARGET_PASSWORD={TARGET.secret}\n"
    )
    chap.chmod(0o600)
    os.chown(str(chap), 65534, 65534)
    with Tgt(place, [Export(1, lun)], chap=USER, mutual=TARGET) as tgt:
        assert "CHAP" in run("show", url(tgt), status=4)
        said = run("show", url(tgt, user="user"), "-vv", LIBISCSI_CHAP_PASSWORD=USER.secret)
        said += run("show", url(tgt, user="user"), "-vv", status=4, LIBISCSI_CHAP_PASSWORD="wrongwrongwrong")
        tgt.freeze()
        process = start("resignature", url(tgt), "-vv", "--yes", "--not-in-use", "--chap-file", chap)
        tgt.wait_for_initiator()
        words = Path(f"/proc/{process.pid}/cmdline").read_text()  # which any user can read; a zombie has none
        tgt.thaw()
        said += ended(process)
    assert "was resignatured" in said and "--chap-file" in words
    for secret in (USER.secret, TARGET.secret, "wrongwrongwrong"):
        assert secret not in said + words


def test_a_command_that_is_killed_in_the_middle_is_recovered_over_the_url(place, start, run):
    lun, original = image(place, "lun.img"), image(place, "original.img")
    with Tgt(place, [Export(1, lun), Export(2, original)]) as tgt:
        with CuttingProxy(tgt.portal, [Cut("out", 88000, SILENCE)]) as proxy:  # behind the commit, of 95,000 bytes
            process = start("resignature", url(tgt, at=proxy), "--yes", "--not-in-use")
            proxy.wait_for_cut()
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert "was finished" in run("recover", url(tgt), "--yes", "--not-in-use")
        assert "shares no identity" in run("check", url(tgt), "--original", url(tgt, 2))


def test_ctrl_c_and_sigterm_end_a_command_that_waits_for_a_silent_target(place, start):
    lun = image(place, "lun.img")
    with Tgt(place, [Export(1, lun)]) as tgt:
        for number in (signal.SIGINT, signal.SIGTERM):
            tgt.freeze()
            process = start("resignature", url(tgt), "--yes", "--not-in-use")
            tgt.wait_for_initiator()
            process.send_signal(number)
            assert "Nothing was written." in ended(process, 130)
            tgt.thaw()


def test_many_luns_are_listed_with_their_srs(tmp_path, run):
    lun = image(tmp_path, "lun.img")
    (tmp_path / "empty.img").write_bytes(bytes(MIB))
    exports = [Export(1, lun), Export(300, tmp_path / "empty.img", 4096), Export(7, lun, read_only=True)]
    with Tgt(tmp_path, exports) as tgt:
        assert tgt.iqn in run("show", f"iscsi://{tgt.portal}")
        said = run("show", url(tgt)[:-2])
        rows = [line.split() for line in said.splitlines()[2:]]

    assert [row[0] for row in rows] == ["1", "7", "300"]
    assert ["clean" in row for row in rows] == [True, True, False]
