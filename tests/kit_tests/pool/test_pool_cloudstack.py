# SPDX-License-Identifier: LGPL-2.1-only
"""CloudStack's ResignatureCommand against a pool: the calls it makes, and how it takes each kind of answer."""

import json
import os

import pytest

from kit import golden, pool_fakes
from kit.pool import client, cloudstack, standin
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
OLD, NEW = "0a8e1f0c-3b0e-4d5f-9a6b-000000000001", "0a8e1f0c-3b0e-4d5f-9a6b-000000000002"
SUCCESS = (
    "Error reporting error, unknown key The SR has been successfully resigned. Use the lvmoiscsi type to attach it"
)

LUNS = (
    "<iscsi-target><LUN><LUNid>1</LUNid><SCSIid>36b</SCSIid></LUN>\n<LUN>\n<LUNid>\n7\n</LUNid><SCSIid>\n{}\n</SCSIid>"
)


def agent(pool, session, host=0):
    return CloudStack(session, pool.db.get("host", pool.hosts[host], "uuid"))


# -- the whole way, with the stand-in ---------------------------------------------------------------------------------


def test_a_clone_becomes_a_volume(start, connect, tmp_path):
    disk, after, lab = (str(tmp_path / name) for name in ("lun.img", "after.img", "lab.json"))
    golden.load("chain").disk.to_file(disk)
    golden.load("one").disk.to_file(after)
    sm_directory(tmp_path / "sm", DRIVERS / "LVMoISCSISR")
    resign = f"mv {after} {disk}\n" + pool_fakes.say(pool_fakes.fault(1, SUCCESS))
    pool = start({"ReLVMoISCSISR": pool_fakes.shell({"sr_create": resign})}, extra_env={standin.LAB_VARIABLE: lab})
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

    answer = agent(pool, session).resignature(dict(DETAILS, **{CHAP_USER: "alice", CHAP_SECRET: "hidden word"}))

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


# -- answers ----------------------------------------------------------------------------------------------------------


class Fakes:
    """Drivers of one LUN, in shell; a test replaces what it is about."""

    def __init__(self, tmp_path):
        resigned = str(tmp_path / "resigned")
        self.lvm = {
            "sr_create": pool_fakes.say(pool_fakes.fault(107, "")) + f"\ncat >&2 <<'E'\n{LUNS.format(SCSI_ID)}\nE",
            "sr_probe": f"if [ -e {resigned} ]; then\n{sr_list(NEW)}\nelse\n{sr_list(OLD)}\nfi",
            "sr_attach": pool_fakes.say(pool_fakes.NIL),
            "sr_detach": pool_fakes.say(pool_fakes.NIL),
            "sr_scan": pool_fakes.say(pool_fakes.NIL),
        }
        self.resign = f"echo > {resigned}\n" + pool_fakes.say(pool_fakes.fault(1, SUCCESS))

    def drivers(self):
        return {
            "LVMoISCSISR": pool_fakes.shell(self.lvm),
            "ReLVMoISCSISR": pool_fakes.shell({"sr_create": self.resign}),
        }


def sr_list(uuid):
    text = f"&lt;SRlist&gt;&lt;SR&gt;&lt;UUID&gt;\n{uuid}\n&lt;/UUID&gt;&lt;/SR&gt;&lt;/SRlist&gt;"
    return pool_fakes.say(pool_fakes.result(f"<string>{text}</string>"))


@pytest.fixture
def fakes(tmp_path):
    return Fakes(tmp_path)


@pytest.fixture
def run(start, connect, fakes):
    """The text of the failed answer, and the pool."""

    def resignature(details=DETAILS):
        pool = start(fakes.drivers())
        answer = agent(pool, connect(pool)).resignature(details)
        assert answer.result is False
        return answer.details, pool

    return resignature


def commands(pool):
    return [entry.command for entry in pool.log if entry.command != "sr_get_driver_info"]


def test_the_number_of_vdis_must_be_one(run):
    text, pool = run()

    assert text == "There were 0 VDIs in the SR."
    assert commands(pool) == ["sr_create", "sr_probe", "sr_create", "sr_probe", "sr_attach", "sr_attach", "sr_scan"] + [
        "sr_detach", "sr_detach",
    ]  # fmt: skip
    assert pool.db.refs("SR") == []


def test_a_success_without_an_error_is_a_failure(run, fakes):
    fakes.resign = pool_fakes.say(pool_fakes.NIL)

    text, pool = run()

    assert "Problem resigning the metadata" in text
    assert pool.db.refs("SR", type="relvmoiscsi"), "xapi keeps it: to xapi it was created"


def test_another_error_is_passed_on(run, fakes):
    fakes.resign = pool_fakes.say(pool_fakes.fault(68, "wrong CHAP")) + "\necho more >&2"

    text, pool = run()

    assert "SR_BACKEND_FAILURE_68wrong CHAPmore\n" in text
    assert pool.db.refs("SR") == []


def test_an_sr_uuid_that_the_pool_knows_cannot_be_introduced(run, fakes):
    fakes.resign = pool_fakes.say(pool_fakes.fault(1, SUCCESS))
    _, pool = run()
    pool.db.create("SR", OLD, name_label="original", type="lvmoiscsi")
    with client.connected(pool) as session:
        answer = agent(pool, session).resignature(DETAILS)

    assert "SR_UUID_EXISTS" + OLD in answer.details


