# SPDX-License-Identifier: LGPL-2.1-only
"""The stand-in for lvmoiscsi answers as the real one does, on golden LUNs."""

import json

import pytest

from kit import golden
from kit.pool import standin
from kit.pool.database import NULL
from kit.pool.simulator import DRIVERS, sm_directory

IQN = "iqn.2026-01.test:clone"
SCSI_ID = "36001405aaaaaaaaaaaaaaaaaaaaaaaaa"


def lun(**more):
    return dict({"target": "10.0.0.5", "targetIQN": IQN, "LUNid": 0, "SCSIid": SCSI_ID, "device": "/nowhere"}, **more)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Writes the description of a lab: `lab([lun(...)], reader=[...])`."""
    path = tmp_path / "lab.json"
    monkeypatch.setenv(standin.LAB_VARIABLE, str(path))
    return lambda luns, **more: path.write_text(json.dumps(dict({"luns": luns, "wait_s": 0}, **more)))


@pytest.fixture
def image(tmp_path):
    """A golden LUN as a file."""

    def write(name):
        path = str(tmp_path / (name + ".img"))
        golden.load(name).disk.to_file(path)
        return path

    return write


WHERE = {"target": "10.0.0.5", "targetIQN": IQN}


@pytest.mark.processes
def test_a_scan_introduces_what_mgt_says(start, connect, errors, tmp_path, lab, image):
    sm_directory(tmp_path / "sm", DRIVERS / "LVMoISCSISR")
    pool = start()
    pool.runner.in_process["LVMoISCSISR"] = standin.reply
    chain = golden.load("chain")
    lab([lun(device=image("chain"), chapuser="alice", chappassword="hidden word")], socket=pool.socket_path)
    assert pool.rejected == {}
    api = connect(pool).xenapi
    uuid = "f0351b7a-1726-4201-9d84-792f2dd894f4"
    sr = api.SR.introduce(uuid, "label", "", "lvmoiscsi", "user", True, {})
    config = dict(WHERE, SCSIid=SCSI_ID, chapuser="alice", chappassword="hidden word")
    pbd = api.PBD.create({"SR": sr, "host": pool.master, "device_config": config})

    api.PBD.plug(pbd)
    api.SR.scan(sr)

    def essence(row):
        names = ["virtual_size", "physical_utilisation", "type", "read_only", "managed"]
        names += ["is_a_snapshot", "snapshot_time"]
        return [str(row[name]) for name in names] + [row["sm_config"]["vdi_type"]]

    rows = {record["uuid"]: record for record in api.VDI.get_all_records().values()}
    for vdi in chain.manifest["vdis"]:
        row = rows[vdi["uuid"]]
        assert essence(row) == essence(vdi)
        assert row["snapshot_of"] == (api.VDI.get_by_uuid(vdi["snapshot_of"]) if vdi["snapshot_of"] else NULL)
        if vdi["name_label"]:  # the real one gave a clone its label in MGT first
            assert row["name_label"] == vdi["name_label"]
    assert len(rows) == len(chain.manifest["vdis"])

    gone = pool.db.by_uuid("VDI", sorted(rows)[0])
    api.VDI.forget(gone)
    pool.db.create("VDI", SR=sr, location="stale")
    api.SR.scan(sr)
    assert sorted(record["uuid"] for record in api.VDI.get_all_records().values()) == sorted(rows)
    assert int(api.SR.get_physical_size(sr)) == chain.disk.size_bytes
    assert pool.log.grep("hidden word") == []

    assert errors(api.SR.probe, pool.master, dict(config, chappassword="wrong"), "lvmoiscsi", {})[0] == (
        "SR_BACKEND_FAILURE_68"
    )
    dangling = dict(config, chappassword_secret="0a8e1f0c-3b0e-4d5f-9a6b-000000000001")
    del dangling["chappassword"]
    assert errors(api.SR.probe, pool.master, dangling, "lvmoiscsi", {})[0] == "SR_BACKEND_FAILURE_20"
    api.PBD.unplug(pbd)
