# SPDX-License-Identifier: LGPL-2.1-only
"""CloudStack's ResignatureCommand makes these calls of a pool, and leaves nothing there but secrets."""

import json
import os

import pytest

from kit import golden, pool_fakes
from kit.pool import cloudstack, standin
from kit.pool.cloudstack import (
    CHAP_SECRET,
    CHAP_USER,
    IQN,
    STORAGE_HOST,
    CloudStack,
)
from kit.pool.simulator import DRIVERS, sm_directory

pytestmark = pytest.mark.processes

TARGET_IQN = "iqn.2026-01.test:clone"
LABEL = f"/{TARGET_IQN}/7"
DETAILS = {IQN: LABEL, STORAGE_HOST: "10.0.0.5"}
SCSI_ID = "36001405aaaaaaaaaaaaaaaaaaaaaaaaa"
SUCCESS = (
    "Error reporting error, unknown key The SR has been successfully resigned. Use the lvmoiscsi type to attach it"
)


def test_a_clone_becomes_a_volume(start, connect, tmp_path, monkeypatch):
    disk, after, lab = (str(tmp_path / name) for name in ("lun.img", "after.img", "lab.json"))
    golden.load("chain").disk.to_file(disk)
    golden.load("one").disk.to_file(after)
    sm_directory(tmp_path / "sm", DRIVERS / "LVMoISCSISR")
    resign = f"mv {after} {disk}\n" + pool_fakes.say(pool_fakes.fault(1, SUCCESS))
    pool = start({"ReLVMoISCSISR": pool_fakes.shell({"sr_create": resign})})
    pool.runner.in_process["LVMoISCSISR"] = standin.reply
    monkeypatch.setenv(standin.LAB_VARIABLE, lab)
    lun = {
        "target": "10.0.0.5", "targetIQN": TARGET_IQN, "LUNid": 7, "SCSIid": SCSI_ID, "device": disk,
        "chapuser": "alice", "chappassword": "hidden word",
    }  # fmt: skip
    with open(lab, "w") as file:
        json.dump({"luns": [lun], "socket": pool.socket_path}, file)
    assert cloudstack.supports_resign(pool.sm_list())
    session = connect(pool, timeout_s=cloudstack.WAIT_S)
    from_drivers = ("secret.", "VDI.db_introduce", "SR.set_physical_size")
    del pool.api.calls[:]

    agent = CloudStack(session, pool.db.get("host", pool.hosts[0], "uuid"))
    answer = agent.resignature(dict(DETAILS, **{CHAP_USER: "alice", CHAP_SECRET: "hidden word"}))

    assert answer == (True, None, 268435456, "7ee28c74-464e-4cca-9e34-67690e352b90", "VHD")
    calls = [call for call in pool.api.calls if not call.startswith(from_drivers)]
    calls.remove("SR.get_VDIs")  # the stand-in's
    assert calls == [
        "SR.get_by_name_label", "host.get_by_uuid", "SR.create", "SR.probe", "SR.create", "SR.probe", "SR.introduce",
        "host.get_all", "PBD.create", "PBD.plug", "PBD.create", "PBD.plug", "SR.scan",
        "SR.get_VDIs", "VDI.get_virtual_size", "VDI.get_uuid",
        "SR.get_VDIs", "VDI.forget", "SR.get_PBDs", "PBD.unplug", "PBD.destroy", "PBD.unplug", "PBD.destroy",
        "SR.get_PBDs", "SR.forget",
    ]  # fmt: skip
    assert pool.db.refs("SR") == pool.db.refs("PBD") == pool.db.refs("VDI") == []
    assert open_state(lab) == "", "nobody has the LUN attached"
    creations = 2 * (1 + len(pool.hosts))
    assert len(pool.secrets()) == creations + 2 + len(pool.hosts), "what xapi leaves: per create, probe, PBD.create"
    assert pool.log.grep("hidden word") == []
    labels = pool.log.of("sr_create")[1].params["device_config"]
    assert {name: labels[name] for name in ("target", "targetIQN", "SCSIid", "chapuser")} == {
        "target": "10.0.0.5", "targetIQN": TARGET_IQN, "SCSIid": SCSI_ID, "chapuser": "alice",
    }  # fmt: skip


def open_state(lab):
    with open(os.path.join(lab + ".state", SCSI_ID)) as file:
        return file.read()
