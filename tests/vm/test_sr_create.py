# SPDX-License-Identifier: LGPL-2.1-only
"""SR.create type=relvmoiscsi as xapi executes it, on real iSCSI, beside the original in use."""

from xml.etree import ElementTree

import pytest
import XenAPI

from kit.lab import initiator
from kit.lab.lio import Chap
from kit.lab.xapi import (
    SUCCESS,
    Call,
    chosen,
    config_of,
    created,
    install_rules,
    remove_rules,
)
from kit.pool import client

TEXT_OF_SUCCESS = "successfully resigned"


def is_failure(answer, code):
    """A failure that nobody takes for success."""
    return answer[0] == f"SR_BACKEND_FAILURE_{code}" and TEXT_OF_SUCCESS not in str(answer)


# -- what it is for -----------------------------------------------------------------------------------------------


def test_a_clone_is_resignatured_beside_its_original_in_use(lab, pool):
    image = lab.image("chain")
    original, clone = lab.lun(image), lab.lun(image.clone("clone.img"))
    source, copies = lab.target(original), lab.target(clone)
    digest = image.digest()

    with lab.attached(source, original, image.sr.uuid) as sr, lab.untouched():
        assert created(pool, copies, clone) == SUCCESS
        assert "MGT" in sr.active

    (call,) = pool.log.of("sr_create")
    assert (call.status, call.stderr) == (0, b"")
    seen = lab.probe(copies, clone)
    # A row of xapi's for this call may stay if xapi dies; the SR on the LUN must not be that one.
    assert seen.sr_uuid not in (call.params["sr_uuid"], image.sr.uuid)
    assert seen.problems == ()
    assert image.digest() == digest


def test_smlog_has_the_map_of_the_sr_and_of_every_vdi(lab, pool):
    image = lab.image("chain")
    clone = lab.lun(image.clone("clone.img"))
    copies = lab.target(clone)

    assert created(pool, copies, clone) == SUCCESS

    log = lab.smlog()
    pairs = [line.split("  becomes  ") for line in log if "  becomes  " in line]
    became = {old.split()[-1]: new.split()[0] for old, new in pairs}
    seen = lab.probe(copies, clone)
    assert set(became) == {image.sr.uuid} | {record.uuid for record in image.sr.mgt.records if not record.deleted}
    assert set(became.values()) == {seen.sr_uuid} | {vdi.uuid for vdi in seen.vdis}
    assert all(line.startswith("SM: [") for line in log)


def test_the_same_call_again_gives_the_same_answer_without_a_write(lab, pool, clone):
    copies = lab.target(clone)
    assert created(pool, copies, clone) == SUCCESS
    first = lab.digest(clone)

    with lab.untouched():
        assert created(pool, copies, clone) == SUCCESS

    assert lab.digest(clone) == first
    assert any("was resignatured already" in line for line in lab.smlog())


def test_a_clone_of_the_resignatured_lun_gets_identities_of_its_own(lab, pool, image, clone):
    copies = lab.target(clone)
    assert created(pool, copies, clone) == SUCCESS
    first = lab.probe(copies, clone)
    digest = lab.digest(clone)
    third = lab.lun(type(image)(clone.path).clone("third.img"))
    further = lab.target(third)

    with lab.untouched():
        assert created(pool, further, third) == SUCCESS

    second = lab.probe(further, third)
    assert second.problems == ()
    assert len({image.sr.uuid, first.sr_uuid, second.sr_uuid}) == 3
    assert not {vdi.uuid for vdi in first.vdis} & {vdi.uuid for vdi in second.vdis}
    assert (first.vg_uuid, first.pv_uuid) != (second.vg_uuid, second.pv_uuid)
    assert lab.digest(clone) == digest


def test_the_session_of_an_sr_on_the_same_iqn_survives(lab, pool, image):
    luns = [lab.lun(image)] + [lab.lun(image.clone(f"clone{n}.img")) for n in range(1, 10)]
    array = lab.target(*luns)
    digests = [lab.digest(lun) for lun in luns]

    # Which of several copies a link by PV id leads to is udev's choice; of a line in SM's file blanks may stay.
    links_and_blanks = ["links:*lvm-pv-uuid-*", "files:/run/sr-ref/*"]
    with lab.attached(array, luns[0], image.sr.uuid) as sr, lab.untouched(except_for=links_and_blanks):
        assert created(pool, array, luns[7]) == SUCCESS
        assert "MGT" in sr.active

    changed = [lun.number for lun, digest in zip(luns, digests) if lab.digest(lun) != digest]
    assert changed == [7]


