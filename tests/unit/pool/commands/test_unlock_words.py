# SPDX-License-Identifier: LGPL-2.1-only
"""Which lock a word means to `unlock`: a vm-admin gives VMs any name, and a vm-operator gives locks any name."""

import pytest

from relvmoiscsi.pool import lock, lock_keys
from relvmoiscsi.pool.connection import connect

#: certain, and in forms that a name may have as well
IDS = ["360014050000000000000000000000009", "1QEMU_lun0", "20000000000000001", "8vendor-lun-1"]


def take(lab, name, is_open=False):
    with connect(lab.where()) as calls:
        run = lock.Held(calls, [name], "restore" if is_open else "attach")
        del run._begins[: is_open or 0]
        run.take()


@pytest.mark.parametrize("vms", [1, 2])
@pytest.mark.parametrize("scsi_id", IDS)
def test_a_scsi_id_means_the_lun_whatever_vms_have_it_as_their_name(lab, pool_command, scsi_id, vms):
    """A killed attach has left its lock on a LUN that has no SR, and the VMs are locked, too."""
    take(lab, scsi_id)
    for _ in range(vms):
        take(lab, lab.pool.db.get("VM", lab.vm(scsi_id), "uuid"), is_open=True)
    ran = pool_command("unlock", scsi_id, "--yes", "--json")
    assert ran.status == 0 and [row["locked"] for row in ran.json["unlocked"]] == [scsi_id]


def test_the_scsi_id_of_a_copy_means_the_copy(lab, copy, pool_command):
    (sr,) = lab.pool.db.refs("SR", name_label="a copy")
    marks = lab.pool.db.get("SR", sr, "other_config")
    lab.pool.db.set("SR", sr, "other_config", {**marks, "relvmoiscsi:scsi-id": "1QEMU_lun0"})
    take(lab, lab.pool.db.get("VM", lab.vm("1QEMU_lun0"), "uuid"), is_open=True)
    ran = pool_command("unlock", "1QEMU_lun0", "--yes")
    assert ran.status == 3 and "There is no lock on '1QEMU_lun0'" in ran.err


def test_a_name_means_the_one_that_is_locked(lab, copy, pool_command):
    (sr,) = lab.pool.db.refs("SR", name_label="a copy")
    own = lock_keys.name_of(lab.pool.db.record("SR", sr))
    take(lab, own)
    vms = [lab.vm("a copy"), lab.vm("a copy")]
    assert f"lock {own}: would be unlocked" in pool_command("unlock", "a copy", "--dry-run").out
    uuid = lab.pool.db.get("VM", vms[0], "uuid")
    take(lab, uuid, is_open=True)
    ran = pool_command("unlock", "a copy", "--yes")
    said = " ".join(ran.err.split())
    told = f"2 SRs and VMs with the name 'a copy' are locked. Nothing was changed. Give one of the ids: {own}, "
    assert ran.status == 2 and told in said
    for each in (own, uuid):
        assert f"lock {each}: unlocked" in pool_command("unlock", each, "--yes").out


@pytest.mark.parametrize("name", ["SAP-PRODUCTION-DATABASE-01", "1A-mailserver"])
def test_a_name_with_the_form_of_a_scsi_id_is_a_name(lab, pool_command, name):
    take(lab, lab.pool.db.get("VM", lab.vm(name), "uuid"))
    assert pool_command("unlock", name, "--yes").status == 0
