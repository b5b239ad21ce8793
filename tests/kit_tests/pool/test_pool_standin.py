# SPDX-License-Identifier: LGPL-2.1-only
"""The stand-in for lvmoiscsi answers as the real one does, on golden LUNs."""

import json
import os
import sys

import pytest

from kit import golden
from kit.pool import standin
from kit.pool.database import NULL
from kit.pool.simulator import DRIVERS, sm_directory
from kit.pool.standin import Refused

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


def ask(command, **config):
    params = {"command": command, "host_ref": "OpaqueRef:h", "args": [], "device_config": config, "sr_uuid": "5"}
    return standin.answer(params)


def refused(command, **config):
    with pytest.raises(Refused) as caught:
        ask(command, **config)
    return caught.value.code


WHERE = {"target": "10.0.0.5", "targetIQN": IQN}


@pytest.mark.parametrize("command", ["sr_create", "sr_probe", "sr_attach"])
def test_what_is_missing_in_the_configuration_is_asked_for(lab, capsys, command):
    lab([lun()])

    assert refused(command) == 95
    assert refused(command, target="10.0.0.6") == 141
    assert refused(command, target="10.0.0.5", port="3261") == 141
    assert capsys.readouterr().err == ""
    assert refused(command, target="10.0.0.5") == 96
    assert "<iscsi-target-iqns>" in capsys.readouterr().err
    assert refused(command, **WHERE) == 107
    assert "<iscsi-target>" in capsys.readouterr().err


def test_the_lists_are_those_of_sm(lab, capsys):
    lab([lun(vendor="LIO-ORG", size=5), lun(LUNid=1, SCSIid="3600b"), lun(targetIQN="iqn.b", port=3261)])

    refused("sr_create", **WHERE)
    assert capsys.readouterr().err == (
        '<?xml version="1.0" ?>\n<iscsi-target>\n'
        "\t<LUN>\n\t\t<vendor>LIO-ORG</vendor>\n\t\t<LUNid>0</LUNid>\n\t\t<size>5</size>\n"
        "\t\t<SCSIid>" + SCSI_ID + "</SCSIid>\n\t</LUN>\n"
        "\t<LUN>\n\t\t<LUNid>1</LUNid>\n\t\t<SCSIid>3600b</SCSIid>\n\t</LUN>\n"
        "</iscsi-target>\n\n"
    )
    refused("sr_create", target="10.0.0.5", port="3261")
    assert capsys.readouterr().err == (
        '<?xml version="1.0" ?>\n<iscsi-target-iqns>\n'
        "\t<TGT>\n\t\t<Index>0</Index>\n\t\t<IPAddress>10.0.0.5</IPAddress>\n\t\t<Port>3261</Port>\n"
        "\t\t<TargetIQN>iqn.b</TargetIQN>\n\t</TGT>\n"
        "</iscsi-target-iqns>\n\n"
    )


def test_a_lun_is_never_formatted(lab):
    lab([lun()])

    assert refused("sr_create", SCSIid=SCSI_ID, **WHERE) == 202


def test_a_probe_names_the_sr_on_the_lun(lab, image):
    path = image("one")
    lab([lun(device=path)])

    assert ask("sr_probe", SCSIid=SCSI_ID, **WHERE) == (
        '<?xml version="1.0" ?>\n<SRlist>\n\t<SR>\n\t\t<UUID>16aa2e14-529b-493f-a2ad-42a9cb946cc2</UUID>\n'
        "\t\t<Devlist>" + SCSI_ID + "</Devlist>\n\t\t<size>1073741824</size>\n\t</SR>\n</SRlist>\n"
    )


def test_a_probe_of_an_empty_lun_names_nothing(lab, tmp_path):
    with open(str(tmp_path / "empty.img"), "wb") as file:
        file.truncate(1 << 20)
    lab([lun(device=str(tmp_path / "empty.img"))])

    assert ask("sr_probe", SCSIid=SCSI_ID, **WHERE) == '<?xml version="1.0" ?>\n<SRlist/>\n'


@pytest.mark.processes
def test_only_the_list_scans_a_session_that_is_there(lab, tmp_path, image, capsys):
    """A LUN that was mapped since the login."""
    device = tmp_path / "sdb"
    lab([lun(device=str(device))], list=[["cp", image("one"), str(device)]], attach=[["true"]])

    assert refused("sr_probe", SCSIid=SCSI_ID, **WHERE) == 107
    assert refused("sr_probe", **WHERE) == 107 and SCSI_ID in capsys.readouterr().err
    assert SCSI_ID in ask("sr_probe", SCSIid=SCSI_ID, **WHERE)


def test_a_device_that_does_not_appear(lab):
    lab([lun()])

    assert refused("sr_probe", SCSIid=SCSI_ID, **WHERE) == 107


def test_chap_in_clear(lab, image):
    lab([lun(device=image("one"), chapuser="alice", chappassword="word")])

    assert refused("sr_probe", SCSIid=SCSI_ID, **WHERE) == 68
    assert refused("sr_probe", SCSIid=SCSI_ID, chapuser="alice", chappassword="other", **WHERE) == 68
    assert "<UUID>" in ask("sr_probe", SCSIid=SCSI_ID, chapuser="alice", chappassword="word", **WHERE)


def test_other_calls_are_not_implemented(lab):
    lab([lun()])

    assert refused("sr_delete") == 38
    assert ask("sr_get_driver_info")["name"] == "LVHD over iSCSI"


