# SPDX-License-Identifier: LGPL-2.1-only
"""Secrets with CHAP passwords that belong to nothing are found after CloudStack's calls; no other Secret ever is."""

import pytest

from kit.pool import datamodel
from kit.pool.errors import XenError
from kit.pool_lab import sr_disk
from relvmoiscsi.errors import Refused
from relvmoiscsi.pool import orphans, records
from relvmoiscsi.pool.connection import connect

USER, WORD = "alice", "a secret word"
TARGET, IQN = "10.0.0.6", "iqn.2026-01.test:guarded"
WHERE = {"target": TARGET, "targetIQN": IQN, "chapuser": USER, "chappassword": WORD}


@pytest.fixture
def clone(lab, world):
    """A clone behind a target that wants CHAP, beside its original in use."""
    scsi_id = world.add(TARGET, IQN, sr_disk("guarded"), chap=(USER, WORD))
    world.attach_original(lab.pool, scsi_id, "Guarded")
    found(lab, remove=True)
    return world.clone(scsi_id)


def found(lab, passwords=(), remove=False):
    with connect(lab.where()) as calls:
        there = orphans.find(calls, records.read(calls), passwords)
        if remove:
            assert orphans.remove(calls, there) == len(there)
        return set(there)


def resignatured_by_cloudstack(lab, world, clone):
    """Its calls with a password in clear, but for the plugs: docs/cloudstack.rst."""
    storage, db = lab.pool.storage, lab.pool.db
    host, config = lab.pool.master, dict(WHERE, SCSIid=clone)
    for call in (
        lambda: storage.sr_create("", host, WHERE, "0", "n", "", "lvmoiscsi", "user", True, {}),
        lambda: storage.sr_probe("", host, config, "relvmoiscsi"),
        lambda: storage.sr_create("", host, config, "0", "n", "", "relvmoiscsi", "user", True, {}),
        lambda: storage.sr_probe("", host, config, "relvmoiscsi"),
    ):
        try:
            call()
        except XenError:
            pass
    sr = storage.sr_introduce("", world.sr_uuid(clone), "volume", "", "lvmoiscsi", "user", True)
    for each in lab.pool.hosts:
        storage.pbd_create("", {"host": each, "SR": sr, "device_config": config})
    return db.refs("secret")


def test_what_a_resignature_by_cloudstack_leaves_is_counted_and_removed(lab, world, clone):
    before = set(lab.pool.db.refs("secret"))
    after = resignatured_by_cloudstack(lab, world, clone)
    hosts = len(lab.pool.hosts)

    left = found(lab, remove=True)

    assert len(left) == 3 * hosts + 4, "docs/cloudstack.rst has this number"
    assert set(lab.pool.db.refs("secret")) == set(after) - left
    assert len(set(lab.pool.db.refs("secret")) - before) == hosts, "those that the PBDs name"
    for pbd in lab.pool.db.records("PBD").values():
        if "chapuser" in pbd["device_config"]:
            assert lab.pool.db.by_uuid("secret", pbd["device_config"]["chappassword_secret"])


def test_a_password_that_no_pbd_has_any_more_is_given(lab):
    left = lab.pool.db.create("secret", value="of a volume that is gone")

    assert found(lab) == set()
    assert found(lab, ["of a volume that is gone"]) == {left}


@pytest.mark.parametrize(
    ("table", "field", "value"),
    [
        ("VDI", "sm_config", {"key": "{uuid}"}),
        ("SR", "other_config", {"xo:note": "the Secret {UUID} is mine"}),
        ("pool", "other_config", {"proxy": "{ref}"}),
        ("VM", "name_description", "see {uuid}."),
    ],
)
def test_what_any_record_names_by_uuid_or_reference_is_left_alone(lab, clone, table, field, value):
    db = lab.pool.db
    ref = db.create("secret", value=WORD)
    assert found(lab) == {ref}
    uuid = db.get("secret", ref, "uuid")
    names = {"uuid": uuid, "UUID": uuid.upper(), "ref": ref}
    text = (
        {key: each.format(**names) for key, each in value.items()} if isinstance(value, dict) else value.format(**names)
    )
    record = db.create("VM", name_label="a VM") if table == "VM" else db.refs(table)[0]
    db.set(table, record, field, text)

    assert found(lab) == set()


def test_the_state_of_a_tpm_is_never_one(lab, clone):
    """XenAPI does not show which Secret a VTPM has."""
    lab.pool.db.create("secret", value="eyJ0cG0iOiAxfQ==")
    lab.pool.db.create("secret", value="")

    assert found(lab, [""]) == set()


def test_a_secret_with_an_other_config_is_somebodys(lab, clone):
    lab.pool.db.create("secret", value=WORD, other_config={"used-by": "a script"})

    assert found(lab) == set()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("wlb_url", "wlb.example:8012", "Workload Balancing"), ("repository_proxy_url", "http://proxy", "a proxy")],
)
def test_a_pool_with_a_password_in_a_secret_that_is_not_shown_is_refused(lab, clone, field, value, said):
    class Told:
        def __init__(self, calls):
            self._calls, self.call = calls, calls.call

        def records(self, kind):
            there = self._calls.records(kind)
            return {ref: {**record, field: value} for ref, record in there.items()} if kind == "pool" else there

    with connect(lab.where()) as calls, pytest.raises(Refused, match=f"The pool uses {said}.*Nothing was removed"):
        orphans.find(Told(calls), records.read(calls))


def test_where_a_class_cannot_be_read_nothing_is_found(lab, clone):
    """A record that names it may be among those."""
    lab.pool.db.create("secret", value=WORD)

    def before(method, _params):
        if method == "VDI.get_all_records":
            raise XenError("INTERNAL_ERROR", "it is broken")

    lab.pool.api.before = before
    with pytest.raises(Exception, match="it is broken"):
        found(lab)


def test_every_class_of_xapi_is_read():
    known = {name.partition(".")[0] for name in datamodel.CALLS if name.endswith(".get_all_records")}
    assert set(orphans.CLASSES) == known - {"secret", "role"}


def test_a_class_that_an_older_xapi_does_not_have_is_passed_over(lab, clone):
    ref = lab.pool.db.create("secret", value=WORD)

    def before(method, _params):
        if method in ("Rate_limit.get_all_records", "Driver_variant.get_all_records"):
            raise XenError("MESSAGE_METHOD_UNKNOWN", method)

    lab.pool.api.before = before
    assert found(lab) == {ref}


def test_one_that_is_gone_meanwhile_is_not_counted(lab, clone):
    ref = lab.pool.db.create("secret", value=WORD)
    with connect(lab.where()) as calls:
        there = orphans.find(calls, records.read(calls))
        lab.pool.db.destroy("secret", ref)
        assert orphans.remove(calls, there) == 0
