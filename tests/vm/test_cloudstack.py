# SPDX-License-Identifier: LGPL-2.1-only
"""CloudStack's ResignatureCommand, call by call as its Java code makes them (docs/host.rst)."""

import os

import pytest

from kit.chains import flatten
from kit.chains.random_chain import random_chain
from kit.lab import luns
from kit.lab.lio import Chap
from kit.pool import client
from kit.pool.cloudstack import (
    CHAP_SECRET,
    CHAP_USER,
    IQN,
    STORAGE_HOST,
    WAIT_S,
    CloudStack,
    supports_resign,
)
from kit.sparse import SparseDisk

ONE_VDI_SEED = 26  # takes fills, a copy, and a hole that is given away
CONFIG = "/etc/relvmoiscsi.conf"
USER = Chap("sm", "correct-horse-1")


def test_a_resignature_command_with_chap_ends_with_the_new_vdi(lab, pool, image, original, clone, standin_sees):
    assert supports_resign(pool.sm_list())
    source, copies = lab.target(original), lab.target(clone, chap=USER)
    standin_sees(source, copies)
    digest = image.digest()
    (old_vdi,) = [record.uuid for record in image.sr.mgt.records if not record.deleted]
    details = {IQN: f"/{copies.iqn}/{clone.number}", STORAGE_HOST: "127.0.0.1"}
    details.update({CHAP_USER: USER.user, CHAP_SECRET: USER.password})

    with lab.attached(source, original, image.sr.uuid), client.connected(pool, WAIT_S) as session:
        before = lab.world()
        answer = CloudStack(session, pool.db.get("host", pool.master, "uuid")).resignature(details)
        changed = before.diff(lab.world(), except_for=["records", "names:/etc/*", "files:/run/lock/*"])

    assert answer.result, answer.details
    seen = lab.probe(copies, clone)
    (vdi,) = seen.vdis
    assert answer.path == vdi.uuid != old_vdi
    assert answer.size == 268435456
    assert seen.problems == ()
    assert changed == []
    assert pool.db.records("SR") == {} and pool.db.records("PBD") == {}
    assert image.digest() == digest


def test_two_luns_of_one_target_one_after_the_other(lab, pool, image, standin_sees):
    clones = [lab.lun(image.clone(f"clone{number}.img")) for number in range(2)]
    array = lab.target(*clones)
    standin_sees(array)
    agents = [{IQN: f"/{array.iqn}/{lun.number}", STORAGE_HOST: "127.0.0.1"} for lun in clones]

    with client.connected(pool, WAIT_S) as session:
        host = pool.db.get("host", pool.master, "uuid")
        answers = [CloudStack(session, host).resignature(details) for details in agents]

    assert [answer.result for answer in answers] == [True, True], [answer.details for answer in answers]
    assert answers[0].path != answers[1].path


@pytest.fixture
def host_wants_one_vdi():
    """The setting of this host."""
    with open(CONFIG, "w", encoding="ascii") as file:
        file.write("[driver]\nvdis = one\n")
    yield
    os.unlink(CONFIG)


def test_a_disk_with_three_snapshots_ends_as_one_vdi(lab, pool, standin_sees, host_wants_one_vdi):
    """A chain of four images, three of them hidden, and three snapshots: CloudStack counts one VDI, at once."""
    chain = random_chain(ONE_VDI_SEED, depth=4, snapshots=True, free=40, blocks=6)
    assert len(chain.snapshots) == 3
    image = luns.from_disk(chain.disk, "snapshots.img")
    copy = image.clone("clone.img")
    original, clone = lab.lun(image), lab.lun(copy)
    source, copies = lab.target(original), lab.target(clone)
    standin_sees(source, copies)
    digest = image.digest()
    details = {IQN: f"/{copies.iqn}/{clone.number}", STORAGE_HOST: "127.0.0.1"}

    with lab.attached(source, original, chain.sr_uuid), client.connected(pool, WAIT_S) as session:
        answer = CloudStack(session, pool.db.get("host", pool.master, "uuid")).resignature(details)

    assert answer.result, answer.details
    seen = lab.probe(copies, clone)
    assert [vdi.uuid for vdi in seen.vdis] == [answer.path]
    assert answer.size == chain.flats[chain.leaf].size
    assert flatten(SparseDisk.from_file(copy.path), f"VHD-{answer.path}") == chain.flats[chain.leaf]
    assert image.digest() == digest
