# SPDX-License-Identifier: LGPL-2.1-only
"""xapi starts the driver for each call: what must be loaded until the first read of the LUN."""

import pytest

from kit import driver_process
from kit.driver_calls import call_of
from kit.iscsi.hostile import HostileTarget
from kit.pool.client import connected_locally

pytestmark = pytest.mark.processes

#: own modules of SR.create until the first read
MODULES = 140

#: ends the child process at the first read of the LUN, and tells which modules are loaded
AT_THE_FIRST_READ = """
import os, sys
from relvmoiscsi.iscsi.lun_device import LunDevice
stderr = os.dup(2)
def tell(*_):
    os.write(stderr, " ".join(sys.modules).encode())
    os._exit(0)
LunDevice.read = tell
"""

NEEDLESS = """
    cli doctor pool direct plugin report json_answer sr_driver.hba host.hba host.iscsi_sessions host.disk.hiding
    host.disk.block_device host.xapi.other_hosts host.xapi.stale_volumes sr_driver.iscsi.unnamed lun.disk_source
    lun.url_source lun.lun_url formats.qcow2_clusters resignature.merge.vhd_image resignature.merge.qcow2_image
"""


def test_a_call_reads_its_lun_before_it_loads_what_only_a_refusal_a_list_or_a_report_needs(clone, pool, tmp_path):
    with HostileTarget([clone]) as target, connected_locally(pool) as session:
        config = {"SRmaster": "true", "target": "127.0.0.1", "port": str(target.port), "targetIQN": target.iqn}
        config["SCSIid"] = clone.scsi_id
        call = call_of("sr_create", config, host_ref=pool.master, session_ref=session.handle)
        process = driver_process.start(pool.socket_path, tmp_path / "host", call, before=AT_THE_FIRST_READ)
        names = process.communicate(timeout=60)[1].decode().split()

    assert "relvmoiscsi.engine" in names
    assert "inspect" not in names, "it loads 14 modules"
    needless = tuple(f"relvmoiscsi.{name}" for name in NEEDLESS.split())
    assert [name for name in names if name.startswith(needless)] == []
    assert len([name for name in names if name.startswith("relvmoiscsi")]) <= MODULES