def test_a_lun_that_was_mapped_a_second_ago_is_found_on_the_session_that_is_there(lab, pool, image, original):
    array = lab.target(original)
    digest = image.digest()

    blanks = ["files:/run/sr-ref/*", "links:*lvm-pv-uuid-*"]
    with lab.attached(array, original, image.sr.uuid), lab.untouched(except_for=blanks):
        clone = array.add_lun(lab.lun(image.clone("clone.img"), number=9))
        assert created(pool, array, clone) == SUCCESS

    assert image.digest() == digest


def test_another_lun_at_the_place_of_the_one_this_host_knew_is_not_written_to(lab, pool, image, clone):
    array = lab.target(clone)
    initiator.login(array.iqn, array.portal)
    initiator.device_of(clone.scsi_id)
    array.remove_lun(clone)
    other = array.add_lun(lab.lun(image.clone("other.img"), number=clone.number))
    digest = lab.digest(other)

    answer = created(pool, array, clone)

    assert is_failure(answer, 67) and clone.scsi_id in answer[2], answer
    assert lab.digest(other) == digest


def test_lvm_does_not_grab_the_clone_while_events_activate(lab, pool, clone):
    copies = lab.target(clone)

    with lab.event_activation(), lab.untouched():
        assert created(pool, copies, clone) == SUCCESS


def test_without_our_rules_nothing_is_even_logged_in(lab, pool, clone):
    """What events do to a clone that is not hidden, tests/vm/test_lab.py shows."""
    copies = lab.target(clone)
    digest = lab.digest(clone)
    remove_rules()
    try:
        with lab.event_activation(), lab.untouched():
            answer = created(pool, copies, clone)
    finally:
        install_rules()

    assert is_failure(answer, 202) and "57-relvmoiscsi.rules" in answer[2], answer
    assert not any("logging in" in line for line in lab.smlog())
    assert lab.digest(clone) == digest


# -- passwords ----------------------------------------------------------------------------------------------------


def test_chap_is_used_and_logged_nowhere(lab, pool, clone):
    copies = lab.target(clone, chap=Chap("sm", "correct-horse-1"))

    with lab.untouched():
        assert created(pool, copies, clone, chapuser="sm", chappassword="correct-horse-1") == SUCCESS
        wrong = created(pool, copies, clone, chapuser="sm", chappassword="wrong-horse-22")
        none = created(pool, copies, clone)

    assert is_failure(wrong, 68) and is_failure(none, 68)
    assert "Nothing was written." in wrong[2] and "Nothing was written." in none[2]
    for secret in ("correct-horse-1", "wrong-horse-22"):
        assert pool.log.grep(secret) == []
        assert not any(secret in line for line in lab.smlog())


@pytest.mark.execs
def test_mutual_chap_is_used_and_shown_nowhere(lab, pool, clone):
    copies = lab.target(clone, chap=Chap("sm", "correct-horse-1"), mutual=Chap("array", "battery-staple-2"))
    digest = lab.digest(clone)
    ours = {"chapuser": "sm", "incoming_chapuser": "array", "incoming_chappassword": "battery-staple-2"}

    with lab.secrets() as watcher, lab.untouched():
        wrong = created(pool, copies, clone, chappassword="wrong-horse-22", **ours)
        not_the_array = created(
            pool, copies, clone, chappassword="correct-horse-1", **dict(ours, incoming_chappassword="wrong-staple-33")
        )
        assert lab.digest(clone) == digest
        right = created(pool, copies, clone, chappassword="correct-horse-1", **ours)

    assert is_failure(wrong, 68) and is_failure(not_the_array, 68) and right == SUCCESS
    for secret in ("correct-horse-1", "wrong-horse-22", "battery-staple-2", "wrong-staple-33"):
        assert watcher.places(secret) == []
        assert pool.log.grep(secret) == []
        assert not any(secret in line for line in lab.smlog())


def test_a_secret_under_our_own_key_is_used_and_no_copy_of_it_stays(lab, pool, clone):
    copies = lab.target(clone, chap=Chap("sm", "correct-horse-1"))
    secret = pool.db.create("secret", value="correct-horse-1")
    uuid = pool.db.get("secret", secret, "uuid")

    with lab.untouched():
        assert created(pool, copies, clone, chapuser="sm", chapsecret=uuid) == SUCCESS
    assert pool.db.refs("secret") == [secret]


