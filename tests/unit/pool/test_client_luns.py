# SPDX-License-Identifier: LGPL-2.1-only
"""Each LUN is named for what it is, and nothing is written. What may be somebody's original, or attached elsewhere, is
no clone until somebody says so; and nothing is left out without a word.
"""

import itertools
import json
import uuid
from types import SimpleNamespace

import pytest

from kit import cuts
from kit.builder import SMALL_BAT, build_sr, vhd
from kit.cuts import cut_before, read_mark
from kit.forged_record import forge_record, replaced_ids, without_record
from kit.lun_world import FABRIC, World
from kit.pool_lab import IQN, TARGET, Lab, sr_disk
from kit.sparse import SparseDisk
from kit.sr_states import INTRODUCED, SAME, STATES, UNKNOWN, name_of
from relvmoiscsi.engine import IN_PROGRESS
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.pool import attach, lun_answers, lun_search, luns, records
from relvmoiscsi.pool.attach import ALREADY, DONE, FAILED
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.luns import PoolLun
from relvmoiscsi.pool.records import ProbePortal


@pytest.fixture
def theirs(world):
    """The SCSIid of an SR of another pool."""
    return world.add(TARGET, IQN, sr_disk("their production"))


def test_each_lun_is_named_for_what_it_is(lab, world):
    production, testing = (lab.originals[name][0] for name in ("Production", "Testing"))
    clone, attached = lab.clone("Production"), lab.clone("Testing")
    (done,) = lab.attach(attached)
    copied = world.clone(attached)
    stranger = world.add(TARGET, IQN, sr_disk("elsewhere"))
    empty = world.add(TARGET, IQN, SparseDisk(1 << 24))
    away = lab.clone("Production")
    lab.fail(away, "sr_probe")
    before = {lun.scsi_id: lun.disk.peek(0, lun.disk.size_bytes) for lun in world.luns}
    world.log.clear()

    found = {lun.scsi_id: lun for lun in lab.look()}
    assert {scsi_id: (lun.kind, lun.name) for scsi_id, lun in found.items()} == {
        production: ("original", "Production"),
        testing: ("original", "Testing"),
        clone: ("clone", "Production"),
        attached: ("attached", "Testing changed 2026-11-21"),
        copied: ("clone", "Testing changed 2026-11-21"),
        stranger: ("unknown SR", "test SR"),
        empty: ("empty", ""),
        away: ("unreachable", ""),
    }
    with connect(lab.where()) as calls:
        pool = records.read(calls)
    copies = {scsi_id for scsi_id, lun in found.items() if lun.facts(pool)["is_known_copy"]}
    assert copies == {clone, attached, copied}
    assert found[copied].of_sr == done.sr_uuid and found[clone].one_vdi == "cannot be"
    assert "did not appear" in found[away].problem
    probed = {scsi_id for command, _, scsi_id in world.log if command == "sr_probe" and scsi_id}
    assert probed.isdisjoint([testing, attached]), "what is in use is not probed, if it has no clone for certain"
    assert {lun.scsi_id: lun.disk.peek(0, lun.disk.size_bytes) for lun in world.luns} == before


def test_a_copy_that_has_lost_its_pbds_has_the_name_of_its_own_sr_in_the_answer(lab):
    clone = lab.clone("Production")
    (done,) = lab.attach(clone)
    sr, _ = lab.sr(done.sr_uuid)
    lab.unplug(sr)
    for pbd in lab.pool.db.refs("PBD", SR=sr):
        lab.pool.storage.pbd_destroy("", pbd)

    with connect(lab.where()) as calls:
        told = lab.lun(clone).facts(records.read(calls))
    assert (told["lun_kind"], told["sr"], told["copy_of"]) == ("resignatured", done.sr_uuid, done.of_sr)
    assert told["sr_name_label"] == done.name != "Production"


# --- copies that the array has overwritten


def test_a_copy_that_the_array_has_overwritten_is_a_clone_again(lab, world):
    """The same SCSIid, today's data; the SR of the copy is still there, unplugged."""
    clone = lab.clone("Production")
    (done,) = lab.attach(clone)
    lab.unplug(lab.sr(done.sr_uuid)[0])
    assert lab.lun(clone).kind == "attached"
    lab.overwrite(clone)
    assert (lab.lun(clone).kind, lab.lun(clone).name) == ("clone", "Production")
    (failed,) = lab.attach(clone)
    assert failed.status == FAILED and "the array has overwritten the LUN" in str(failed.error)
    assert world.state(clone) == "clean"
    lab.fail(clone, "sr_probe")
    assert lab.lun(clone).kind == "attached"


@pytest.mark.parametrize("is_since", [False, True])
def test_a_copy_that_was_detached_and_overwritten_is_not_taken_for_that_of_another_client(lab, world, is_since):
    """Its SR has our marks and no PBD; none is made, as its LUN holds the identities of the original. `is_since`: it
    comes about while a run is at its question.
    """
    clone = lab.clone("Production")
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        chosen = attach.choose(lun_search.find(calls, pool, pool.portals(), 1), [clone], [])
        (done,) = lab.attach(clone)
        lab.detach(done.sr_uuid)
        lab.overwrite(clone)
        if is_since:
            (left,) = attach.attach(calls, pool, chosen, attach.AttachRequest(run="the slower one"))
            assert "Another client has just attached or discarded the LUN" in str(left.error)
    if not is_since:
        (failed,) = lab.attach(clone)
        assert failed.status == FAILED and "the array has overwritten the LUN" in str(failed.error)
    assert lab.sr(done.sr_uuid)[1]["PBDs"] == [] and world.state(clone) == "clean"


