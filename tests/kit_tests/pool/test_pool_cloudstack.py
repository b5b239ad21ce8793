# SPDX-License-Identifier: LGPL-2.1-only
"""CloudStack's ResignatureCommand makes these calls of a pool, and leaves nothing there but secrets."""

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
        "SR.get_by_name_label", "host.get_by_uuid", "SR.create", "SR.probe", "SR.create", "SR.probe", "SR.introduce",
        "host.get_all", "PBD.create", "PBD.plug", "PBD.create", "PBD.plug", "SR.scan",
        "SR.get_VDIs", "VDI.get_virtual_size", "VDI.get_uuid",
        "SR.get_VDIs", "VDI.forget", "SR.get_PBDs", "PBD.unplug", "PBD.destroy", "PBD.unplug", "PBD.destroy",
        "SR.get_PBDs", "SR.forget",
    ]  # fmt: skip
    assert left == [] and not world.sessions, "nobody has the LUN attached"
    creations = 2 * (1 + len(pool.hosts))
    assert secrets == creations + 2 + len(pool.hosts), "what xapi leaves: per create, probe, PBD.create"
