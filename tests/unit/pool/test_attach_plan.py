# SPDX-License-Identifier: LGPL-2.1-only
"""What a plan promises is what the run then does: the calls that change something are those steps, and no other.

Not compared are the run's own notes in the pool (`pool.other_config`), which are there for the time of a run.
"""

import json

import pytest

from kit.pool_lab import Image, only_reads
from relvmoiscsi.pool import attach, attach_plan, lock, lock_keys, lun_search, luns, records
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.sr_types import OWN_TYPES, STOCK_TYPES

_LABELS = ("set_name_label", "set_name_description", "set_tags", "set_other_config", "add_to_other_config")


class Watch:
    """The steps that clients take, by SCSIid, as the calls that arrive at the pool tell them."""

    def __init__(self, lab):
        self.db, self.found, self.introduced = lab.pool.db, [], {}
        #: names of hosts that were asked to see the LUN: by the plugin, or the stock list, which scans a session there
        self.listed = set()
        lab.pool.api.before = self

    def __call__(self, method, params):
        name, parameters = method.replace("Async.", ""), params[1:]
        is_plugin = name == "host.call_plugin" and parameters[2] == "add_lun"
        if is_plugin or name == "SR.probe" and parameters[2] in STOCK_TYPES:
            self.listed.add(self.db.get("host", parameters[0], "name_label"))
        is_own = name in ("SR.probe", "task.destroy") or name.startswith(("pool.", "VDI.db_"))
        if not (is_plugin or is_own or only_reads(name)):
            step = self._step(name, *parameters)
            self.found += [step] if step not in self.found else []

    def _step(self, name, subject, *more):
        if name == "SR.create":
            assert more[4] in OWN_TYPES
            return more[0]["SCSIid"], attach_plan.RESIGNATURE, ""
        if name == "SR.introduce":
            self.introduced[subject] = more[0]
            return subject, attach_plan.INTRODUCE, more[0]
        if name == "PBD.create":
            return subject["SR"], attach_plan.CREATE_PBD, self.db.get("host", subject["host"], "name_label")
        if name == "PBD.plug":
            row = self.db.record("PBD", subject)
            return row["SR"], attach_plan.PLUG, self.db.get("host", row["host"], "name_label")
        if name == "SR.scan":
            return subject, attach_plan.SCAN, ""
        if name == "SR.set_other_config":
            uuid = self.db.get("SR", subject, "uuid")
            return uuid, attach_plan.INTRODUCE, self.introduced[uuid]
        if name in ("SR.add_to_other_config", "SR.remove_from_other_config"):
            is_found = more[0] == records.ORIGINAL_SR and records.ORIGINAL_SR in self.db.get(
                "SR", subject, "other_config"
            )
            is_found = is_found or (subject, attach_plan.LABEL, "") in self.found
            return subject, attach_plan.LABEL if is_found else attach_plan.MARK, ""
        assert name in [f"VDI.{operation}" for operation in _LABELS], name
        return self.db.get("VDI", subject, "SR"), attach_plan.LABEL, ""

    def steps(self):
        """Each step once, with the SCSIid of its LUN."""
        by_sr = {}
        for ref, sr in self.db.records("SR").items():
            by_sr[ref] = by_sr[sr["uuid"]] = sr["other_config"].get(records.SCSI_ID)
        return sorted((by_sr.get(lun, lun), what, on) for lun, what, on in self.found)


def planned(lab, *scsi_ids, is_run, everything=False):
    """(what is promised, what was done) by one run, which looks first."""
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        chosen = attach.choose(lun_search.find(calls, pool, pool.portals()), scsi_ids, [], everything)
        wanted = attach.AttachRequest(run="a later run", jobs=1)
        watch = Watch(lab)
        rows = attach_plan.plan(calls, pool, chosen, wanted)
        assert watch.found == [] and not watch.listed, "nothing is done for a plan"
        promised = sorted((row.lun.scsi_id, *step) for row in rows for step in row.steps)
        results = attach.carry_out(calls, pool, rows, wanted) if is_run else []
        lab.pool.api.before = None
    assert watch.listed <= {on for _, what, on in promised if what == attach_plan.PLUG}, "before a plug alone"
    return rows, promised, watch.steps(), results


def holds(lab, *scsi_ids, everything=False):
    """The steps of a run, which are those promised."""
    rows, promised, done, results = planned(lab, *scsi_ids, is_run=True, everything=everything)
    assert done == promised
    assert [json.loads(json.dumps(row.facts()))["scsi_id"] for row in rows] == [each.scsi_id for each in results]
    for row, result in zip(rows, results):
        assert (result.status == attach.ALREADY) == (not row.steps and not row.down and row.error is None)
        assert (result.status == attach.FAILED) == (row.error is not None)
        assert getattr(result.error, "told", None) == getattr(row.error, "told", None), "but for the state"
        assert (result.status == attach.PARTIAL) == bool(row.down)
    return done