# --- where to look


def test_a_portal_without_an_iqn_is_asked_for_its_targets(lab, world):
    other = world.add(TARGET, "iqn.2026-01.test:second", sr_disk("elsewhere"))
    assert {lun.scsi_id for lun in lab.look(ProbePortal(TARGET))} == {lun.scsi_id for lun in world.luns}
    assert [lun.scsi_id for lun in lab.look(ProbePortal(TARGET, "iqn.2026-01.test:second"))] == [other]


def test_a_portal_that_does_not_answer_is_an_error_and_hides_no_other(lab):
    with pytest.raises(PoolFailure, match="No iSCSI target answers at 10.9.9.9"):
        lab.look(ProbePortal("10.9.9.9"))
    assert lab.look(ProbePortal("10.9.9.9"), ProbePortal(TARGET, IQN))


def test_a_target_that_fails_hides_no_other_and_is_told(lab, world):
    world.add(TARGET, "iqn.2026-01.test:b-refuses", sr_disk("x1"), chap=("bob", "other word"))
    third = world.add(TARGET, "iqn.2026-01.test:c-open", sr_disk("x2"))
    found = lab.look(ProbePortal(TARGET))

    assert third in [lun.scsi_id for lun in found]
    (away,) = [lun for lun in found if not lun.scsi_id]
    assert (away.kind, away.portal.iqn) == ("unreachable", "iqn.2026-01.test:b-refuses")
    assert attach.unseen(found, [], [], True) == [away] and attach.unseen(found, [third], []) == []
    assert "'iqn.2026-01.test:b-refuses' are unknown: " in str(attach.not_attachable(away).error)


class Listing:
    """A pool whose portal 192.0.2.9 lists many targets; the probes that it got."""

    master = "OpaqueRef:m"

    def __init__(self, count):
        rows = "".join(f"<TGT><TargetIQN>iqn.2000-01.a:{number}</TargetIQN></TGT>" for number in range(count))
        self.document, self.asked = f"<iscsi-target-iqns>{rows}</iscsi-target-iqns>", []

    def portals(self):
        return []

    def run(self, _method, _host, config, *_more):
        self.asked.append(config.get("targetIQN", config["target"]))
        if "targetIQN" in config:
            raise PoolFailure("The login failed.", ["SR_BACKEND_FAILURE_68", "", ""])
        raise PoolFailure("", ["SR_BACKEND_FAILURE_96", "", "", self.document])


def test_a_portal_with_many_targets_keeps_no_other_waiting(monkeypatch):
    monkeypatch.setattr(lun_search, "MOST_IQNS", 3)
    monkeypatch.setattr(lun_search, "listed", lambda failure, portal: ([PoolLun(portal.iqn, "", portal)], 0))
    monkeypatch.setattr(lun_search, "must_be_read", lambda _pool, _scsi_id: False)
    monkeypatch.setattr(lun_search, "classified", lambda _pool, lun: lun)
    pool = Listing(50000)

    found = lun_search.find(pool, pool, [ProbePortal("192.0.2.9"), ProbePortal("192.0.2.5", "iqn.2000-01.good")], 1)
    names = [f"iqn.2000-01.a:{number}" for number in range(3)]
    assert pool.asked == ["192.0.2.9", names[0], "iqn.2000-01.good", *names[1:]]
    assert [lun.scsi_id for lun in found] == [names[0], "iqn.2000-01.good", *names[1:], ""]
    assert found[-1].problem.startswith("192.0.2.9 lists 50000 targets, and the first 3 were read.")


class ManyLuns(Listing):
    """A portal with two targets that list LUNs; each probe of a LUN fails."""

    def __init__(self, count, iqns=2, left_out=""):
        super().__init__(iqns)
        self.count, self.left_out = count, left_out

    def run(self, method, host, config, *more):
        if "SCSIid" in config:
            raise PoolFailure("No LUN.")
        if "targetIQN" not in config:
            return super().run(method, host, config, *more)
        first = self.count * int(config["targetIQN"].rpartition(":")[2])
        rows = "".join(f"<LUN><SCSIid>36{first + number:031x}</SCSIid></LUN>" for number in range(self.count))
        raise PoolFailure("", ["SR_BACKEND_FAILURE_107", "", "", f"<iscsi-target{self.left_out}>{rows}</iscsi-target>"])

    def another(self):
        return self

    def close(self):
        pass


class Config(dict):
    """The device-config of a PBD, which counts how often its values are read."""

    reads = 0

    def values(self):
        Config.reads += 1
        return super().values()


