# SPDX-License-Identifier: LGPL-2.1-only
"""A copy is forgotten and never destroyed; and the CHAP password leaves nothing behind."""

import pytest

from kit.pool.api import GoneAway
from kit.pool_lab import TARGET, sr_disk
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.pool import discard, luns, records, secrets
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.records import Portal

CHAP = ("alice", "a secret word")


def forget(lab, uuid):
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        ref = pool.sr_by_uuid(uuid)
        if ref is not None:
            discard.verify_copy(pool, ref)
            discard.verify_unused(pool, discard.read_uses(calls, [ref]))
            discard.discard(calls, pool, ref)


def give_to_vm(lab, uuid, name, running):
    db = lab.pool.db
    vdi = db.refs("VDI", SR=db.by_uuid("SR", uuid))[0]
    vm = db.create("VM", name_label=name, power_state="Running" if running else "Halted")
    return db.create("VBD", VM=vm, VDI=vdi, currently_attached=running)


def test_it_is_gone_from_the_pool_and_its_lun_is_as_it_was(lab, world):
    clone = lab.clone("Production")
    before = lab.summary()
    (done,) = lab.attach(clone)
    content = world.lun(clone).disk.peek(0, world.lun(clone).disk.size_bytes)
    world.log.clear()
    forget(lab, done.sr_uuid)

    assert lab.summary() == before
    assert world.lun(clone).disk.peek(0, world.lun(clone).disk.size_bytes) == content
    assert {command for command, _, _ in world.log} == {"sr_detach"}
    assert not any("destroy" in call and "PBD" not in call and "task" not in call for call in lab.pool.api.calls)


def test_the_master_is_unplugged_last(lab, world):
    (done,) = lab.attach(lab.clone("Production"))
    order = []
    unplug = lab.pool.storage.pbd_unplug

    def told(session, pbd):
        order.append(lab.pool.db.get("PBD", pbd, "host"))
        unplug(session, pbd)

    lab.pool.api._methods["PBD.unplug"] = told
    forget(lab, done.sr_uuid)

    assert len(order) == 3 and order[-1] == lab.pool.master


def test_a_running_vm_keeps_it(lab):
    (done,) = lab.attach(lab.clone("Production"))
    vbd = give_to_vm(lab, done.sr_uuid, "rescue", running=True)
    with pytest.raises(Refused, match="Running or suspended VMs have disks on the SR 'Production 2026-11-22': rescue"):
        forget(lab, done.sr_uuid)
    assert all(pbd["currently_attached"] for pbd in lab.pool.db.records("PBD").values())

    lab.pool.db.set("VBD", vbd, "currently_attached", False)
    forget(lab, done.sr_uuid)
    assert lab.pool.db.refs("SR", uuid=done.sr_uuid) == []


def test_the_memory_of_a_suspended_vm_keeps_it():
    vms = {
        "vm": {"name_label": "sleeping", "suspend_VDI": "vdi"},
        "other": {"name_label": "awake", "suspend_VDI": "NULL"},
    }

    assert discard.uses_of({"vdi": {}}, {}, vms) == discard.Uses(["sleeping"], [])


def test_a_host_that_is_down_and_has_it_keeps_it_whole(lab):
    """xapi does not take note that a PBD of a crashed host is not attached any more."""
    (done,) = lab.attach(lab.clone("Production"))
    lab.pool.go_down(lab.pool.hosts[2])
    with pytest.raises(Refused, match="while these hosts are down.*: xs3. Nothing was unplugged"):
        forget(lab, done.sr_uuid)
    assert all(pbd["currently_attached"] for pbd in lab.pool.db.records("PBD").values())

    lab.pool.come_back(lab.pool.hosts[2])
    forget(lab, done.sr_uuid)
    assert lab.pool.db.refs("SR", uuid=done.sr_uuid) == []


def test_who_has_disks_there(lab):
    (done,) = lab.attach(lab.clone("Production"))
    give_to_vm(lab, done.sr_uuid, "off", running=False)
    give_to_vm(lab, done.sr_uuid, "on", running=True)
    give_to_vm(lab, lab.world.sr_uuid(lab.originals["Production"][0]), "elsewhere", running=True)
    with connect(lab.where()) as calls:
        ref, _ = lab.sr(done.sr_uuid)
        assert discard.read_uses(calls, [ref])[ref] == discard.Uses(["on"], ["off"])


def test_an_sr_that_is_no_copy_is_refused(lab, world):
    with pytest.raises(Refused, match="is no copy that `relvmoiscsi pool attach` has introduced"):
        forget(lab, world.sr_uuid(lab.originals["Production"][0]))


def test_killed_at_every_call_the_next_run_finishes_it(lab, world):
    clone = lab.clone("Production")
    before = lab.summary()
    number = 0
    while True:
        number += 3
        (done,) = lab.attach(clone)
        count = [0]

        def cut(method, params, count=count, number=number):
            count[0] += 1
            if count[0] > number:
                raise GoneAway()

        lab.pool.api.before = cut
        try:
            forget(lab, done.sr_uuid)
        except RelvmoiscsiError:
            pass
        lab.pool.api.before = None
        forget(lab, done.sr_uuid)
        assert lab.summary() == before, number
        if count[0] <= number:
            break
    assert number > 15


