# SPDX-License-Identifier: LGPL-2.1-only
"""The command on a real disk, on a host of a pool: it asks xapi, takes the driver's locks, and leaves the original."""

import sys

import pytest

from kit.lab import initiator
from kit.lab.command import run, settle
from kit.lab.xapi import TOP
from relvmoiscsi.host.locks import sm_locks


def command(*words):
    """Run the command in a process of its own."""
    return run(sys.executable, "-m", "relvmoiscsi", *words, check=False, env={"PYTHONPATH": str(TOP)})


@pytest.fixture
def disks(lab, original, clone):
    """The nodes of the original and of its clone."""
    for target in (lab.target(original), lab.target(clone)):
        initiator.login(target.iqn, target.portal)
    settle()
    yield [initiator.device_of(lun.scsi_id) for lun in (original, clone)]
    initiator.logout_all()


def test_the_original_is_refused_and_its_clone_is_not(lab, pool, image, original, clone, disks):
    sr = pool.db.create("SR", name_label="detached", type="ext", uuid=image.sr.uuid)
    by_id = "/dev/disk/by-id/scsi-" + original.scsi_id
    pool.db.create("PBD", SR=sr, host=pool.hosts[-1], device_config={"device": by_id})
    digest = lab.digest(original)

    refused = command("resignature", "--yes", disks[0])
    with sm_locks.lun_lock(clone.scsi_id):
        told = command("resignature", "--dry-run", disks[1])
    done = command("resignature", "--yes", disks[1])

    assert refused.status == 4 and image.sr.uuid in refused.err and "--not-in-use" in refused.err
    assert lab.digest(original) == digest
    assert (told.status, done.status) == (0, 0), repr([told, done])
    assert command("undo", "--yes", disks[1]).status == 0
