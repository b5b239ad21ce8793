# SPDX-License-Identifier: LGPL-2.1-only
"""CloudStack's ResignatureCommand makes these calls of a pool, and leaves nothing there but secrets."""

import pytest

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


class Cloud:
    """A cloud with managed storage: a LUN for each volume, whose SR the pool has while a VM uses the volume."""

    def __init__(self, world, pool, session):
        self.world, self.pool, self._api = world, pool, session.xenapi
        self._agent = cloudstack.CloudStack(session, pool.db.get("host", pool.master, "uuid"))

    def make(self, lun):
        """The answer to a ResignatureCommand for this LUN; the pool has nothing of it behind that."""
        return self._agent.resignature({IQN: f"/{self.world.lun(lun).iqn}/1", STORAGE_HOST: "10.0.0.5"})

    def clone(self, lun):
        """A clone by the array, on a target of its own."""
        iqn = f"{TARGET_IQN}{len(self.world.luns)}"
        return self.world.add("10.0.0.5", iqn, self.world.lun(lun).disk.copy())

    def use(self, lun, plugged=True, hosts=2):
        """A VM is given the volume: SR.introduce, then a PBD for each host, which is plugged."""
        sr = self._api.SR.introduce(self.world.sr_uuid(lun), "iqn", "iqn", cloudstack.LVMOISCSI, "user", True, {})
        config = {"target": "10.0.0.5", "targetIQN": self.world.lun(lun).iqn, "SCSIid": lun}
        for host in self._api.host.get_all()[:hosts]:
            pbd = self._api.PBD.create({"device_config": config, "host": host, "SR": sr})
            if plugged:
                self._api.PBD.plug(pbd)
        return sr

    def drop(self, sr):
        self._agent.remove_sr(sr)


@pytest.fixture
def cloud():
    world = World()
    world.add("10.0.0.5", TARGET_IQN, golden.load("one").disk)
    with world.pool() as pool, client.connected(pool, timeout_s=cloudstack.WAIT_S) as session:
        yield Cloud(world, pool, session)


def test_volumes_of_volumes_go_on_whatever_the_cloud_does_with_the_sr_of_their_source(cloud):
    """The template is unused, then a VM uses the volume of which a snapshot is taken, then an attachment begins."""
    world = cloud.world
    source = world.luns[0].scsi_id
    assert cloud.make(source).result
    for hosts in (None, 2, 0):
        of = None if hosts is None else cloud.use(source, hosts=hosts)
        clone = cloud.clone(source)
        answer = cloud.make(clone)
        assert answer.result and world.state(clone) == "resignatured", answer
        assert world.sr_uuid(clone) != world.sr_uuid(source), "a clone of a LUN that was resignatured"
        if of is not None:
            cloud.drop(of)
        source = clone
    assert cloud.pool.db.refs("SR") == []


def test_an_sr_that_the_cloud_could_not_forget_ends_the_next_clone_with_the_words_that_help(cloud):
    """removeSR gives up with a warning: the SR stays, and no host has it attached."""
    source = cloud.world.luns[0].scsi_id
    sr = cloud.use(source, plugged=False)
    uuid, clone = cloud.world.sr_uuid(source), cloud.clone(source)

    answer = cloud.make(clone)

    assert not answer.result and f"`xe sr-forget uuid={uuid}`" in answer.details
    assert "successfully resigned" not in answer.details and cloud.world.sr_uuid(clone) == uuid
    cloud.drop(sr)
    assert cloud.make(clone).result


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
