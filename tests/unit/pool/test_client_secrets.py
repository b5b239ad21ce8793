# SPDX-License-Identifier: LGPL-2.1-only
"""The CHAP password: in one Secret of ours, of which nothing is left, whenever the client dies; Secrets of others are
let alone. Secrets that belong to nothing are found after CloudStack's calls.
"""

import calendar
import http.client
import time

import pytest

from kit.examples import of_each_kind
from kit.pool import datamodel
from kit.pool.api import GoneAway
from kit.pool.errors import XenError
from kit.pool_lab import TARGET, Image, only_reads, sr_disk
from relvmoiscsi.errors import Refused
from relvmoiscsi.pool import attach, client_process, lun_search, orphans, records, secrets
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.connection import Where, connect
from relvmoiscsi.pool.records import ProbePortal

CHAP = USER, WORD = "alice", "a secret word"
GUARDED, IQN = "10.0.0.6", "iqn.2026-01.test:guarded"
NOON = calendar.timegm((2026, 11, 22, 12, 0, 0))
DAY = 86400


@pytest.fixture
def clone(lab, world):
    """A clone behind a target that wants CHAP, beside its original in use."""
    scsi_id = world.add(GUARDED, IQN, sr_disk("guarded"), chap=CHAP)
    world.attach_original(lab.pool, scsi_id, "Guarded")
    found(lab, remove=True)
    return world.clone(scsi_id)


@pytest.fixture
def calls(lab):
    with connect(lab.where()) as calls:
        yield calls


def values(lab):
    """Of the Secrets that no PBD names."""
    named = {value for pbd in lab.pool.db.records("PBD").values() for value in pbd["device_config"].values()}
    return sorted(row["value"] for row in lab.pool.db.records("secret").values() if row["uuid"] not in named)


# --- ours


def test_one_secret_for_all_calls_which_is_gone_at_the_end_and_the_password_is_in_no_other(lab, clone):
    before, seen = lab.pool.db.refs("secret"), []
    lab.pool.api.before = lambda method, params: seen.append((method, repr(params)))
    with connect(lab.where()) as calls, secrets.chap(calls, [ProbePortal(GUARDED)], *CHAP) as portals:
        assert len(lab.pool.db.refs("secret")) == len(before) + 1
        assert clone in [lun.scsi_id for lun in lun_search.find(calls, records.read(calls), portals, 1)]
    assert lab.pool.db.refs("secret") == before
    assert [method for method, text in seen if WORD in text] == ["secret.create"]


def test_without_a_user_nothing_is_made(lab, calls):
    with secrets.chap(calls, [ProbePortal(TARGET)], "", "") as portals:
        assert portals == [ProbePortal(TARGET)]
    assert "secret.create" not in lab.pool.api.calls


def test_an_attach_leaves_no_copy_of_the_password_and_both_sides_prove_themselves_to_the_copy(lab, clone):
    """xapi copies what ends in password_secret for each host, and takes our SR.create for a failure."""
    db = lab.pool.db
    secret = db.get("secret", db.create("secret", value="their word"), "uuid")
    mutual = {"incoming_chapuser": "array", "incoming_chappassword_secret": secret}
    for pbd, record in db.records("PBD").items():
        if record["device_config"]["target"] == GUARDED:
            db.set("PBD", pbd, "device_config", {**record["device_config"], **mutual})
    before = values(lab)
    (done,) = lab.attach(clone)
    assert done.status == "attached" and values(lab) == before
    for ref in lab.sr(done.sr_uuid)[1]["PBDs"]:
        config = db.get("PBD", ref, "device_config")
        word, theirs = config["chappassword_secret"], config["incoming_chappassword_secret"]
        assert [db.get("secret", db.by_uuid("secret", uuid), "value") for uuid in (word, theirs)] == [
            WORD,
            "their word",
        ]
        assert config["incoming_chapuser"] == "array"