def test_no_uuid_after_it(run, fakes):
    fakes.lvm["sr_probe"] = "[ -e {0} ] && {{\n{1}\nexit; }}\necho > {0}\n{2}".format(
        fakes.resign.split()[2], sr_list("too short"), sr_list(OLD)
    )

    assert "Non-existent or invalid SR UUID" in run()[0]


def test_a_lun_without_an_sr_would_be_formatted(run, fakes):
    fakes.lvm["sr_probe"] = pool_fakes.say(pool_fakes.result("&lt;SRlist/&gt;"))
    fakes.lvm["sr_create"] = (
        "case \"$1\" in *SCSIid*)\n" + pool_fakes.say(pool_fakes.fault(202, "formatting")) + "\nexit;;\nesac\n"
        + fakes.lvm["sr_create"]
    )  # fmt: skip

    text, pool = run()

    assert "formatting" in text and commands(pool) == ["sr_create", "sr_probe", "sr_create"]


def test_a_lun_that_is_not_in_the_list(run):
    text, pool = run({IQN: f"/{TARGET_IQN}/8", STORAGE_HOST: "10.0.0.5"})

    assert "can not find LUN 8 in SR_BACKEND_FAILURE_107" in text
    assert commands(pool) == ["sr_create"]


def test_an_error_that_is_not_107_ends_it(run, fakes):
    fakes.lvm["sr_create"] = pool_fakes.say(pool_fakes.fault(141, "no target"))

    assert "SR_BACKEND_FAILURE_141no target" in run()[0]


def test_an_sr_that_was_made_without_asking_for_a_lun_is_not_noticed(run, fakes):
    fakes.lvm["sr_create"] = pool_fakes.say(pool_fakes.NIL)

    text, pool = run()

    assert text == "There were 0 VDIs in the SR."
    assert pool.log.of("sr_probe")[0].params["device_config"]["SCSIid"] == ""


@pytest.mark.parametrize("path", ["iqn/0", "/iqn", "/a/b/c"])
def test_a_path_of_another_form(run, path):
    assert f"Wrong iscsi path {path} it should be /targetIQN/LUN" in run({IQN: path, STORAGE_HOST: "a"})[0]


def test_a_host_that_cannot_plug_leaves_the_sr_behind(run, fakes):
    fakes.lvm["sr_attach"] = (
        "case \"$1\" in *SRmaster\\</name\\>\\<value\\>false*)\n"
        + pool_fakes.say(pool_fakes.fault(47, "down")) + "\nexit;;\nesac\n" + fakes.lvm["sr_attach"]
    )  # fmt: skip

    text, pool = run()

    assert "SR_BACKEND_FAILURE_47down" in text
    (sr,) = pool.db.refs("SR")
    assert len(pool.db.refs("PBD", SR=sr, currently_attached=True)) == 1


def test_an_sr_that_does_not_go_is_only_a_warning(start, connect, fakes, caplog):
    fakes.lvm["sr_detach"] = pool_fakes.say(pool_fakes.fault(69, "stuck"))
    pool = start(fakes.drivers())

    answer = agent(pool, connect(pool)).resignature(DETAILS)

    assert answer.details == "There were 0 VDIs in the SR."
    assert commands(pool).count("sr_detach") == 2
    assert "was not removed" in caplog.text


def test_without_an_answer_in_time_cloudstack_gives_up(start, connect, fakes):
    fakes.resign = "exec sleep 60"
    pool = start(fakes.drivers())
    session = connect(pool, timeout_s=1)

    answer = agent(pool, session).resignature(DETAILS)

    assert answer.details == "Unable to create Iscsi SR  {} due to  Read timed out".format(
        {"target": "10.0.0.5", "targetIQN": TARGET_IQN, "SCSIid": SCSI_ID}
    )
    assert [running.command for running in pool.log.running()] == ["sr_create"], "the driver knows nothing of it"


def test_another_use_of_the_sr_may_ignore_that_it_exists(start, connect, fakes):
    pool = start(fakes.drivers())
    pool.db.create("SR", OLD, name_label="another", type="lvmoiscsi")
    agent_ = agent(pool, connect(pool))

    assert agent_.get_iscsi_sr(LABEL, "10.0.0.5", LABEL + "/", ignore_introduce=True) is None


def test_the_guard_looks_for_a_key_that_cloudstack_never_writes(start, connect, fakes):
    pool = start(fakes.drivers())
    sr = pool.db.create("SR", name_label=LABEL, type="lvmoiscsi")
    config = {"target": "10.0.0.5", "targetIQN": TARGET_IQN, "lunid": "7"}
    pool.db.create("PBD", SR=sr, host=pool.master, device_config=config)
    pool.db.create("SR", name_label=LABEL, type="nfs")
    cloud = agent(pool, connect(pool))

    assert "There is a SR using the same configuration" in cloud.resignature(DETAILS).details
    pool.db.set("PBD", pool.db.refs("PBD")[0], "device_config", dict(config, lunid="8"))
    assert "There were 0 VDIs" in cloud.resignature(DETAILS).details