def pool_of(srs):
    """A pool with SRs, by UUID with their SCSIids; two hosts have a PBD of each."""
    hosts = {f"h{number}": {"name_label": f"h{number}"} for number in range(2)}
    record = {"type": "lvmoiscsi", "other_config": {}, "sm_config": {}}
    there = {uuid: {**record, "uuid": uuid, "name_label": uuid} for uuid in srs}
    pbds = {
        f"{uuid} {host}": {
            "SR": uuid,
            "host": host,
            "currently_attached": True,
            "device_config": Config(target="192.0.2.9", targetIQN="iqn.2000-01.a:0", SCSIid=scsi_id),
        }
        for uuid, scsi_id in srs.items()
        for host in hosts
    }
    return records.Pool("pool", "h0", hosts, dict.fromkeys(hosts, True), there, pbds, {})


def test_a_portal_with_many_luns_is_read_up_to_a_limit_and_the_rest_is_named(monkeypatch):
    monkeypatch.setattr(lun_search, "MOST_LUNS", 5)
    other = ProbePortal("192.0.2.5", "iqn.2000-01.other:9")

    found = lun_search.find(ManyLuns(4), pool_of({}), [ProbePortal("192.0.2.9"), other], 1)
    assert [lun.scsi_id[-2:] for lun in found] == ["00", "01", "02", "03", "24", "25", "26", "27", "04", ""]
    assert found[-1].problem == (
        "192.0.2.9 lists more than 5 LUNs: 3 LUNs of 'iqn.2000-01.a:1' were not read. Give another target with "
        "--target and --iqn, or map fewer LUNs to the master."
    )


@pytest.mark.parametrize("said, unread", [("61440", 1), ("0", 0), ("-3", 0), ("\u00b2", 0), ("9" * 5000, 0)])
def test_what_a_driver_has_left_out_of_its_list_is_named(said, unread):
    found = lun_search.find(ManyLuns(2, 1, f' left_out="{said}"'), pool_of({}), [ProbePortal("192.0.2.9")], 1)
    problems = [lun.problem for lun in found if not lun.scsi_id]
    assert len(problems) == unread and all(f"{said} LUNs of 'iqn.2000-01.a:0' were not read" in one for one in problems)


def test_the_records_of_the_pool_are_read_as_often_for_many_luns_as_for_one():
    def reads(count):
        scsi_ids = {f"a {number}": f"36{number:031x}" for number in range(3)}
        Config.reads = 0
        found = lun_search.find(ManyLuns(count, 1), pool_of(scsi_ids), [ProbePortal("192.0.2.9")], 1)
        assert [lun.kind for lun in found] == ["original"] * min(count, 3) + ["unreachable"] * (count - 3)
        return Config.reads

    assert reads(1) == reads(40) > 0


