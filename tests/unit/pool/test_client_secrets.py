# SPDX-License-Identifier: LGPL-2.1-only
"""The CHAP password: in one Secret of ours, of which nothing is left; Secrets of others are let alone."""

import calendar

import pytest

from kit.pool.api import GoneAway
from kit.pool_lab import TARGET, sr_disk
from relvmoiscsi.pool import attach, luns, records, secrets
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.records import Portal

CHAP = ("alice", "a secret word")
NOON = calendar.timegm((2026, 11, 22, 12, 0, 0))


@pytest.fixture
def guarded(lab, world):
    """A clone behind a target that wants CHAP."""
    scsi_id = world.add("10.0.0.6", "iqn.2026-01.test:guarded", sr_disk("guarded"), chap=CHAP)
    world.attach_original(lab.pool, scsi_id, "Guarded")
    return world.clone(scsi_id)


def unnamed(lab):
    """The Secrets that no PBD names."""
    named = {value for pbd in lab.pool.db.records("PBD").values() for value in pbd["device_config"].values()}
    return {ref for ref, secret in lab.pool.db.records("secret").items() if secret["uuid"] not in named}


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


def test_an_attach_leaves_no_copy_of_the_password(lab, guarded):
    """xapi copies what ends in password_secret for each host, and takes our SR.create for a failure."""
    before = unnamed(lab)
    (done,) = lab.attach(guarded)

    assert done.status == "attached" and unnamed(lab) == before
    _, sr = lab.sr(done.sr_uuid)
    for pbd in sr["PBDs"]:
        assert lab.pool.db.get("PBD", pbd, "device_config")["chappassword_secret"]


def test_a_target_that_proves_itself_to_the_original_does_so_to_the_copy(lab, guarded):
    db = lab.pool.db
    secret = db.get("secret", db.create("secret", value="their word"), "uuid")
    mutual = {"incoming_chapuser": "array", "incoming_chappassword_secret": secret}
    for pbd, record in db.records("PBD").items():
        if record["device_config"]["target"] == "10.0.0.6":
            db.set("PBD", pbd, "device_config", {**record["device_config"], **mutual})
    before = unnamed(lab)
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        found = luns.find(calls, pool, [one for one in pool.portals() if one.target == "10.0.0.6"], 1)
        (done,) = attach.attach(
            calls, pool, [lun for lun in found if lun.kind == "clone"], attach.AttachRequest(run="a run")
        )

    for ref in lab.sr(done.sr_uuid)[1]["PBDs"]:
        config = db.get("PBD", ref, "device_config")
        assert config["incoming_chapuser"] == "array"
        assert db.get("secret", db.by_uuid("secret", config["incoming_chappassword_secret"]), "value") == "their word"
    assert unnamed(lab) == before


def test_what_is_renamed_for_our_own_types():
    config = {"target": "a", "chappassword_secret": "b", "incoming_chappassword_secret": "c", "chapuser": "d"}

    assert secrets.uncopied(config) == {"target": "a", "chapsecret": "b", "incoming_chapsecret": "c", "chapuser": "d"}


def test_the_secrets_of_killed_runs_are_found_by_their_mark_and_no_others(lab, guarded):
    """The password is that of others as well: of another run at work, of the pool's proxy, of an xe command."""
    db, run = lab.pool.db, records.RUN
    yesterday = db.create("secret", value=CHAP[1], other_config={run: "20261121T115959Z one"})
    db.create("secret", value=CHAP[1], other_config={run: "20261121T120100Z another, perhaps at work"})
    db.create("secret", value=CHAP[1], other_config={run: "nightly"})
    db.create("secret", value=CHAP[1])
    before = db.refs("secret")
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        asked = len(lab.pool.api.calls)
        found = secrets.left_behind(calls, pool, NOON)
        assert found == [yesterday]
        assert secrets.clean(calls, [*found, *found]) == 2
        assert not any("get_value" in call or "record" in call for call in lab.pool.api.calls[asked:])

    assert set(before) - set(db.refs("secret")) == {yesterday}