ALL = sorted(
    [("resignature", ""), ("introduce", "Production changed 2026-11-21"), ("scan", ""), ("label VDIs", "")]
    + [(what, host) for what in ("create PBD", "plug") for host in ("xs1", "xs2", "xs3")]
)


def test_of_a_fresh_clone(lab):
    clone = lab.clone("Production")
    assert [(what, on) for _, what, on in holds(lab, clone)] == ALL
    assert holds(lab, clone) == [], "it is attached, and nothing is to be done"


def test_of_one_that_is_attached_beside_one_that_is_not(lab):
    there, fresh = lab.clone("Production"), lab.clone("Testing")
    lab.attach(there)
    assert {scsi_id for scsi_id, _, _ in holds(lab, everything=True)} == {fresh}


def test_with_a_host_that_is_down(lab):
    """It gets a PBD, and nothing is promised of it but that."""
    clone = lab.clone("Production")
    lab.pool.go_down(lab.pool.hosts[2])
    assert [(what, on) for _, what, on in holds(lab, clone)] == [step for step in ALL if step != ("plug", "xs3")]
    assert holds(lab, clone) == [], "the host is still down: there is nothing to be done, and no scan either"
    rows, _, _, _ = planned(lab, clone, is_run=False)
    down = "host 'xs3' is down: repeat the command when the host is up"
    assert rows[0].text() == f"already attached on all hosts that are up; {down}"

    lab.pool.come_back(lab.pool.hosts[2])
    assert holds(lab, clone) == [(clone, "plug", "xs3"), (clone, "scan", "")]


def test_of_one_whose_run_was_killed_at_a_call_of_each_kind_and_with_a_host_down_since(lab, deaths):
    """The end is the same as that of a run which nobody has disturbed."""
    clone, host, untouched = lab.clone("Production"), lab.pool.hosts[1], Image(lab)
    lab.attach(clone)
    expected, found = lab.summary(), set()
    untouched.put(lab)
    for is_down in deaths(lambda: lab.attach(clone), False, True):
        lab.later()
        if is_down:
            lab.pool.go_down(host)
            holds(lab, clone)
            lab.pool.come_back(host)
        found.add(len(holds(lab, clone)))
        assert holds(lab, clone) == [] and lab.summary() == expected
        assert not {"SR.destroy", "Async.SR.destroy", "VDI.destroy", "Async.VDI.destroy"} & set(lab.pool.api.calls)
    assert 0 in found and len(found) > 3


@pytest.fixture
def copy(lab):
    """(SCSIid, reference of the SR) of an attached copy."""
    clone = lab.clone("Production")
    return clone, lab.sr(lab.attach(clone)[0].sr_uuid)[0]


def without_pbd(lab, ref):
    lab.unplug(ref, lab.pool.hosts[1])
    lab.pool.storage.pbd_destroy("", lab.pool.db.refs("PBD", SR=ref, host=lab.pool.hosts[1])[0])


def no_original(lab, ref):
    config = lab.pool.db.get("SR", ref, "other_config")
    lab.pool.db.set("SR", ref, "other_config", {**config, records.ORIGINAL_SR: ""})


def no_label(lab, ref):
    lab.pool.db.remove_from("VDI", lab.pool.db.refs("VDI", SR=ref)[0], "other_config", records.OLD_VDI)


HAPPENS = {
    "unplugged": lambda lab, ref: lab.unplug(ref),
    "unplugged on a host": lambda lab, ref: lab.unplug(ref, lab.pool.hosts[2]),
    "no PBD on a host": without_pbd,
    "detached": lambda lab, ref: lab.detach(lab.pool.db.get("SR", ref, "uuid")),
    "discarded": lambda lab, ref: lab.discard(lab.pool.db.get("SR", ref, "uuid")),
    **{
        "without " + key: lambda lab, ref, key=key: lab.pool.db.remove_from("SR", ref, "other_config", key)
        for key in ("gc", "indestructible", "relvmoiscsi:run")
    },
    "without a label": no_label,
    "without its original": no_original,
    "original forgotten": lambda lab, _ref: lab.forget_original("Production"),
    "both": lambda lab, ref: (lab.forget_original("Production"), no_original(lab, ref)),
}


@pytest.mark.parametrize(
    ("happens", "steps"),
    [
        ("unplugged", [("plug", "xs1"), ("plug", "xs2"), ("plug", "xs3"), ("scan", "")]),
        ("unplugged on a host", [("plug", "xs3"), ("scan", "")]),
        ("no PBD on a host", [("create PBD", "xs2"), ("plug", "xs2"), ("scan", "")]),
        ("detached", [step for step in ALL if step[0] in ("create PBD", "plug", "scan")]),
        ("discarded", [step for step in ALL if step[0] != "resignature"]),
        ("without gc", [("mark", "")]),
        ("without indestructible", [("mark", "")]),
        ("without relvmoiscsi:run", [("mark", "")]),
        ("without a label", [("label VDIs", "")]),
        ("without its original", [("label VDIs", "")]),
        ("original forgotten", []),
        ("both", []),
    ],
)
def test_of_a_copy_that_is_not_whole_any_more(lab, copy, happens, steps):
    clone, ref = copy
    HAPPENS[happens](lab, ref)
    assert holds(lab, clone) == [(clone, *step) for step in steps]
    assert holds(lab, clone) == []


