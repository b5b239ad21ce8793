# SPDX-License-Identifier: LGPL-2.1-only
"""The command as a process, given URLs of LUNs of tgt: its bytes, its user, its secrets, its death."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from kit import golden
from kit.iscsi.lun import MIB
from kit.iscsi.options import Chap
from kit.iscsi.programs import Export, Tgt, require
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


#: Nobody may look into it: this checkout may lie where only root does, and pytest shuts its own directories again.
PUBLIC = Path(tempfile.gettempdir()) / f"relvmoiscsi-public-{os.getpid()}"


@pytest.fixture(autouse=True, scope="module")
def public():
    """The package where nobody can import it."""
    PUBLIC.mkdir()
    try:
        shutil.copytree(str(TOP / "relvmoiscsi"), str(PUBLIC / "relvmoiscsi"), ignore=shutil.ignore_patterns("*.pyc"))
        PUBLIC.chmod(0o755)
        subprocess.run([PYTHON, "-m", "compileall", "-q", str(PUBLIC)], check=True)  # nobody keeps what is compiled
        yield
    finally:
        shutil.rmtree(str(PUBLIC))


@pytest.fixture(autouse=True)
def programs():
    require("tgtd", "tgtadm", "setpriv")


def start(*argv, code=None, **more):
    """The command as nobody, who may not even read /etc/iscsi/initiatorname.iscsi."""
    python = [PYTHON, "-c", code] if code else [PYTHON, "-m", "relvmoiscsi"]
    return subprocess.Popen(
        [*NOBODY, *python, *map(str, argv)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env=environment(PYTHONPATH=str(PUBLIC), **more), cwd=str(PUBLIC),
    )  # fmt: skip


def run(*argv, code=None, status=0, **more):
    process = start(*argv, code=code, **more)
    said = process.communicate(timeout=60)[0].decode()
    assert process.returncode == status, said
    return said


def url(tgt, number=1, user=""):
    return f"iscsi://{user + '@' if user else ''}{tgt.portal}/{tgt.iqn}/{number}"


def image(tmp_path, name):
    path = tmp_path / name
    golden.load("chain").disk.to_file(str(path))
    path.chmod(0o666)
    return path


@pytest.fixture
def place():
    """A directory that nobody may use, until the test ends."""
    path = Path(tempfile.mkdtemp(dir=str(PUBLIC)))
    path.chmod(0o777)
    return path


def test_each_command_leaves_the_bytes_that_it_leaves_on_an_image_file(place):
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


def test_chap_by_the_environment_and_by_a_file_and_the_password_is_nowhere(place):
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
        process = start("resignature", url(tgt), "-vv", "--yes", "--not-in-use", "--chap-file", chap)
        words = _words_while_it_runs(process)
        said += process.communicate(timeout=60)[0].decode()
        assert process.returncode == 0, said
    assert "was resignatured" in said and words
    for secret in (USER.secret, TARGET.secret, "wrongwrongwrong"):
        assert secret not in said + words


def _words_while_it_runs(process):
    """What any user can read of it."""
    words = ""
    end = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < end:
        try:
            with open(f"/proc/{process.pid}/cmdline", "rb") as file:
                words = file.read().decode() or words
        except OSError:
            break
        time.sleep(0.02)
    return words


@pytest.mark.states(few=2)
@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.03, 0.06])
def test_a_command_that_is_killed_in_the_middle_is_recovered_over_the_url(place, seconds):
    lun, original = image(place, "lun.img"), image(place, "original.img")
    with Tgt(place, [Export(1, lun), Export(2, original)]) as tgt:
        before = lun.stat().st_mtime_ns
        process = start("resignature", url(tgt), "--yes", "--not-in-use")
        end = time.monotonic() + 30
        while lun.stat().st_mtime_ns == before and time.monotonic() < end and process.poll() is None:
            time.sleep(0.0005)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        run("recover", url(tgt), "--yes", "--not-in-use")
        run("resignature", url(tgt), "--yes", "--not-in-use")  # where it was killed before it had decided anything
        said = run("check", url(tgt), "--original", url(tgt, 2))
        assert "shares no identity" in said


def test_ctrl_c_and_sigterm_end_a_command_that_waits_for_a_silent_target(place):
    lun = image(place, "lun.img")
    with Tgt(place, [Export(1, lun)]) as tgt:
        for number in (signal.SIGINT, signal.SIGTERM):
            tgt.freeze()
            process = start("resignature", url(tgt), "--yes", "--not-in-use")
            tgt.wait_for_initiator()
            process.send_signal(number)
            said = process.communicate(timeout=60)[0].decode()
            assert process.returncode == 130 and "Nothing was written." in said, said
            tgt.thaw()


def test_many_luns_are_listed_with_their_srs(tmp_path):
    lun = image(tmp_path, "lun.img")
    (tmp_path / "empty.img").write_bytes(bytes(MIB))
    exports = [Export(1, lun), Export(300, tmp_path / "empty.img", 4096), Export(7, lun, read_only=True)]
    with Tgt(tmp_path, exports) as tgt:
        assert tgt.iqn in run("show", f"iscsi://{tgt.portal}")
        said = run("show", url(tgt)[:-2])
        rows = [line.split() for line in said.splitlines()[2:]]

    assert [row[0] for row in rows] == ["1", "7", "300"]
    assert ["clean" in row for row in rows] == [True, True, False]
