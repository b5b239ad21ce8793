# SPDX-License-Identifier: LGPL-2.1-only
"""CloudStack's ResignatureCommand makes these calls of a pool, and leaves nothing there but secrets."""

import pytest
import XenAPI

from kit import golden, lun_world
from kit.pool import client, cloudstack
from kit.pool.cloudstack import CHAP_SECRET, CHAP_USER, IQN, STORAGE_HOST

TARGET_IQN = "iqn.2026-01.test:clone"
DETAILS = {IQN: f"/{TARGET_IQN}/1", STORAGE_HOST: "10.0.0.5", CHAP_USER: "alice", CHAP_SECRET: "hidden word"}


class World(lun_world.World):
    """With a stock driver that is asked to make an SR without a SCSIid, and gives the list of LUNs for that."""

    def _lvmoiscsi_sr_create(self, members, config):
        self._behind(config, members["type"])


def test_a_clone_becomes_a_volume():
    world = World()
    lun = world.add("10.0.0.5", TARGET_IQN, golden.load("one").disk, chap=("alice", "hidden word"))
    before = world.sr_uuid(lun)
    with world.pool() as pool, client.connected(pool, timeout_s=cloudstack.WAIT_S) as session:
        agent = cloudstack.CloudStack(session, pool.db.get("host", pool.master, "uuid"))
        del pool.api.calls[:]
        answer = agent.resignature(DETAILS)
        calls = list(pool.api.calls)
        left = pool.db.refs("SR") + pool.db.refs("PBD") + pool.db.refs("VDI")
        secrets = len(pool.secrets())

    assert answer.result and (answer.size, answer.format) == (268435456, "VHD"), answer
    assert world.state(lun) == "resignatured" and world.sr_uuid(lun) != before
    assert calls == [
        "host.get_by_uuid", "host.get_enabled",
        "SR.get_by_name_label", "host.get_by_uuid", "SR.create", "SR.probe", "SR.create", "SR.probe", "SR.introduce",
        "host.get_all", "PBD.create", "PBD.plug", "PBD.create", "PBD.plug", "SR.scan",
        "SR.get_VDIs", "VDI.get_virtual_size", "VDI.get_uuid",
        "SR.get_VDIs", "VDI.forget", "SR.get_PBDs", "PBD.unplug", "PBD.destroy", "PBD.unplug", "PBD.destroy",
        "SR.get_PBDs", "SR.forget",
    ]  # fmt: skip
    assert left == [] and not world.sessions, "nobody has the LUN attached"
    creations = 2 * (1 + len(pool.hosts))
    assert secrets == creations + 2 + len(pool.hosts), "what xapi leaves: per create, probe, PBD.create"


def test_an_sr_that_has_the_label_already_is_looked_at_and_no_reason_to_stop():
    """Nobody writes `lunid` into a PBD but an administrator by hand."""
    world = World()
    world.add("10.0.0.5", TARGET_IQN, golden.load("one").disk, chap=("alice", "hidden word"))
    with world.pool() as pool, client.connected(pool) as session:
        agent = cloudstack.CloudStack(session, pool.db.get("host", pool.master, "uuid"))
        config = {"target": "10.0.0.5", "targetIQN": TARGET_IQN}
        answers = []
        for lun_id in ("", "2", "1"):
            sr = pool.db.create("SR", type="lvmoiscsi", name_label=DETAILS[IQN])
            pool.db.create("PBD", SR=sr, host=pool.master, device_config={**config, "lunid": lun_id})
            answers.append(agent.resignature(DETAILS))
            pool.db.destroy("SR", sr)

    assert [answer.result for answer in answers] == [True, True, False]
    assert "There is a SR using the same configuration" in answers[2].details


def test_a_host_that_is_disabled_is_asked_for_nothing():
    with World().pool() as pool, client.connected(pool) as session:
        pool.db.set("host", pool.master, "enabled", False)
        agent = cloudstack.CloudStack(session, pool.db.get("host", pool.master, "uuid"))
        with pytest.raises(cloudstack.CloudRuntimeException, match="not enabled"):
            agent.resignature(DETAILS)
        assert "SR.create" not in pool.api.calls


@pytest.mark.parametrize("details, text", [
    (["SR_BACKEND_FAILURE_107", "", "no SCSIid", "<LUN>"], "SR_BACKEND_FAILURE_107no SCSIid<LUN>"),
    (["SR_BACKEND_FAILURE", "non-zero exit", "", "Traceback"], "(SrBackendFailure)"),
    (["SR_UUID_EXISTS", "5d0d2b3a"], "(SrUuidExists)"),
    (["VM_IS_USING_NESTED_VIRT", "OpaqueRef:1"], "(VmIsUsingNestedVirt)"),
    (["SR_IS_USED_BY_SOMETHING_NEW", "OpaqueRef:1"], "SR_IS_USED_BY_SOMETHING_NEWOpaqueRef:1"),
])  # fmt: skip
def test_what_an_error_is_for_it(details, text):
    """A code with a class of the SDK is a sentence: neither the code nor the driver's text is in it."""
    assert cloudstack.to_string(XenAPI.Failure(details)) == text
