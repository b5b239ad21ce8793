# SPDX-License-Identifier: LGPL-2.1-only
"""Cinder's LVM driver with resignature, on real LVM, LIO and open-iscsi."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kit.lab.command import run

TOP = Path(__file__).resolve().parents[2]
PYTHON = TOP / ".venv/cinder/bin/python"
LOCK_OF_SM = "/run/lock/sm/.nil"

#: Cinder's, on the one device that it may see; what checks thin pools is not installed
LVM_CONF = """
devices {{
    use_devicesfile = 0
    hints = "none"
    global_filter = [ "a|^{device}$|", "r|.*|" ]
}}
global {{
    thin_check_executable = ""
    event_activation = 0
}}
activation {{
    udev_sync = 0
    udev_rules = 0
    monitoring = 0
}}
"""


@pytest.fixture
def volume_group(tmp_path):
    """The environment in which `cinder-volumes` is seen."""
    sm_was_here = os.path.exists(LOCK_OF_SM)
    os.makedirs("/etc/target", exist_ok=True)  # rtslib wants it
    (tmp_path / "disk").touch()
    os.truncate(str(tmp_path / "disk"), 8 << 30)
    device = run("losetup", "--find", "--show", str(tmp_path / "disk")).out.strip()
    (tmp_path / "lvm.conf").write_text(LVM_CONF.format(device=device))
    path = f"{PYTHON.parent}:{os.environ['PATH']}"
    seen = dict(os.environ, LVM_SYSTEM_DIR=str(tmp_path), LVM_CONF=str(tmp_path / "lvm.conf"), PATH=path)
    subprocess.run(["vgcreate", "cinder-volumes", device], env=seen, check=True)
    yield seen
    Path("/run/rtslib_backstore.lock").unlink()
    if not sm_was_here:
        shutil.rmtree(LOCK_OF_SM)  # SM is here, so its lock was taken
    subprocess.run(["vgremove", "--force", "--yes", "cinder-volumes"], env=seen, check=True)
    run("losetup", "--detach", device)


@pytest.mark.skipif(not PYTHON.exists(), reason="`tools/venv.sh cinder` was not run")
def test_volumes_of_cinder_get_new_identities(lab, volume_group):
    env = dict(volume_group, PYTHONPATH=f"{TOP}/openstack:{TOP}:{TOP}/tests")
    argv = [str(PYTHON), "-W", "ignore", "-m", "unittest", "-v", "tests.in_vm"]
    place = {"cwd": f"{TOP}/openstack", "env": env}
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **place)
    said = done.stdout.decode(errors="replace")
    assert done.returncode == 0 and "Ran 1 test" in said, said