# --- CHAP


@pytest.fixture
def guarded(lab, world):
    """A clone behind a target that wants CHAP."""
    scsi_id = world.add("10.0.0.6", "iqn.2026-01.test:guarded", sr_disk("guarded"), chap=CHAP)
    world.attach_original(lab.pool, scsi_id, "Guarded")
    return world.clone(scsi_id)


def test_one_secret_for_all_calls_which_is_gone_at_the_end(lab, guarded):
    before = lab.pool.db.refs("secret")
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        with secrets.chap(calls, [Portal("10.0.0.6")], *CHAP) as portals:
            assert len(lab.pool.db.refs("secret")) == len(before) + 1
            found = luns.find(calls, pool, portals, 1)
        assert guarded in [lun.scsi_id for lun in found]

    assert lab.pool.db.refs("secret") == before


def test_without_a_user_nothing_is_made(lab):
    with connect(lab.where()) as calls, secrets.chap(calls, [Portal(TARGET)], "", "") as portals:
        assert portals == [Portal(TARGET)]

    assert "secret.create" not in lab.pool.api.calls


def orphans(lab):
    """The Secrets with the password that no PBD names."""
    named = {pbd["device_config"].get("chappassword_secret") for pbd in lab.pool.db.records("PBD").values()}
    found = lab.pool.db.records("secret", value=CHAP[1])
    return {ref for ref, secret in found.items() if secret["uuid"] not in named}


def test_what_xapi_leaves_behind_is_found_and_no_other_secret(lab, guarded):
    other = lab.pool.db.create("secret", value="of somebody else")
    before = orphans(lab)
    lab.attach(guarded)
    left = orphans(lab)
    assert len(left - before) == 3, "one for each host, of the SR.create that is taken for a failure"

    with connect(lab.where()) as calls:
        portals = records.read(calls).portals()
        found = secrets.left_behind(calls, portals)
        assert set(found) == left
        assert secrets.left_behind(calls, [Portal(TARGET)]) == []
        assert set(secrets.left_behind(calls, [], CHAP[1])) == left
        assert secrets.clean(calls, found) == len(left)
        assert orphans(lab) == set()

    assert other in lab.pool.db.refs("secret")
    (again,) = lab.attach(guarded)
    assert again.status == "already attached"


def test_secrets_that_others_use_are_not_left_behind(lab, guarded):
    """Of a client at work, with a note of somebody's, named by the pool: the password alone says nothing."""
    db = lab.pool.db
    for ref in orphans(lab):
        db.destroy("secret", ref)
    mine = {secrets.CLIENT: secrets.this_client()}
    dead = db.create("secret", value=CHAP[1], other_config={secrets.CLIENT: mine[secrets.CLIENT] + "1"})
    for other_config in (mine, {"note": "of somebody"}, {secrets.CLIENT: "another-host 12 34"}):
        db.create("secret", value=CHAP[1], other_config=other_config)
    proxy = db.create("secret", value=CHAP[1])
    db.set("pool", lab.pool.pool, "other_config", {"repository_proxy_password": db.get("secret", proxy, "uuid")})
    with connect(lab.where()) as calls:
        assert secrets.left_behind(calls, [], CHAP[1]) == [dead]


def test_no_secret_is_read_where_there_is_no_password(lab):
    with connect(lab.where()) as calls:
        assert secrets.left_behind(calls, [Portal(TARGET)]) == []
    assert "secret.get_all_records" not in lab.pool.api.calls


def test_a_call_that_was_interrupted_leaves_no_secret(lab, guarded):
    before = lab.pool.db.refs("secret")
    chap = secrets.chap
    with connect(lab.where()) as calls, pytest.raises(KeyboardInterrupt), chap(calls, [Portal("10.0.0.6")], *CHAP):
        calls.call("pool.get_all")
        connection = calls._proxy("transport")._connection[1]
        connection.putrequest("POST", "/")  # a call was under way, and its answer is not read
        raise KeyboardInterrupt
    assert lab.pool.db.refs("secret") == before


def test_the_credentials_of_one_array_are_not_shown_to_another(lab):
    one, other = Portal("10.0.0.8", chap_user="alice", chap_secret="x"), Portal("10.0.0.9")
    with connect(lab.where()) as calls, secrets.chap(calls, [one, other], *CHAP, everywhere=False) as portals:
        assert portals[0] == one and portals[1].chap_user == CHAP[0]


def test_the_password_is_in_no_call_but_the_one_that_makes_the_secret(lab, guarded):
    seen = []
    lab.pool.api.before = lambda method, params: seen.append((method, repr(params)))
    with connect(lab.where()) as calls, secrets.chap(calls, [Portal("10.0.0.6")], *CHAP) as portals:
        luns.find(calls, records.read(calls), portals, 1)
    lab.pool.api.before = None

    assert [method for method, text in seen if CHAP[1] in text] == ["secret.create"]