def attach_all(lab, now):
    """As `attach --all --clean-secrets` with a password: what was done."""
    with connect(lab.where()) as calls:
        secrets.destroy(calls, secrets.stale(calls, records.read(calls), now))
    with connect(lab.where()) as calls, secrets.chap(calls, [ProbePortal(GUARDED)], *CHAP) as portals:
        pool = records.read(calls)
        found = lun_search.find(calls, pool, portals, 1)
        chosen = attach.choose(found, [], [], everything=True)
        return attach.attach(calls, pool, chosen, attach.AttachRequest(run="a run"), found=found)


def test_killed_at_a_call_of_each_kind_of_attach_no_secret_is_left_and_nothing_is_doubled(lab, clone, deaths):
    before, ends = values(lab), set()
    for _ in deaths(lambda: attach_all(lab, time.time())):
        lab.later()
        (done,) = attach_all(lab, time.time() + 2 * DAY)
        assert done.scsi_id == clone and done.status in (attach.DONE, attach.ALREADY)
        ends.add(repr((lab.summary(), [len(lab.pool.db.refs(table)) for table in ("SR", "PBD")])))
        assert values(lab) == before and not lab.pool.db.get("pool", lab.pool.pool, "other_config")
    assert len(ends) == 1
    assert not {"SR.destroy", "Async.SR.destroy", "VDI.destroy", "Async.VDI.destroy"} & set(lab.pool.api.calls)


def test_an_answer_to_a_call_of_each_kind_may_be_lost(lab, clone):
    """The pool has done it, and the connection ends: the client makes the call once more. No second Secret stays."""
    real, seen, lost, untouched, before = lab.pool.api.call, [], None, Image(lab), values(lab)

    def lose(method, *words):
        answer = real(method, *words)
        seen.append(method)
        if len(seen) == lost:
            raise GoneAway()
        return answer

    def attached():
        seen.clear()
        untouched.put(lab)
        (done,) = attach_all(lab, time.time())
        assert (done.status, done.error, len(done.vdis), values(lab)) == (attach.DONE, None, 4, before), lost
        return list(seen)

    lab.pool.api.call = lose
    kinds = ["a call that reads" if only_reads(method) else method for method in attached()]
    assert "secret.create" in kinds
    for lost in of_each_kind(kinds, 40, "lost"):
        assert len(attached()) >= lost


def test_a_secret_that_has_to_stay_is_said(lab, calls):
    told = []
    with lab.cut("secret.destroy"), secrets.chap(calls, [ProbePortal(TARGET)], *CHAP, told.append):
        pass
    (text,) = told
    assert "could not be destroyed" in text and WORD not in text


def test_an_interrupted_call_is_no_reason_to_leave_the_secret(lab, monkeypatch):
    """Ctrl-C while an answer is awaited."""
    before = lab.pool.db.refs("secret")

    real = http.client.HTTPConnection.getresponse

    def interrupted(connection):
        http.client.HTTPConnection.getresponse = real  # of this call alone
        raise KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt), connect(lab.where()) as calls, secrets.chap(
        calls, [ProbePortal(TARGET)], *CHAP
    ):
        monkeypatch.setattr(http.client.HTTPConnection, "getresponse", interrupted)
        calls.call("SR.get_all")
    assert lab.pool.db.refs("secret") == before and lab.pool.api.calls[-1] == "session.logout"


# --- of killed runs


def test_the_secrets_of_killed_runs_are_found_by_their_mark_and_no_others(lab, calls):
    """The password is that of others as well: of another run at work, of the pool's proxy, of an xe command. One that a
    PBD names is none that was left.
    """
    db, pbd = lab.pool.db, lab.pool.db.refs("PBD")[0]
    marks = ["20261121T115959Z one", "20261121T120100Z another, perhaps at work", "nightly", "20260101T000000Z one"]
    yesterday, _, _, named = [db.create("secret", value=WORD, other_config={records.RUN: mark}) for mark in marks]
    db.create("secret", value=WORD)
    config = {**db.get("PBD", pbd, "device_config"), "chappassword_secret": db.get("secret", named, "uuid")}
    db.set("PBD", pbd, "device_config", config)
    before, pool, asked = db.refs("secret"), records.read(calls), len(lab.pool.api.calls)
    found = secrets.stale(calls, pool, NOON)
    assert found == [yesterday] and secrets.destroy(calls, [*found, *found]) == 1
    assert not any("get_value" in call or "record" in call for call in lab.pool.api.calls[asked:])
    assert set(before) - set(db.refs("secret")) == {yesterday}


