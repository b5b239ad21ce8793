# SPDX-License-Identifier: LGPL-2.1-only
"""The driver and the command as the package installs them, run by an old Python, beside a storage manager."""

import contextlib
import glob
import os
from pathlib import Path

import pytest

from kit.lab import initiator, luns, xapi
from kit.lab.command import run
from kit.lab.xapi import SUCCESS, chosen, created

RPM = ("rpm", "--dbpath", "/run/e2e/rpmdb")
HOST_PYTHON = "/usr/bin/python3"
PYTHON36 = os.path.join(xapi.TOP, ".venv/py36/bin/python")

#: where several packages have their files, and some of another one
SHARED = ("/opt/xensource", "/usr/libexec/sm", "/etc/xapi.d", "/usr/lib/systemd/system/xapi.service.d")
OTHERS = ("/opt/xensource/sm/LVHDSR.py", "/usr/libexec/sm/other", "/etc/xapi.d/plugins/other")


@contextlib.contextmanager
def python36():
    """The Python of the host is 3.6, as dom0's, where the machine has one; by the system's the judges install it."""
    if not os.path.exists(PYTHON36):
        yield
        return
    before = os.readlink(HOST_PYTHON)
    os.unlink(HOST_PYTHON)
    os.symlink(os.path.realpath(PYTHON36), HOST_PYTHON)
    assert run(HOST_PYTHON, "--version").out.startswith("Python 3.6.")
    yield
    os.unlink(HOST_PYTHON)
    os.symlink(before, HOST_PYTHON)


def files_of_packages():
    """Every file where our package and others install theirs."""
    found = (os.walk(directory) for directory in SHARED)
    return sorted(os.path.join(where, name) for walk in found for where, _, names in walk for name in names)


@pytest.fixture
def installed(host_with_sm):
    """The package is installed where a storage manager is, whose files are there before, and after."""
    for path in map(Path, OTHERS):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("of another package\n")
    before = files_of_packages()
    xapi.remove_rules(Path(xapi.RULES).glob("*-relvmoiscsi.rules"))
    (package,) = glob.glob(os.path.join(os.environ["RELVMOISCSI_VM"], "rpm", "relvmoiscsi-[0-9]*.rpm"))
    try:
        with python36():
            run(*RPM, "--initdb")
            run(*RPM, "--upgrade", "--nodeps", package)
            yield
            run(*RPM, "--erase", "--nodeps", "relvmoiscsi")
    finally:  # other tests go by these rules, whatever becomes of this one
        run("rm", "-rf", "/run/e2e/rpmdb")
        xapi.install_rules()
    assert files_of_packages() == before
    assert not os.path.exists("/usr/share/relvmoiscsi")
    for path in OTHERS:
        os.unlink(path)


def test_the_installed_driver_and_command_work(lab, make_pool, installed, image, clone):
    copies, digest = lab.target(clone), luns.digest(image)
    pool = make_pool(drivers="/opt/xensource/sm", executes=True)
    assert "LVHD over iSCSI with resigning of duplicates" in pool.sm_list()

    with lab.untouched():
        assert created(pool, copies, clone) == SUCCESS

    (call,) = pool.log.of("sr_create")
    assert call.argv[0].startswith("/opt/xensource/sm/") and call.stderr == b""
    assert luns.digest(image) == digest
    initiator.login(copies.iqn, copies.portal)
    shown = run("/usr/sbin/relvmoiscsi", "show", initiator.device_of(clone.scsi_id)).out
    (sr_uuid,) = chosen(lab)
    assert sr_uuid in shown and "resignatured" in shown