def test_a_xapi_that_hands_over_clear_passwords_is_served_as_well(lab, make_pool, clone):
    pool = make_pool(move_secrets=False, originator=False)
    copies = lab.target(clone, chap=Chap("sm", "correct-horse-1"))

    with lab.untouched():
        assert created(pool, copies, clone, chapuser="sm", chappassword="correct-horse-1") == SUCCESS

    assert not any("correct-horse-1" in line for line in lab.smlog())


# -- what cannot be done ------------------------------------------------------------------------------------------


UNREACHABLE = [
    ({"SCSIid": "3600140500000000000000000000000000"}, 67),
    ({"targetIQN": "iqn.2026-01.lab:none"}, 83),
    ({"port": "3999"}, 141),
    ({"target": "127.0.0.9"}, 141),
    ({"target": "no-such-name.invalid"}, 140),
    ({"target": None}, 95),
]


def test_what_cannot_be_reached_is_told_apart_and_leaves_nothing(lab, pool, clone):
    copies = lab.target(clone)
    digest = lab.digest(clone)

    with lab.untouched():
        answers = [(change, code, created(pool, copies, clone, **change)) for change, code in UNREACHABLE]

    for change, code, answer in answers:
        assert is_failure(answer, code), (change, answer)
    assert lab.digest(clone) == digest


def test_a_lun_without_an_sr_and_a_read_only_one_are_refused(lab, pool, image):
    empty = lab.lun(lab.blank("empty.img"))
    locked = lab.lun(image.clone("locked.img"), read_only=True)
    target = lab.target(empty, locked)
    digests = lab.digest(empty), lab.digest(locked)

    with lab.untouched():
        nothing, read_only = created(pool, target, empty), created(pool, target, locked)

    assert is_failure(nothing, 92) and "is empty" in nothing[2]
    assert is_failure(read_only, 202) and "read-only" in read_only[2]
    assert (lab.digest(empty), lab.digest(locked)) == digests


def test_a_volume_group_over_two_luns_is_refused(lab, pool):
    luns = [lab.lun(lab.blank(f"pv{n}.img", 128 << 20)) for n in range(2)]
    target = lab.target(*luns)
    initiator.login(target.iqn, target.portal)
    devices = [initiator.device_of(lun.scsi_id) for lun in luns]
    initiator.lvm("vgcreate", "VG_XenStorage-8a4ee3a1-8dbd-4b5e-8c1f-0a8f6e3b9a11", *devices)
    initiator.logout(target.iqn)
    digests = [lab.digest(lun) for lun in luns]

    with lab.untouched():
        answers = [created(pool, target, lun) for lun in luns]

    for answer in answers:
        assert answer[0].startswith("SR_BACKEND_FAILURE_") and TEXT_OF_SUCCESS not in str(answer)
        assert "physical volumes" in answer[2], answer
    assert [lab.digest(lun) for lun in luns] == digests


def test_an_sr_that_has_the_scsi_id_is_never_touched(lab, pool, image, clone):
    copies = lab.target(clone)
    digest = lab.digest(clone)
    sr = pool.db.create("SR", name_label="in use", type="lvmoiscsi", uuid=image.sr.uuid)
    pool.db.create("PBD", SR=sr, host=pool.master, device_config={"SCSIid": clone.scsi_id}, currently_attached=True)

    with lab.untouched():
        answer = created(pool, copies, clone)

    assert is_failure(answer, 202) and image.sr.uuid in answer[2]
    assert lab.digest(clone) == digest


def test_a_lun_in_use_on_this_host_is_never_touched(lab, pool, image, original):
    """xapi knows of no SR on it, and LVM holds its volumes open."""
    array = lab.target(original)
    digest = image.digest()

    with lab.attached(array, original, image.sr.uuid) as sr, lab.untouched(except_for=["files:/run/sr-ref/*"]):
        answer = created(pool, array, original)
        assert "MGT" in sr.active

    assert answer[0].startswith("SR_BACKEND_FAILURE_") and TEXT_OF_SUCCESS not in str(answer)
    assert "in use" in answer[2] or "held" in answer[2], answer
    assert image.digest() == digest