def test_a_run_is_over_when_its_process_has_ended():
    """A process of this machine, by kernel, namespace and id; of other machines only time can tell."""
    kernel, space, pid = secrets._this_process()
    of = "20261122T115959Z 1b671a64 {} {} {}".format
    gone = 2**22 + 1

    assert not secrets.is_over(of(kernel, space, pid), NOON)
    assert secrets.is_over(of(kernel, space, gone), NOON)
    assert not secrets.is_over(of(kernel, space, 10**30), NOON)
    assert not secrets.is_over(of("another", space, gone), NOON)
    assert not secrets.is_over(of(kernel, "pid:[1]", gone), NOON)
    assert secrets.is_over(of("another", space, pid), NOON + 86400)
    for mark in ("", "nightly", "20261122T115959Z", "20261122T115959Z one", of(kernel, space, "x")):
        assert not secrets.is_over(mark, NOON)


def test_where_the_machine_does_not_tell_of_processes_time_does(monkeypatch):
    monkeypatch.setattr(secrets, "_KERNEL", "/nowhere")

    assert secrets._this_process() == []
    assert not secrets.is_over("20261122T115959Z one", NOON)
    assert secrets.is_over("20261122T115959Z one", NOON + 86400)


def test_a_secret_that_a_pbd_names_is_none_that_was_left(lab):
    db = lab.pool.db
    secret = db.create("secret", value=CHAP[1], other_config={records.RUN: "20260101T000000Z one"})
    pbd = db.refs("PBD")[0]
    config = {**db.get("PBD", pbd, "device_config"), "chappassword_secret": db.get("secret", secret, "uuid")}
    db.set("PBD", pbd, "device_config", config)

    with connect(lab.where()) as calls:
        assert secrets.left_behind(calls, records.read(calls), NOON) == []


def test_an_answer_that_is_lost_makes_no_second_secret(lab):
    """The connection ends after secret.create; xmlrpc.client makes the call once more."""
    lost = []

    real = lab.pool.api.call

    def lose(method, *words):
        answer = real(method, *words)
        if method == "secret.create" and not lost:
            lost.append(1)
            raise GoneAway()
        return answer

    other = lab.pool.db.create("secret", value=CHAP[1])
    lab.pool.api.call = lose
    with connect(lab.where()) as calls, secrets.chap(calls, [Portal(TARGET)], *CHAP):
        assert lab.pool.api.calls.count("secret.create") == 2
        assert len(lab.pool.db.refs("secret")) == 2

    assert lab.pool.db.refs("secret") == [other]


def test_a_secret_that_has_to_stay_is_said(lab):
    told = []
    with connect(lab.where()) as calls:
        with secrets.chap(calls, [Portal(TARGET)], *CHAP, told.append):
            lab.pool.api.before = gone_at("secret.destroy")
        lab.pool.api.before = None

    (text,) = told
    assert "could not be destroyed" in text and CHAP[1] not in text


def gone_at(name):
    def before(method, params):
        if method == name:
            raise GoneAway()

    return before


def test_an_interrupted_call_is_no_reason_to_leave_the_secret(lab):
    """Ctrl-C while an answer is awaited: the connection is in the middle of a call, and another one is needed."""
    before = lab.pool.db.refs("secret")

    def interrupted(*_, **__):
        del calls._proxy("transport").single_request  # of this call alone
        raise KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt), connect(lab.where()) as calls, secrets.chap(calls, [Portal(TARGET)], *CHAP):
        calls._proxy("transport").single_request = interrupted
        calls.call("SR.get_all")

    assert lab.pool.db.refs("secret") == before and lab.pool.api.calls[-1] == "session.logout"


def test_the_password_is_in_no_call_but_the_one_that_makes_the_secret(lab, guarded):
    seen = []
    lab.pool.api.before = lambda method, params: seen.append((method, repr(params)))
    with connect(lab.where()) as calls, secrets.chap(calls, [Portal("10.0.0.6")], *CHAP) as portals:
        luns.find(calls, records.read(calls), portals, 1)
    lab.pool.api.before = None

    assert [method for method, text in seen if CHAP[1] in text] == ["secret.create"]
