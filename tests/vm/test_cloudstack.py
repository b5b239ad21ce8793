# SPDX-License-Identifier: LGPL-2.1-only
"""CloudStack's ResignatureCommand, call by call as its Java code makes them (docs/host.rst)."""

import pytest

from kit.chains import flatten
from kit.chains.random_chain import random_chain
from kit.lab import initiator, luns, prober
from kit.lab.command import HANGS
from kit.lab.lio import Chap
from kit.lab.xapi import CONFIG, configure
from kit.pool import client
from kit.pool.cloudstack import (
    CHAP_SECRET,
    CHAP_USER,
    IQN,
    STORAGE_HOST,
    CloudStack,
    supports_resign,
)
from kit.reader import read_sr
from kit.sparse import SparseDisk

ONE_VDI_SEED = 26  # takes fills, a copy, and a hole that is given away
USER = Chap("sm", "correct-horse-1")


@pytest.fixture
def pool(make_pool):
    """Of one host: each further one has the same calls made."""
    return make_pool(hosts=("xs1",))


@pytest.fixture
def host_wants_one_vdi():
    """The setting of this host."""
    configure(vdis="one")
    yield
    CONFIG.unlink()


def test_a_lun_on_the_iqn_of_an_sr_in_use_ends_as_its_vdi(lab, pool, image, original, standin_sees):
    clone = lab.lun(image.clone("clone.img"), number=5)
    array = lab.target(original)
    digest = image.digest()
    (old_vdi,) = [record.uuid for record in image.sr.mgt.records if not record.deleted]
    assert supports_resign(pool.sm_list())

    with lab.attached(array, original, image.sr.uuid) as sr, client.connected(pool, HANGS) as session:
        array.add_lun(clone)
        standin_sees(array)
        agent = CloudStack(session, pool.db.get("host", pool.master, "uuid"))
        answer = agent.resignature({IQN: f"/{array.iqn}/{clone.number}", STORAGE_HOST: "127.0.0.1"})
        assert "MGT" in sr.active
        seen = prober.probe_device(initiator.device_of(clone.scsi_id))

    assert answer.result, answer.details
    assert answer.path == seen.vdis[0].uuid != old_vdi
    assert answer.size == 268435456
    assert seen.problems == ()
    assert pool.db.records("SR") == {} and pool.db.records("PBD") == {}
    assert image.digest() == digest


def test_a_disk_with_three_snapshots_ends_as_one_vdi_with_chap(lab, pool, standin_sees, host_wants_one_vdi):
    """A chain of four images, three of them hidden, and three snapshots: CloudStack counts one VDI, at once."""
    chain = random_chain(ONE_VDI_SEED, depth=4, snapshots=True, free=40, blocks=6)
    assert len(chain.snapshots) == 3
    clone = lab.lun(luns.from_disk(chain.disk, "snapshots.img"))
    copies = lab.target(clone, chap=USER)
    standin_sees(copies)
    details = {IQN: f"/{copies.iqn}/{clone.number}", STORAGE_HOST: "127.0.0.1"}
    details.update({CHAP_USER: USER.user, CHAP_SECRET: USER.password})
    before = lab.world()

    with client.connected(pool, HANGS) as session:
        answer = CloudStack(session, pool.db.get("host", pool.master, "uuid")).resignature(details)

    assert answer.result, answer.details
    assert before.diff(lab.world(), except_for=["records", "names:/etc/*", "files:/run/lock/*"]) == []
    sr = read_sr(SparseDisk.from_file(clone.path))
    assert sr.problems == ()
    assert [record.uuid for record in sr.mgt.records if not record.deleted] == [answer.path]
    assert answer.size == chain.flats[chain.leaf].size
    assert flatten(SparseDisk.from_file(clone.path), f"VHD-{answer.path}") == chain.flats[chain.leaf]