# -- how it is asked ----------------------------------------------------------------------------------------------


def listed(stderr, root, row):
    """What an orchestrator makes of a list on a driver's stderr."""
    document = ElementTree.fromstring(stderr)
    assert document.tag == root
    return [{field.tag: field.text.strip() for field in each} for each in document.findall(row)]


def test_without_an_iqn_the_targets_are_listed(lab, pool, clone):
    copies = lab.target(clone)

    with lab.untouched():
        answer = created(pool, copies, clone, targetIQN=None)

    assert is_failure(answer, 96)
    rows = listed(answer[3], "iscsi-target-iqns", "TGT")
    assert [row["TargetIQN"] for row in rows] == [copies.iqn, "*"]


def test_without_a_scsi_id_the_luns_are_listed(lab, pool, image):
    luns = [lab.lun(image.clone(f"clone{n}.img")) for n in range(3)]
    copies = lab.target(*luns)

    with lab.untouched():
        answer = created(pool, copies, luns[0], SCSIid=None)

    assert is_failure(answer, 107)
    rows = listed(answer[3], "iscsi-target", "LUN")
    assert [(row["LUNid"], row["SCSIid"]) for row in rows] == [(str(lun.number), lun.scsi_id) for lun in luns]


def test_other_addresses_and_ports(lab, pool, image):
    for number, portal in enumerate(["[::1]:3260", "127.0.0.2:3261"]):
        clone = lab.lun(image.clone(f"clone{number}.img"))
        copies = lab.target(clone, portals=[portal])

        with lab.untouched():
            assert created(pool, copies, clone, port=portal.rpartition(":")[2]) == SUCCESS


def test_the_second_of_two_targets_serves_when_the_first_does_not(lab, pool, clone):
    copies = lab.target(clone)

    with lab.untouched():
        assert created(pool, copies, clone, target="127.0.0.9,127.0.0.1") == SUCCESS


@pytest.mark.parametrize("python", ["py36", "current"])
def test_it_runs_on_old_and_new_pythons_and_under_the_observer(lab, make_pool, clone, python):
    interpreter = lab.python(python)
    pool = make_pool(observer=interpreter)
    copies = lab.target(clone)

    with lab.untouched():
        assert created(pool, copies, clone) == SUCCESS

    (call,) = pool.log.of("sr_create")
    assert interpreter in call.argv[0] and call.stderr == b""


def probed(pool, target, lun):
    with client.connected(pool) as session:
        host = session.xenapi.host.get_all()[0]
        answer = session.xenapi.SR.probe(host, config_of(target, lun), "relvmoiscsi", {})
    (row,) = listed(answer, "SRlist", "SR")
    return row


def test_a_probe_tells_the_state_and_writes_nothing(lab, pool, image, clone):
    copies = lab.target(clone)
    digest = lab.digest(clone)

    with lab.untouched():
        before = probed(pool, copies, clone)
    assert lab.digest(clone) == digest
    assert created(pool, copies, clone) == SUCCESS
    after = probed(pool, copies, clone)

    assert (before["state"], before["UUID"]) == ("clean", image.sr.uuid)
    assert after["state"] == "resignatured"
    assert (after["old_uuid"], after["new_uuid"]) == (image.sr.uuid, after["UUID"])


def test_two_calls_at_once_give_one_resignature(lab, pool, clone):
    copies = lab.target(clone)

    with lab.untouched():
        calls = [Call(lab, pool, copies, clone) for _ in range(2)]
        assert [call.end() for call in calls] == [SUCCESS, SUCCESS]

    seen = lab.probe(copies, clone)
    assert seen.problems == ()
    assert chosen(lab) == {seen.sr_uuid}


def test_nothing_but_create_and_probe_is_there(pool, lab, clone):
    copies = lab.target(clone)
    with client.connected(pool) as session, lab.untouched():
        sr = session.xenapi.SR.introduce("1c3f2ae0-32a5-4bd8-b8a6-27a0ae6f5d10", "n", "", "relvmoiscsi", "", True, {})
        pbd = session.xenapi.PBD.create(
            {"host": pool.master, "SR": sr, "device_config": config_of(copies, clone), "other_config": {}}
        )
        with pytest.raises(XenAPI.Failure) as caught:
            session.xenapi.PBD.plug(pbd)
    assert TEXT_OF_SUCCESS not in str(caught.value.details)