def test_a_portal_that_answers_slowly_has_one_budget_and_what_was_not_read_is_named(monkeypatch):
    """Each answer takes a minute: of the targets, of their LUNs, of each LUN."""
    now = [0.0]
    monkeypatch.setattr(lun_search, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(lun_search, "PORTAL_SECONDS", 300.0)
    monkeypatch.setattr(lun_search, "listed", lambda failure, portal: ([PoolLun(portal.iqn, "", portal)], 0))

    def slow(self, *words):
        now[0] += 60 if words[2]["target"] == "192.0.2.9" else 0
        return Listing.run(self, *words)

    def probe(_calls, _pool, lun):
        now[0] += 60
        return lun

    monkeypatch.setattr(lun_search, "probe", probe)
    monkeypatch.setattr(lun_search, "classified", lambda _pool, lun: lun)
    pool = type("Slow", (Listing,), {"run": slow})(400)
    pool.sr_on = lambda _scsi_id: None
    names = [f"iqn.2000-01.a:{number}" for number in range(400)]
    good = ProbePortal("192.0.2.5", "iqn.2000-01.good")

    found = lun_search.find(pool, pool, [ProbePortal("192.0.2.9"), good], 1)
    assert pool.asked == ["192.0.2.9", names[0], good.iqn, *names[1:4]]
    assert {lun.scsi_id: lun.kind for lun in found} == {
        **dict.fromkeys(names[:4], "unreachable"),
        good.iqn: "",
        "": "unreachable",
    }
    assert found[0].problem.startswith("The 5 min for 192.0.2.9 were over before this was read")
    assert found[-1].problem == (
        "192.0.2.9 answers slowly: its 5 min were over before the lists of LUNs of 396 targets: "
        f"{', '.join(map(repr, names[4:7]))} and 393 more. Give one: --target, --iqn."
    )


def test_the_wildcard_of_xencenter_is_every_iqn(lab):
    for pbd in lab.pool.db.refs("PBD"):
        config = lab.pool.db.get("PBD", pbd, "device_config")
        lab.pool.db.set("PBD", pbd, "device_config", {**config, "targetIQN": "*"})
    assert lab.lun(lab.clone("Production")).kind == "clone"


def test_each_iqn_has_the_chap_of_its_own_sr():
    world = World()
    with world.pool(hosts=("xs1",)) as pool:
        lab = Lab(world, pool)
        for name, chap in (("one", ("alice", "a")), ("two", ("bob", "b")), ("three", ())):
            lab.original(name, target="10.0.0.8", iqn="iqn.2026-01.test:" + name, chap=chap)
            lab.clone(name)
        with connect(lab.where()) as calls:
            portal = ProbePortal("10.0.0.8").as_known(records.read(calls).portals())  # as of --target
            other = ProbePortal("10.0.0.8", "iqn.2026-01.test:one", "3261").as_known(records.read(calls).portals())
        assert portal.chap_user == "alice" and other.chap_user == "", "another program may listen on another port"
        kinds = [lun.kind for lun in lab.look(portal)]
    assert sorted(kinds) == ["clone"] * 3 + ["original"] * 3


def test_what_is_on_fibre_channel_comes_from_the_masters_plugin(lab, world):
    behind_target, original = lab.clone("Production"), lab.original("Fabric", target=FABRIC)
    clone, elsewhere = lab.clone("Fabric"), lab.clone("Fabric")
    world.unmapped.add((lab.pool.master, elsewhere))
    with connect(lab.where()) as calls:
        with pytest.raises(PoolFailure, match="has no plugin relvmoiscsi"):
            lun_search.find_on_master(calls, records.read(calls))
        lab.pool.api.host_plugins.functions["relvmoiscsi"] = world.plugin
        found = {lun.scsi_id: lun for lun in lun_search.find_on_master(calls, records.read(calls))}

    assert set(found) == {original, clone} and behind_target not in found
    assert (found[clone].kind, found[clone].name, found[original].kind) == ("clone", "Fabric", "original")
    assert (found[clone].size_bytes, found[clone].portal) == (world.lun(clone).disk.size_bytes, records.HBA)


@pytest.mark.parametrize(
    "key, value",
    [
        ("size_bytes", "\u00b2"),
        ("size_bytes", "7"),
        ("size_bytes", -1),
        ("scsi_id", ["x"]),
        ("state", ["x"]),
        ("sr_name_label", 7),
        ("metadata_of", "x"),
    ],
)
def test_an_answer_of_the_plugin_with_another_type_is_said(lab, world, key, value):
    def plugin(*words):
        answer = json.loads(world.plugin(*words))
        for row in answer["host_luns"]:
            row[key] = value
        return json.dumps(answer)

    lab.original("Fabric", target=FABRIC)
    lab.clone("Fabric")
    lab.pool.api.host_plugins.functions["relvmoiscsi"] = plugin
    with connect(lab.where()) as calls, pytest.raises(PoolFailure, match="the master cannot be read: a value is not a"):
        lun_search.find_on_master(calls, records.read(calls))


@pytest.mark.parametrize("key", ["sr", "old_sr"])
def test_an_answer_of_the_plugin_with_a_uuid_that_is_none_is_said(lab, world, key):
    def plugin(*words):
        answer = json.loads(world.plugin(*words))
        for row in answer["host_luns"]:
            row.update(state="resignatured", **{key: "--yes"})
        return json.dumps(answer)

    lab.original("Fabric", target=FABRIC)
    lab.pool.api.host_plugins.functions["relvmoiscsi"] = plugin
    with connect(lab.where()) as calls, pytest.raises(PoolFailure, match="has the UUID '--yes', which is none"):
        lun_search.find_on_master(calls, records.read(calls))


#: {how a plugin goes on without end: (SCSIids and `next` of its answer of this number, what is said)}
ENDLESS = {
    "the same page": (lambda number: (["3a"], "3a"), "'3a' follows on '3a'"),
    "two pages in turn": (lambda number: (["3" + "ab"[number % 2]], "3c"), "'3a' follows on '3b'"),
    "pages without a LUN": (lambda number: ([], ""), "'' follows on ''"),
    "always another LUN": (lambda number: ([f"3{number:08}"], f"3{number + 1:08}"), "without end: 1000 answers"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_list_of_the_plugin_ends(lab, name):
    page, says = ENDLESS[name]
    numbers = itertools.count()

    def plugin(*_words):
        scsi_ids, following = page(next(numbers))
        rows = [{"scsi_id": scsi_id, "state": None, "problem": "It is down."} for scsi_id in scsi_ids]
        return json.dumps({"host_luns": rows, "next": following})

    lab.pool.api.tasks_end_at_once = True
    lab.pool.api.host_plugins.functions["relvmoiscsi"] = plugin
    with connect(lab.where()) as calls, pytest.raises(PoolFailure, match=says):
        lun_search.find_on_master(calls, records.read(calls))
    assert next(numbers) <= 1000


#: a LUN of a list
ANY = PoolLun("36001405993c87c37fa84d02b7fa62c40", "", ProbePortal(TARGET, IQN))


@pytest.mark.parametrize("document", ["<", "<!DOCTYPE x><SRlist/>", "<SRlist/>", "<SRlist><SR/></SRlist>"])
def test_a_probe_that_cannot_be_read_is_said(document):
    with pytest.raises(PoolFailure):
        lun_answers.reported(ANY, document)


@pytest.mark.parametrize("scsi_id", ["a b", "a/b", "..", "/dev/sda", "x" * 256, "\u0660", "3600\u202e", "3600\u009b2J"])
def test_a_text_that_is_no_scsi_id_is_in_no_list(scsi_id):
    document = f"<LUNs><LUN><SCSIid>{scsi_id}</SCSIid></LUN></LUNs>"
    with pytest.raises(PoolFailure, match="which is none") as caught:
        lun_answers.listed(PoolFailure("listed", ["SR_BACKEND_FAILURE_107", "", "", document]), ANY.portal)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["UUID", "old_uuid"])
def test_an_sr_in_a_probe_has_a_uuid(name):
    with pytest.raises(PoolFailure, match="which is none"):
        lun_answers.reported(ANY, f"<SRlist><SR><state>resignatured</state><{name}>x</{name}></SR></SRlist>")


@pytest.mark.parametrize("read", [lun_answers.listed_iqns, lambda failure: lun_answers.listed(failure, ANY.portal)])
def test_another_failure_is_no_list(read):
    with pytest.raises(PoolFailure, match="something else"):
        read(PoolFailure("something else", ["SR_BACKEND_FAILURE_68", "", "x", ""]))


# --- of another pool


def test_what_another_pool_may_be_running_on_is_taken_only_if_somebody_vouches_for_it(lab, world, theirs):
    clone, of = lab.clone("Production"), [world.sr_uuid(theirs)]
    found = lab.look()
    attach.verify_none_left(found, attach.choose(found, [clone], []))  # it is no twin of anything here
    with pytest.raises(NotFound, match="no clone of the SR"):
        attach.choose(found, [], of)
    assert [lun.scsi_id for lun in attach.choose(found, [], of, are_clones=True)] == [theirs]
    (done,) = lab.attach(everything=True)
    assert done.scsi_id == clone and world.sr_uuid(theirs) == of[0]
    assert [lun.scsi_id for lun in attach.doubtful(lab.look(), [])] == [theirs]


def test_a_copy_that_another_pool_has_attached_is_left_to_it(lab, world):
    clone = lab.clone("Production")
    with world.pool(hosts=("dr1", "dr2")) as other:
        with connect(Lab(world, other).where()) as calls:
            pool = records.read(calls)
            chosen = attach.choose(
                lun_search.find(calls, pool, [ProbePortal(TARGET, IQN)], 1), [clone], [], are_clones=True
            )
            assert [each.status for each in attach.attach(calls, pool, chosen, attach.AttachRequest(run="x"))] == [DONE]
        world._pool = lab.pool
        for asked in ({"everything": True}, {"clones_of": ["Production"]}):
            with pytest.raises(NotFound):
                lab.attach(**asked)
        assert lab.lun(clone).kind == "resignatured" and not lab.pool.db.refs("SR", uuid=world.sr_uuid(clone))


# --- of this pool


def test_an_sr_that_nobody_is_connected_to_is_no_clone_of_itself(lab, world, theirs):
    """Disaster recovery: all SRs are introduced first, their PBDs come after."""
    uuid = world.sr_uuid(theirs)
    lab.pool.storage.sr_introduce("", uuid, "Recovered", "", "lvmoiscsi", "user", True)
    assert lab.lun(theirs).kind == "unconnected"
    for named in ({"clones_of": ["Recovered"]}, {"clones_of": ["Recovered"], "are_clones": True}):
        with pytest.raises(Refused, match="The LUN may be the original"):
            lab.attach(**named)
    with pytest.raises(Refused, match="The LUN may be the original"):
        lab.attach(theirs, are_clones=True)
    assert world.sr_uuid(theirs) == uuid


@pytest.mark.parametrize("has_pbds", [True, False])
def test_a_lun_with_an_sr_that_no_host_has_attached_is_a_clone_only_if_the_caller_says_so(lab, world, has_pbds):
    """The LUN may be the SR itself under a new SCSIid: the driver refuses it too, unless the caller vouches for it."""
    (original, sr), clone = lab.originals["Production"], lab.clone("Production")
    lab.unplug(sr)
    for pbd in [] if has_pbds else lab.pool.db.refs("PBD", SR=sr):
        lab.pool.storage.pbd_destroy("", pbd)  # SM has noted the LUN of the SR
    assert (lab.lun(original).kind, lab.lun(clone).kind) == ("original", "unconnected")

    uuid = world.sr_uuid(clone)
    for words in ((clone,), ()):
        with pytest.raises(Refused, match="The LUN may be the original.* add --unplugged"):
            lab.attach(*words, clones_of=[] if words else ["Production"])
    for are_unplugged in (False, True):  # the word is for named LUNs
        with pytest.raises(NotFound):
            lab.attach(everything=True, are_unplugged=are_unplugged)
    assert [lun.scsi_id for lun in attach.doubtful(lab.look(), [])] == [clone] and world.sr_uuid(clone) == uuid

    with pytest.raises(Refused, match="is in use by the SR 'Production'"):
        lab.attach(original, are_unplugged=True)
    words, of = ((), ["Production"]) if has_pbds else ((clone,), [])
    (done,) = lab.attach(*words, clones_of=of, are_unplugged=True)
    assert (done.scsi_id, done.status) == (clone, DONE) and world.sr_uuid(clone) not in ("", uuid)


@pytest.mark.parametrize("step", range(3, 7))
def test_a_cut_run_on_a_clone_of_an_unplugged_sr_needs_the_word_again_until_its_commit(lab, world, step):
    clone = lab.clone("Production")
    lab.unplug(lab.originals["Production"][1])
    lun = world.lun(clone)
    world.luns[world.luns.index(lun)] = lun._replace(disk=cut_before(lun.disk, step, scsi_id=clone))
    is_committed = read_mark(world.lun(clone).disk).commit_record.phase != IN_PROGRESS
    if not is_committed:
        (refused,) = lab.attach(clones_of=["Production"])
        assert refused.status == FAILED and "may be that SR under a new SCSIid" in str(refused.error)
    (done,) = lab.attach(clones_of=["Production"], are_unplugged=not is_committed)
    assert (done.scsi_id, done.status) == (clone, DONE)


@pytest.mark.parametrize("state", [state for state in STATES if state.lun != SAME], ids=name_of)
def test_what_is_a_clone_to_the_client_is_written_by_the_driver_and_no_other_known_sr_is(lab, state):
    """One rule for both, known_sr.py: else the client promises what the driver refuses."""
    uuid, scsi_id = "5d0d2b3a-7777-4a4a-9b9b-0123456789ab", "36001405993c87c37fa84d02b7fa62c40"
    state.put(lab.pool.db, lab.pool.hosts[:2], uuid, scsi_id)
    with connect(lab.where()) as calls:
        lun = PoolLun(scsi_id, "clean", ProbePortal(TARGET, IQN), sr_uuid=uuid)
        lun = luns.classified(records.read(calls), lun)

    expected = {UNKNOWN: "unknown SR", INTRODUCED: "unconnected"}  # the driver's caller knows what it has introduced
    assert lun.kind == expected.get(state.sr, "clone" if state.is_written else "unconnected")
    assert lun.is_ours is (lun.kind == "clone")


def test_killed_between_the_new_sr_and_its_marks_it_is_found_by_its_original(lab):
    clone = lab.clone("Production")
    with lab.cut("SR.set_other_config"):
        assert [each.status for each in lab.attach(clones_of=["Production"])] == [FAILED]
    (done,) = lab.attach(clones_of=["Production"])
    assert (done.scsi_id, done.status) == (clone, DONE)


@pytest.mark.parametrize("step", range(3, 7))
def test_a_run_that_was_cut_anywhere_is_found_by_its_original(lab, world, step):
    clone = lab.clone("Production")
    lun = world.lun(clone)
    world.luns[world.luns.index(lun)] = lun._replace(disk=cut_before(lun.disk, step, scsi_id=clone))
    assert world.state(clone) == "unfinished"
    (done,) = lab.attach(clones_of=["Production"])
    assert (done.scsi_id, done.status) == (clone, DONE)


@pytest.mark.states("step", few=1)
@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("step", range(3, 7))
def test_an_unplugged_copy_with_an_interrupted_run_is_no_attached_copy(lab, world, name_pool, command, step, is_own):
    """The array put a copy in the middle of a run onto the LUN. `luns` said that the SR of the copy is attached."""
    clone = lab.clone("Production")
    (first,) = lab.attach(clone)
    lab.unplug(lab.sr(first.sr_uuid)[0])
    lab.overwrite(clone)
    lun = world.lun(clone)
    disk = cut_before(lun.disk, step, scsi_id=clone, sr_uuid=first.sr_uuid if is_own else str(uuid.UUID(int=7)))
    world.luns[world.luns.index(lun)] = lun._replace(disk=disk)
    assert (lab.lun(clone).kind, lab.lun(clone).is_untouched) == ("unfinished", True)
    name_pool(lab.pool)
    text = " ".join(command("pool", "luns").out.split())
    assert "resignature interrupted `attach` finishes the resignature, after `discard` of the copy that" in text
    (failed,) = lab.attach(clone)
    assert failed.status == FAILED and world.state(clone) == "unfinished"
    assert "now holds an interrupted resignature: the array has overwritten the LUN. Nothing was" in str(failed.error)
    lab.discard(first.sr_uuid)
    assert [each.status for each in lab.attach(clone)] == [DONE]


@pytest.mark.parametrize("has_journal", [True, False])
def test_a_discarded_copy_comes_back_by_its_scsi_id_also_when_its_journal_is_gone(lab, world, has_journal):
    """LVM has used up its ring; what the ids were follows from the new SR and the VDIs of the original."""
    clone, original = lab.clone("Production"), world.sr_uuid(lab.originals["Production"][0])
    (first,) = lab.attach(clone)
    lab.discard(first.sr_uuid)
    disk = world.lun(clone).disk
    if not has_journal:
        journal = read_mark(disk).journal
        disk.poke(journal.offset, bytes(len(journal.data)))
        disk.writes += 1  # the world is to look again
    with pytest.raises(NotFound):
        lab.attach(everything=True)
    (again,) = lab.attach(clone)
    assert (again.status, again.sr_uuid, again.of_sr) == (DONE, first.sr_uuid, original)
    assert lab.sr(again.sr_uuid)[1]["other_config"]["relvmoiscsi:original-sr"] == original
    assert {(pair.old, pair.new) for pair in again.vdis} == {(pair.old, pair.new) for pair in first.vdis}


def test_a_clone_of_a_copy_that_was_discarded_is_attached_only_if_somebody_vouches_for_it(lab, world):
    first = lab.clone("Production")
    (copy,) = lab.attach(first)
    second = world.clone(first)
    lab.discard(copy.sr_uuid)
    found = {lun.scsi_id: lun for lun in lab.look()}
    assert [(found[each].kind, found[each].is_ours) for each in (first, second)] == [
        ("resignatured", False),
        ("unknown SR", False),
    ]
    with pytest.raises(Refused, match=second):
        attach.verify_none_left(list(found.values()), [found[first]])
    with pytest.raises(Refused, match="add --foreign"):
        lab.attach(first, second)
    assert {each.status for each in lab.attach(first, second, are_clones=True)} == {DONE}
    assert world.sr_uuid(first) == copy.sr_uuid != world.sr_uuid(second)


def test_no_host_plugs_a_copy_beside_a_clone_of_that_copy_whose_resignature_fails(lab, world):
    first = lab.clone("Production")
    (copy,) = lab.attach(first)
    second = world.clone(first)
    lab.discard(copy.sr_uuid)
    lab.fail(second)
    results = {each.scsi_id: each for each in lab.attach(first, second, are_clones=True)}
    assert {each.status for each in results.values()} == {FAILED}
    assert "No host can plug the SR" in str(results[first].error) and second in str(results[first].error)
    assert not any(pbd["currently_attached"] for pbd in lab.pool.db.records("PBD", SR=lab.sr(copy.sr_uuid)[0]).values())


def test_a_forged_label_on_the_identities_of_an_original_is_no_resignature(lab, world):
    """A writer of a raw clone has renamed the SR, and has written the commit record."""
    volumes = [vhd("base", hidden=True, bat_entries=SMALL_BAT), vhd("disk", "base", bat_entries=SMALL_BAT)]
    world.add(TARGET, IQN, build_sr(volumes, seed="of another pool").disk)
    forged = world.add(TARGET, IQN, build_sr(volumes, seed="of another pool", sr_uuid=str(uuid.uuid4())).disk)
    forge_record(world.lun(forged).disk, forged)
    found = lab.lun(forged)
    assert (found.kind, found.is_ours) == ("unknown SR", False)
    with pytest.raises(Refused, match="which this pool does not know"):
        lab.attach(forged)
    assert [each.status for each in lab.attach(forged, are_clones=True)] == [DONE]
    assert lab.lun(forged).kind == "attached" and world.sr_uuid(forged) != found.sr_uuid


@pytest.mark.parametrize("iqn", [IQN, "iqn.2026-01.test:theirs"])
def test_a_forged_label_makes_no_lun_a_clone(lab, world, iqn):
    """Another pool uses the SR that is also on the LUN with the forged label."""
    (original, replaced), clone = another_pools(), lab.clone("Production")
    theirs, forged = world.add(TARGET, iqn, original), world.add(TARGET, IQN, original.copy())
    forge_record(world.lun(forged).disk, forged, replaced=replaced)
    of, found = world.sr_uuid(theirs), {lun.scsi_id: lun for lun in lab.look(ProbePortal(TARGET))}
    assert found[forged].kind == "resignatured" and found[forged].sr_uuid == of
    assert (found[theirs].kind, found[theirs].is_ours) == ("unknown SR", False)
    rows = list(found.values())
    assert [lun.scsi_id for lun in attach.choose(rows, [], [], everything=True)] == [clone]
    with pytest.raises(Refused, match="which this pool does not know"):
        attach.choose(rows, [theirs], [])
    with pytest.raises(Refused, match=f"hold the SR of a LUN that you selected: {theirs}. Another pool may use"):
        attach.verify_none_left(rows, attach.choose(rows, [forged], []))


@pytest.mark.parametrize("target", [TARGET, FABRIC])
@pytest.mark.parametrize("step", range(4, 7))
def test_an_interrupted_run_that_leads_to_the_sr_of_another_lun_is_not_finished_beside_it(lab, world, step, target):
    """Each writer of a raw LUN can write a journal with any new SR."""
    theirs, forged = world.add(target, IQN, sr_disk("of another pool")), lab.clone("Production")
    lun, of = world.lun(forged), world.sr_uuid(theirs)
    disk = cut_before(lun.disk, step, scsi_id=forged, sr_uuid=of)
    world.luns[world.luns.index(lun)] = lun._replace(disk=disk, **({"target": target} if target == FABRIC else {}))
    lab.pool.api.host_plugins.functions["relvmoiscsi"] = world.plugin
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        found = (
            lun_search.find_on_master(calls, pool)
            if target == FABRIC
            else lun_search.find(calls, pool, [ProbePortal(TARGET)])
        )
    by_id = {lun.scsi_id: lun for lun in found}
    assert (by_id[forged].kind, by_id[theirs].sr_uuid) == ("unfinished", of)
    with pytest.raises(Refused, match=f"hold the SR of a LUN that you selected: {theirs}. Another pool may use"):
        attach.verify_none_left(found, attach.choose(found, [forged], []))
    attach.verify_none_left(found, attach.choose(found, [forged, theirs], [], are_clones=True))


@pytest.mark.parametrize("label", ["none", "their own", "of another LUN"])
def test_of_an_attached_copy_only_a_lun_with_the_copied_label_is_a_clone_for_certain(lab, world, label):
    """The label of the attached LUN may be forged, and its SR be that of another pool."""
    original, replaced = another_pools()
    forged = world.add(TARGET, IQN, original.copy())
    forge_record(world.lun(forged).disk, forged, replaced=replaced)
    assert [each.status for each in lab.attach(forged)] == [DONE]
    theirs = world.add(TARGET, "iqn.2026-01.test:theirs", original)
    if label != "none":
        forge_record(world.lun(theirs).disk, theirs if label == "their own" else forged, replaced=replaced)
    (found,) = [lun for lun in lab.look(ProbePortal(TARGET)) if lun.scsi_id == theirs]
    assert (found.kind, found.is_ours, found.is_untouched) == ("clone", label == "of another LUN", True)
    chosen = attach.choose([found, lab.lun(forged)], [], [], everything=True)
    assert [lun.scsi_id for lun in chosen] == [*([theirs] if found.is_ours else []), forged]
    assert attach.doubtful([found], []) == ([] if found.is_ours else [found])
    if not found.is_ours:
        with pytest.raises(Refused, match="Another pool may use the LUN. If the LUN is an unused clone, add --foreign"):
            attach.choose([found], [theirs], [])
        assert attach.choose([found], [theirs], [], are_clones=True) == [found]


@pytest.mark.parametrize("label", ["none", "their own", "of another LUN"])
def test_of_a_resignatured_lun_that_was_introduced_by_hand_only_a_copied_label_is_a_clone_for_certain(
    lab, world, label
):
    """CloudStack, Xen Orchestra and the printed commands attach a copy without the marks of `attach`."""
    forged, theirs, replaced = introduced_by_hand(lab, world)
    if label != "none":
        forge_record(world.lun(theirs).disk, theirs if label == "their own" else forged, replaced=replaced)
    found = lab.look(ProbePortal(TARGET))
    (lun,) = [lun for lun in found if lun.scsi_id == theirs]
    assert (lun.kind, lun.is_ours) == ("clone", label == "of another LUN")
    chosen = attach.choose(found, [], [], everything=True) if lun.is_ours else []
    assert chosen == ([lun] if lun.is_ours else []) and attach.doubtful(found, []) == ([] if chosen else [lun])
    if not lun.is_ours:
        with pytest.raises(Refused, match="Another pool may use the LUN. If the LUN is an unused clone, add --foreign"):
            attach.choose(found, [theirs], [])
        assert attach.choose(found, [theirs], [], are_clones=True) == [lun]


def test_beside_a_lun_that_cannot_be_read_no_lun_with_its_sr_is_a_clone_for_certain(lab, world):
    original, clone = lab.originals["Production"][0], lab.clone("Production")
    assert lab.lun(clone).is_ours
    lab.fail(original, "sr_probe")
    assert (lab.lun(clone).kind, lab.lun(clone).is_ours) == ("clone", False)


@pytest.mark.parametrize("label", ["its own", "of another LUN", "unreadable"])
def test_behind_adapters_a_lun_with_the_sr_of_a_resignatured_lun_is_no_clone_for_certain(lab, world, label):
    forged, theirs, _replaced = introduced_by_hand(lab, world, target=FABRIC)
    if label == "of another LUN":
        forge_record(world.lun(forged).disk, theirs)

    def plugin(*words):
        answer = json.loads(world.plugin(*words))
        for row in answer["host_luns"]:
            if row["scsi_id"] == forged and label == "unreadable":
                row.update(state=None, problem="it gives no answer")
        return json.dumps(answer)

    lab.pool.api.host_plugins.functions["relvmoiscsi"] = plugin
    with connect(lab.where()) as calls:
        found = {lun.scsi_id: lun for lun in lun_search.find_on_master(calls, records.read(calls))}
    assert (found[forged].kind, found[theirs].kind, found[theirs].is_ours) == ("original", "clone", False)


def introduced_by_hand(lab, world, target=TARGET):
    """Return a LUN with a forged label that the pool has attached without `attach`, and the true LUN of its SR."""
    original, replaced = another_pools()
    forged = world.add(target, IQN, original.copy())
    forge_record(world.lun(forged).disk, forged, replaced=replaced)
    world.attach_original(lab.pool, forged, "a copy by hand")
    return forged, world.add(target, "iqn.2026-01.test:theirs", original), replaced


def another_pools():
    """A resignatured SR of another pool, whose label LVM has written anew; and the ids that the run replaced."""
    disk = cuts.done(sr_disk("of another pool"))
    replaced = replaced_ids(disk)
    return without_record(disk), replaced


# --- the note of what has been begun


def notes(lab):
    return [key for key in lab.pool.db.get("pool", lab.pool.pool, "other_config") if "relvmoiscsi:at-work:" in key]


def test_the_note_is_gone_when_all_srs_are_marked_and_stays_for_a_lun_that_has_failed(lab, world):
    clone, seen = lab.clone("Production"), []
    lab.fail(clone)
    lab.before("Async.SR.create", lambda: seen.extend(notes(lab)))
    assert [each.status for each in lab.attach(everything=True)] == [FAILED]
    assert seen == notes(lab) == ["relvmoiscsi:at-work:a run"]
    world.fail.clear()
    assert [each.status for each in lab.attach(everything=True)] == [DONE] and notes(lab) == []
    assert [each.status for each in lab.attach(everything=True)] == [ALREADY]