def test_of_one_that_the_array_has_overwritten_and_one_beside_it(lab, copy):
    clone, ref = copy
    lab.unplug(ref)
    lab.overwrite(clone)
    fresh = lab.clone("Testing")
    rows, _, _, _ = planned(lab, clone, fresh, is_run=False)
    assert rows[0].text().startswith("would be refused: ") and "overwritten" in rows[0].facts()["problem"]
    assert rows[1].facts()["problem"] == str(rows[1].unplugged) and clone in rows[1].text()
    assert holds(lab, clone, fresh) == [(fresh, "introduce", "Testing changed 2026-11-21"), (fresh, "resignature", "")]
    rows, promised, _, _ = planned(lab, clone, fresh, is_run=False)
    assert promised == [] and rows[1].text() == str(rows[1].unplugged), "nothing is left to do beside that clone"
    assert holds(lab, clone, fresh) == []


def test_a_plan_says_each_step_behind_would_be():
    lun = luns.PoolLun("a LUN", luns.CLONE, records.ProbePortal("192.0.2.9", "iqn.a"), is_ours=True)
    host = records.HostPlan("h", "xs1")
    row = attach_plan.LunPlan(lun, "copy", resignatures=True, hosts=(host,), scans=True, labels=True)
    marked = attach_plan.LunPlan(lun, "copy", sr="an SR", marks={"a key": "a text"})
    every = {what for each in (row, marked) for what, _ in each.steps}
    assert every == set(attach_plan._PLANNED), "each kind of step has words"
    for each in (row, marked):
        text = each.text()
        assert text.startswith("would be ") and text.count("; ") == len(each.steps) - 1


def test_copies_of_one_sr_have_names_of_their_own_those_of_the_plan(lab):
    for _ in range(3):
        lab.clone("Production")
    names = [on for _, what, on in holds(lab, everything=True) if what == "introduce"]
    assert names == [
        "Production changed 2026-11-21",
        "Production changed 2026-11-21 (2)",
        "Production changed 2026-11-21 (3)",
    ]


def test_copies_of_one_time_have_the_same_names_in_whatever_order_they_are_attached_together(lab):
    """The numbers were given in the order of the words, and also to copies that have a name already."""
    clones, name = sorted(lab.clone("Production") for _ in range(3)), "Production changed 2026-11-21"

    def named(*scsi_ids):
        return {scsi_id: on for scsi_id, what, on in holds(lab, *scsi_ids) if what == "introduce"}

    for chosen in (clones[::-1], clones):
        assert named(*chosen) == dict(zip(clones, [name, f"{name} (2)", f"{name} (3)"]))
        for _, sr in list(lab.pool.db.records("SR").items()):
            if records.is_copy(sr):
                lab.discard(sr["uuid"])
    assert named(clones[2]) == {clones[2]: name}
    timed = f"{name} 00:11 UTC"
    assert named(*clones[::-1]) == dict(zip(clones, [timed, f"{timed} (2)"])), "one has a name"


def test_an_sr_of_the_same_uuid_that_is_another_one_is_refused_in_the_plan(lab, copy):
    clone, ref = copy
    lab.detach(lab.pool.db.get("SR", ref, "uuid"))
    lab.pool.db.set("SR", ref, "type", "lvmohba")
    rows, promised, _, _ = planned(lab, clone, is_run=False)
    assert promised == [] and "and on another LUN than" in str(rows[0].refusal)
    assert holds(lab, clone) == []


def test_the_clones_that_hosts_see_together_are_listed_once_for_all_their_plans():
    """A target may list thousands of clones."""
    host = (records.HostPlan("h", "xs1"),)
    found = [
        luns.PoolLun(f"{iqn} {number}", luns.CLONE, records.ProbePortal("192.0.2.9", iqn), is_ours=True)
        for number in range(3)
        for iqn in ("iqn.a", "iqn.b")
    ]
    rows = attach_plan.with_neighbours([attach_plan.LunPlan(lun, "", hosts=host) for lun in found], found)
    for row in rows:
        assert list(row.neighbours) == [f"{row.lun.portal.iqn} {number}" for number in range(3)]
    assert len({id(row.neighbours) for row in rows}) == 2


@pytest.mark.parametrize("is_attached", [True, False])
def test_a_plan_refuses_a_lun_that_another_client_has_locked_also_without_a_step(lab, is_attached):
    """The caller had to ask for the locks: one caller did not, and told of a copy that was being discarded."""
    scsi_id = lab.clone("Production")
    if is_attached:
        lab.attach(scsi_id)
    with connect(lab.where()) as other, lock.held(other, [lock_keys.name_for(scsi_id)], "discard"):
        (row,), *_ = planned(lab, scsi_id, is_run=False)
        assert "Another client has locked" in str(row.refusal) and holds(lab, scsi_id) == []