def test_a_run_is_over_when_its_process_has_ended(monkeypatch):
    """A process of this machine, by kernel, namespace and id; of other machines only time can tell."""
    kernel, space, pid = client_process.this_process()
    of = "20261122T115959Z 1b671a64 {} {} {}".format
    gone = 2**22 + 1
    assert secrets.is_over(of(kernel, space, gone), NOON)
    assert secrets.is_over(of(kernel, space, 10**10), NOON), "no process has so large an id"
    assert secrets.is_over(of("another", space, pid), NOON + DAY)
    unknown = [of(kernel, space, each) for each in (pid, 10**30, "x", "\u00b2", "\u0661")]
    unknown += [of("another", space, gone), of(kernel, "pid:[1]", gone)]
    for mark in [*unknown, "", "nightly", "20261122T115959Z", "20261122T115959Z one"]:
        assert not secrets.is_over(mark, NOON), mark
    monkeypatch.setattr(client_process, "_KERNEL", "/nowhere")  # then the machine does not tell of processes
    assert client_process.this_process() == [] and not secrets.is_over("20261122T115959Z one", NOON)
    assert secrets.is_over("20261122T115959Z one", NOON + DAY)


# --- of nobody


def found(lab, passwords=(), remove=False):
    with connect(lab.where()) as calls:
        there = orphans.find(calls, records.read(calls), passwords)
        if remove:
            assert secrets.destroy(calls, there) == len(there)
        return set(there)


def resignatured_by_cloudstack(lab, clone):
    """Its calls with a password in clear, but for the plugs: docs/cloudstack.rst."""
    storage, host = lab.pool.storage, lab.pool.master
    where = {"target": GUARDED, "targetIQN": IQN, "chapuser": USER, "chappassword": WORD}
    config = dict(where, SCSIid=clone)
    for call in (
        lambda: storage.sr_create("", host, where, "0", "n", "", "lvmoiscsi", "user", True, {}),
        lambda: storage.sr_probe("", host, config, "relvmoiscsi"),
        lambda: storage.sr_create("", host, config, "0", "n", "", "relvmoiscsi", "user", True, {}),
        lambda: storage.sr_probe("", host, config, "relvmoiscsi"),
    ):
        try:
            call()
        except XenError:
            pass
    sr = storage.sr_introduce("", lab.world.sr_uuid(clone), "volume", "", "lvmoiscsi", "user", True)
    for each in lab.pool.hosts:
        storage.pbd_create("", {"host": each, "SR": sr, "device_config": config})


def test_what_a_resignature_by_cloudstack_leaves_is_counted_and_removed(lab, clone):
    before, hosts = set(lab.pool.db.refs("secret")), len(lab.pool.hosts)
    resignatured_by_cloudstack(lab, clone)
    after = set(lab.pool.db.refs("secret"))
    left = found(lab, remove=True)

    assert len(left) == 3 * hosts + 4, "docs/cloudstack.rst has this number"
    assert set(lab.pool.db.refs("secret")) == after - left
    assert len(set(lab.pool.db.refs("secret")) - before) == hosts, "those that the PBDs name"
    for pbd in lab.pool.db.records("PBD").values():
        if "chapuser" in pbd["device_config"]:
            assert lab.pool.db.by_uuid("secret", pbd["device_config"]["chappassword_secret"])


def test_a_password_that_no_pbd_has_any_more_is_given(lab):
    left = lab.pool.db.create("secret", value="of a volume that is gone")
    assert found(lab) == set() and found(lab, ["of a volume that is gone"]) == {left}