@pytest.mark.processes
def test_commands_of_the_lab_bring_the_lun_and_take_it_away_once(lab, image, tmp_path):
    path, said = image("one"), tmp_path / "said"
    shell = ["/bin/sh", "-c", f'echo "$0" >> {said}']
    lab([lun(device=path)], attach=[shell + ["in {portal} {targetIQN}"]], detach=[shell + ["out {SCSIid}"]])
    config = dict(WHERE, SCSIid=SCSI_ID)
    params = {"host_ref": "OpaqueRef:h", "device_config": config, "sr_uuid": "16aa2e14-529b-493f-a2ad-42a9cb946cc2"}

    standin.answer(dict(params, command="sr_attach"))
    standin.answer(dict(params, command="sr_attach", host_ref="OpaqueRef:i"))
    standin.answer(dict(params, command="sr_probe"))
    standin.answer(dict(params, command="sr_detach"))
    assert said.read_text() == f"in 10.0.0.5:3260 {IQN}\n"
    standin.answer(dict(params, command="sr_detach", host_ref="OpaqueRef:i"))
    assert said.read_text() == f"in 10.0.0.5:3260 {IQN}\nout {SCSI_ID}\n"

    with pytest.raises(Refused, match="is not available"):
        standin.answer(dict(params, command="sr_attach", sr_uuid="another"))
    assert said.read_text().splitlines()[2:] == ["in 10.0.0.5:3260 " + IQN, "out " + SCSI_ID]

    lab([lun(device=path)], attach=[["/bin/sh", "-c", "echo no >&2; exit 8"]])
    with pytest.raises(Refused, match="opterr=8: no"):
        standin.answer(dict(params, command="sr_probe"))


A, B = "16aa2e14-529b-493f-a2ad-42a9cb946cc2", "16aa2e14-529b-493f-a2ad-42a9cb946cc3"


@pytest.mark.processes
def test_the_last_line_of_an_iqn_logs_out_as_with_sm(lab, image, tmp_path):
    path, said, references = image("one"), tmp_path / "said", tmp_path / "sr-ref"
    shell = ["/bin/sh", "-c", f'echo "$0" >> {said}']
    bring = ["/bin/sh", "-c", f"echo in >> {said}; mv {path}-away {path}"]
    os.rename(path, path + "-away")
    lab([lun(device=path)], attach=[bring], detach=[shell + ["out"]], references=str(references))
    params = {"host_ref": "OpaqueRef:h", "device_config": dict(WHERE, SCSIid=SCSI_ID), "sr_uuid": A}

    standin.answer(dict(params, command="sr_attach"))
    standin.answer(dict(params, command="sr_attach"))
    assert (references / IQN).read_text() == A + "\n"
    with (references / IQN).open("a") as file:
        file.write(B + "\n")
    standin.answer(dict(params, command="sr_probe"))
    standin.answer(dict(params, command="sr_detach"))
    assert (references / IQN).read_text() == B + "\n"
    assert said.read_text() == "in\n", "it was there, and another one has a line, whoever that is"

    standin.answer(dict(params, command="sr_detach", sr_uuid=B))
    assert said.read_text() == "in\nout\n" and not (references / IQN).exists()


def test_references_are_counted_as_sm_does(tmp_path):
    directory = str(tmp_path / "sr-ref")

    assert standin.count_out(directory, IQN, A) == 0
    assert [standin.count_in(directory, IQN, each) for each in (A, A, B)] == [1, 1, 2]
    with (tmp_path / "sr-ref" / IQN).open("a") as file:
        file.write("    \nno UUID\n")  # blanks are what we leave of a line
    assert standin.count_out(directory, IQN, A) == 1
    assert (tmp_path / "sr-ref" / IQN).read_text() == B + "\n"
    assert standin.count_out(directory, IQN, B) == 0
    assert not (tmp_path / "sr-ref" / IQN).exists()


@pytest.mark.processes
def test_another_reader_may_be_the_judge(lab, image):
    found = "0a8e1f0c-3b0e-4d5f-9a6b-000000000001"
    says = "print('  /dev/sdc VG_XenStorage-{} lvm2')"
    lab([lun(device=image("one"))], reader=[sys.executable, "-c", says.format(found), "{device}"])
    assert f"<UUID>{found}</UUID>" in ask("sr_probe", SCSIid=SCSI_ID, **WHERE)

    lab([lun(device=image("one"))], reader=["/bin/true"])
    assert "<UUID>" not in ask("sr_probe", SCSIid=SCSI_ID, **WHERE)

    both = says.format(found) + ";" + says.format(found.replace("1", "2"))
    lab([lun(device=image("one"))], reader=[sys.executable, "-c", both])
    assert refused("sr_probe", SCSIid=SCSI_ID, **WHERE) == 202


@pytest.mark.processes
def test_a_scan_introduces_what_mgt_says(start, connect, errors, tmp_path, lab, image):
    sm_directory(tmp_path / "sm", DRIVERS / "LVMoISCSISR")
    pool = start(extra_env={standin.LAB_VARIABLE: str(tmp_path / "lab.json")})
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
        names = (
            "virtual_size",
            "physical_utilisation",
            "type",
            "read_only",
            "managed",
            "is_a_snapshot",
            "snapshot_time",
        )
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
