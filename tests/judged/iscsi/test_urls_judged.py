# SPDX-License-Identifier: LGPL-2.1-only
"""The command as a process, given URLs of LUNs of tgt: its bytes, its user, its secrets, its death."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from kit import golden
from kit.iscsi.options import Chap
from kit.iscsi.programs import Export, Tgt, require
from kit.iscsi.proxy import SILENCE, Cut, CuttingProxy
from kit.shell import SR, TOP, environment
from kit.sparse import SparseDisk

USER, TARGET = Chap("user", "sesamesesame"), Chap("target", "emasesemases")
PYTHON = "/usr/bin/python3"  # that of a venv may lie where nobody else may look
NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")  #: on Debian; it owns nothing
WRITES = ("--yes", "--not-in-use")

#: The command, with a run's number that is no random one, and image files that tear what the disks of tgt tear.
SAME = """
import os
import sys
from types import SimpleNamespace
from relvmoiscsi import cli
from relvmoiscsi.cli import recover, resignature
from relvmoiscsi.lun import run, source

def opened(path, writable, **more):
    device = real(path, writable, **more)
    device.physical_block_size = 4096
    return device

def resignatured(lun, request, *more):
    return as_lun(lun, request._replace(scsi_id=os.environ["LUN_SCSI_ID"]), *more)

real, source.open_device = source.open_device, opened
as_lun, run.resignature = run.resignature, resignatured
resignature.os = recover.os = SimpleNamespace(urandom=bytes)
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def public():
    """The package where nobody can import it: this checkout may lie where only root may look, and so do pytest's own
    directories.
    """
    require("tgtd", "tgtadm", "setpriv")
    with tempfile.TemporaryDirectory(prefix="relvmoiscsi-public-") as path:
        package = os.path.join(path, "relvmoiscsi")
        shutil.copytree(str(TOP / "relvmoiscsi"), package, ignore=shutil.ignore_patterns("*.pyc"))
        os.chmod(path, 0o755)
        subprocess.run([PYTHON, "-m", "compileall", "-q", package], check=True)  # nobody keeps what is compiled
        yield path


@pytest.fixture
def place(public):
    """A directory that nobody may use, until the tests end; the command runs beside it."""
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
    return lambda *argv, status=0, **more: ended(start(*argv, **more), status)


def ended(process, status=0):
    said = process.communicate(timeout=600)[0].decode()
    assert process.returncode == status, said
    return said


def url(tgt, number=1, user="", at=None):
    return f"iscsi://{user + '@' if user else ''}{(at or tgt).portal}/{tgt.iqn}/{number}"


def image(place, name="lun.img"):
    golden.load("chain").disk.to_file(str(place / name))
    (place / name).chmod(0o666)
    return place / name


def test_each_command_leaves_the_bytes_that_it_leaves_on_an_image_file(place, run):
    lun, file = image(place), image(place, "file.img")
    with Tgt(place, [Export(1, lun)]) as tgt:
        scsi_id = next(word for word in run("show", url(tgt)).split() if word.startswith("36"))[:-1]
        before = SparseDisk.from_file(str(lun))
        run("check", url(tgt))
        assert "no disk: it is the controller of an array" in run("show", url(tgt, 0), status=3)
        assert SparseDisk.from_file(str(lun)) == before
        how = {"code": SAME, "LUN_SCSI_ID": scsi_id}
        for command in (("resignature", "--sr-uuid", SR), ("recover",), ("undo",)):
            said = run(command[0], url(tgt), "--yes", "--scsi-id", scsi_id, *command[1:], **how)
            of_file = run(command[0], file, "--yes", *command[1:], **how)
            of_lun = re.sub("After the check, on the pool master.*?(?=next: )", "", said, flags=re.DOTALL)
            assert of_lun == of_file.replace(str(file), url(tgt))
            assert SparseDisk.from_file(str(lun)) == SparseDisk.from_file(str(file)), command
        assert SparseDisk.from_file(str(lun)) != before  # the journals of both runs stay


def test_chap_by_the_environment_and_by_a_file_and_the_password_is_nowhere(place, start, run):
    own = Path(tempfile.mkdtemp(dir=str(place.parent)))  # any user can change `place`
    os.chown(str(own), 65534, 65534)
    chap = own / "chap"
    chap.write_text(
        f"LIBISCSI_CHAP_USERNAME=user\nLIBISCSI_CHAP_PASSWORD={USER.secret}\n"
        f"LIBISCSI_CHAP_TARGET_USERNAME=target\nLIBISCSI_CHAP_TARGET_PASSWORD={TARGET.secret}\n"
    )
    chap.chmod(0o600)
    os.chown(str(chap), 65534, 65534)
    with Tgt(place, [Export(1, image(place))], chap=USER, mutual=TARGET) as tgt:
        assert "CHAP" in run("show", url(tgt), status=11)
        said = run("show", url(tgt, user="user"), "-vv", LIBISCSI_CHAP_PASSWORD=USER.secret)
        said += run("show", url(tgt, user="user"), "-vv", status=11, LIBISCSI_CHAP_PASSWORD="wrongwrongwrong")
        tgt.freeze()
        process = start("resignature", url(tgt), "-vv", *WRITES, "--chap-file", chap)
        tgt.wait_for_initiator()
        words = Path(f"/proc/{process.pid}/cmdline").read_text()  # which any user can read; a zombie has none
        tgt.thaw()
        said += ended(process)
    assert "was resignatured" in said and "--chap-file" in words
    for secret in (USER.secret, TARGET.secret, "wrongwrongwrong"):
        assert secret not in said + words


def test_a_command_that_is_ended_in_the_middle_is_recovered_over_the_url(place, start, run):
    exports = [Export(1, image(place)), Export(2, image(place, "original.img"))]
    with Tgt(place, exports) as tgt:
        for number in (signal.SIGINT, signal.SIGTERM):  # while the target is silent
            tgt.freeze()
            process = start("resignature", url(tgt), *WRITES)
            tgt.wait_for_initiator()
            process.send_signal(number)
            assert "Nothing was written." in ended(process, 130)
            tgt.thaw()
        with CuttingProxy(tgt.portal, [Cut("out", 92000, SILENCE)]) as proxy:  # behind the commit
            process = start("resignature", url(tgt, at=proxy), *WRITES)
            proxy.wait_for_cut()
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert "was finished" in run("recover", url(tgt), *WRITES)
        assert "shares no identity" in run("check", url(tgt), "--original", url(tgt, 2))