@pytest.mark.parametrize(
    ("table", "field", "value"),
    [
        ("SR", "other_config", "the Secret {UUID} is mine"),
        ("pool", "other_config", "{ref}"),
        ("VM", "name_description", "see {uuid}."),
    ],
)
def test_what_any_record_names_by_uuid_or_reference_is_left_alone(lab, clone, table, field, value):
    db = lab.pool.db
    ref = db.create("secret", value=WORD)
    assert found(lab) == {ref}
    uuid = db.get("secret", ref, "uuid")
    text = value.format(uuid=uuid, UUID=uuid.upper(), ref=ref)
    record = db.create("VM", name_label="a VM") if table == "VM" else db.refs(table)[0]
    db.set(table, record, field, {"key": text} if field == "other_config" else text)
    assert found(lab) == set()


def test_the_state_of_a_tpm_and_what_has_an_other_config_is_never_one(lab, clone):
    """XenAPI does not show which Secret a VTPM has."""
    for value, config in (("eyJ0cG0iOiAxfQ==", {}), ("", {}), (WORD, {"used-by": "a script"})):
        lab.pool.db.create("secret", value=value, other_config=config)
    assert found(lab, [""]) == set()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("wlb_url", "wlb.example:8012", "Workload Balancing"), ("repository_proxy_url", "http://proxy", "a proxy")],
)
def test_a_pool_with_a_password_in_a_secret_that_is_not_shown_is_refused(calls, field, value, said, monkeypatch):
    pool, real = records.read(calls), calls.records

    def told(kind):
        there = real(kind)
        return {ref: {**record, field: value} for ref, record in there.items()} if kind == "pool" else there

    monkeypatch.setattr(calls, "records", told)
    with pytest.raises(Refused, match=f"The pool uses {said}.*Nothing was removed"):
        orphans.find(calls, pool)


def test_every_class_of_xapi_is_read():
    known = {name.partition(".")[0] for name in datamodel.CALLS if name.endswith(".get_all_records")}
    assert set(orphans.CLASSES) == known - {"secret", "role"}


@pytest.mark.parametrize("error, said", [
    (("INTERNAL_ERROR", "it is broken"), "it is broken"),
    (("RBAC_PERMISSION_DENIED", "vdi.get_all_records", "No permission"), "may not call VDI.get_all_records"),
])  # fmt: skip
def test_where_a_class_cannot_be_read_nothing_is_found(lab, clone, error, said):
    """A record that names it may be among those."""
    lab.pool.db.create("secret", value=WORD)
    with lab.cut("VDI.get_all_records", error=XenError(*error)), pytest.raises(PoolFailure, match=said):
        found(lab)


@pytest.mark.parametrize("error", [
    ("MESSAGE_METHOD_UNKNOWN", "Rate_limit.get_all_records"),
    ("MESSAGE_REMOVED",),
    ("RBAC_PERMISSION_DENIED", "host.call_extension", "No permission in user session"),
], ids=lambda error: error[0])  # fmt: skip
def test_a_class_that_this_release_of_xapi_does_not_have_names_no_secret(lab, clone, error):
    """For anybody but a pool-admin an unknown call is one that he may not make: xapi takes it for an extension."""
    ref = lab.pool.db.create("secret", value=WORD)
    with lab.cut("Rate_limit.get_all_records", error=XenError(*error)):
        assert found(lab) == {ref}


@pytest.mark.parametrize("role", ["pool-operator", "pool-admin"])
def test_whoever_may_read_secrets_finds_them_on_every_release(lab, clone, role):
    lab.pool.api.users["bob"] = ("a word", role)
    ref = lab.pool.db.create("secret", value=WORD)
    with connect(Where(lab.pool.url, "bob", "a word")) as calls:
        assert set(orphans.find(calls, records.read(calls))) == {ref}


def test_one_that_is_gone_meanwhile_is_not_counted(lab, clone, calls):
    ref = lab.pool.db.create("secret", value=WORD)
    there = orphans.find(calls, records.read(calls))
    lab.pool.db.destroy("secret", ref)
    assert secrets.destroy(calls, there) == 0
