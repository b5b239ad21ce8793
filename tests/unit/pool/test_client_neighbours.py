# SPDX-License-Identifier: LGPL-2.1-only
"""A clone that kept the identities of its original, behind the target of LUNs that are attached: a host that lists or
plugs one LUN of a target sees every LUN of it.
"""

import pytest

from kit.damage import DAMAGES
from kit.lun_world import FABRIC
from kit.pool.api import GoneAway
from kit.pool.errors import XenError
from kit.reader import identities
from relvmoiscsi import __version__
from relvmoiscsi.pool import attach, lun_search, luns, records
from relvmoiscsi.pool.attach import ALREADY, DONE, FAILED
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.luns import PoolLun
from relvmoiscsi.sr_types import STOCK_TYPES


@pytest.fixture
def shown(lab):
    """The SCSIids of the plugs, and "" for each list of the storage manager: what makes a host see LUNs."""
    seen = []

    def before(method, params):
        name, parameters = method.replace("Async.", ""), params[1:]
        if name == "SR.probe" and parameters[2] in STOCK_TYPES:
            seen.append("")
        if name == "PBD.plug":
            seen.append(lab.pool.db.get("PBD", parameters[0], "device_config")["SCSIid"])

    lab.pool.api.before = before
    return seen


@pytest.fixture
def pair(lab):
    """SCSIids of a clone that fails, and of another one behind the same target."""
    bad, good = lab.clone("Production"), lab.clone("Testing")
    lab.fail(bad)
    return bad, good


def by_id(results):
    return {result.scsi_id: result.status for result in results}


def is_as(lab, scsi_id, name="Production"):
    """Whether a LUN has the identities of this original."""
    return identities(lab.world.lun(scsi_id).disk) == identities(lab.world.lun(lab.originals[name][0]).disk)


def introduced(lab, result):
    """What a run says of the LUN that it has resignatured, and of its SR, which no host may plug."""
    sr_uuid = result.sr_uuid
    name = lab.sr(sr_uuid)[1]["name_label"]
    return f"The LUN {result.scsi_id} has new identities, and the pool has its SR {name!r} ({sr_uuid})."


@pytest.mark.parametrize(("place", "at_once"), [(0, 3), (1, 1), (2, 3)])
def test_no_host_is_made_to_see_a_clone_that_kept_the_identities_of_its_original(lab, world, shown, place, at_once):
    clones = [lab.clone("Production") for _ in range(3)]
    bad, good = clones[place], [clone for clone in clones if clone != clones[place]]
    lab.fail(bad)
    done = {result.scsi_id: result for result in lab.attach(everything=True, jobs_at_once=at_once)}

    assert shown == [] and is_as(lab, bad)
    assert {result.status for result in done.values()} == {FAILED}
    for scsi_id in good:
        assert str(done[scsi_id].error) == (
            f"No host can plug the SR on the LUN {scsi_id} yet. Clones on the same target may still have "
            f"the identities of their originals: {bad}. {introduced(lab, done[scsi_id])} Repeat the command, or add "
            f"--leave-others. {luns.UNMAP}"
        )
        assert lab.sr(done[scsi_id].sr_uuid)[1]["PBDs"] == [] and not is_as(lab, scsi_id)
    before = lab.summary()
    again = lab.attach(everything=True, jobs_at_once=at_once)
    assert {result.scsi_id: str(result.error) for result in again} == {key: str(done[key].error) for key in done}
    assert lab.summary() == before and shown == []

    world.fail.clear()
    again = {result.scsi_id: result for result in lab.attach(everything=True, jobs_at_once=at_once)}
    assert {result.status for result in again.values()} == {DONE} and set(again) == set(clones)
    assert all(again[scsi_id].sr_uuid == done[scsi_id].sr_uuid for scsi_id in good), "the SR there was is taken"
    assert all(result.vdis and set(result.hosts.values()) == {"plugged"} for result in again.values())


def test_the_luns_of_another_target_are_plugged(lab, shown, pair):
    lab.original("Elsewhere", iqn="iqn.2026-01.test:elsewhere")
    away = lab.clone("Elsewhere")
    done = by_id(lab.attach(everything=True, jobs_at_once=2))
    assert done == {pair[0]: FAILED, pair[1]: FAILED, away: DONE} and set(shown) == {"", away}


def test_whoever_leaves_others_has_the_rest_plugged(lab, shown, pair):
    assert by_id(lab.attach(*pair, leave_others=True)) == {pair[0]: FAILED, pair[1]: DONE} and pair[1] in shown


@pytest.mark.parametrize("was_down", [False, True])
def test_what_is_attached_already_is_left_so_and_a_host_that_was_down_is_not_plugged(lab, world, shown, was_down):
    there, bad = lab.clone("Production"), lab.clone("Testing")
    if was_down:
        lab.pool.go_down(lab.pool.hosts[2])
    lab.attach(there)
    lab.pool.come_back(lab.pool.hosts[2])
    lab.fail(bad)
    del shown[:]
    assert by_id(lab.attach(there, bad)) == {there: FAILED if was_down else ALREADY, bad: FAILED} and shown == []
    world.fail.clear()
    assert by_id(lab.attach(there, bad)) == {there: DONE if was_down else ALREADY, bad: DONE}


def test_a_lun_that_fails_with_identities_of_its_own_holds_up_no_other(lab, world):
    """Its SR cannot be introduced; no host takes it for its original."""
    bad, good = lab.clone("Production"), lab.clone("Testing")

    def introduce(session, uuid, *words):
        if uuid == world.sr_uuid(bad):
            raise XenError("SR_INTRODUCE_FAILED")
        return real(session, uuid, *words)

    real = lab.answer("SR.introduce", introduce)
    assert by_id(lab.attach(bad, good)) == {bad: FAILED, good: DONE} and not is_as(lab, bad)


def test_a_clone_of_an_sr_that_the_pool_does_not_know_holds_up_no_other(lab, world):
    """It has the identities of nothing here: so it is left, unnamed, as well."""
    lab.original("Foreign")
    foreign, good = lab.clone("Foreign"), lab.clone("Production")
    lab.forget_original("Foreign")
    world.luns[:] = [lun for lun in world.luns if lun.scsi_id != lab.originals["Foreign"][0]]
    lab.fail(foreign)
    assert by_id(lab.attach(foreign, good, are_clones=True)) == {foreign: FAILED, good: DONE}


def test_killed_at_a_call_of_each_kind_while_a_clone_fails(lab, world, shown, deaths):
    """The run after shows no host the clone; the one in which the clone gets its identities finishes all."""
    bad, good = lab.clone("Production"), lab.clone("Production")
    lab.fail(bad)
    for is_over in deaths(lambda: lab.attach(bad, good), False, True):
        lab.later()
        if not is_over:
            assert set(by_id(lab.attach(bad, good)).values()) == {FAILED}
        assert shown == []
        world.fail.clear()
        assert set(by_id(lab.attach(bad, good)).values()) == {DONE}
        lab.fail(bad)
        del shown[:]


@pytest.mark.parametrize("is_named", [True, False])
def test_no_host_sees_a_clone_on_which_a_killed_run_may_be_at_work(lab, shown, pair, is_named):
    """t0: SR.create of one clone has begun; t1: the client dies; t2: the next run cannot look at that clone."""
    bad, good = pair
    watch = lab.pool.api.before

    def dies(method, params):
        if method == "Async.SR.create" and params[2]["SCSIid"] == bad:
            lab.pool.api.before = gone
        watch(method, params)

    def gone(method, params):
        raise GoneAway()

    lab.pool.api.before = dies
    assert by_id(lab.attach(*pair)) == {bad: FAILED, good: FAILED}
    lab.pool.api.before = watch
    lab.later()
    assert is_as(lab, bad) and is_as(lab, good, "Testing")
    lab.fail(bad, "sr_probe")
    (result,) = lab.attach(good, bad) if is_named else lab.attach(good)
    assert result.status == FAILED and bad in str(result.error) and shown == []
    assert by_id(lab.attach(good, leave_others=True)) == {good: DONE}


def test_a_lun_that_cannot_be_looked_at_and_is_no_clone_of_a_run_holds_up_no_other(lab, pair):
    lab.fail(pair[0], "sr_probe")
    assert by_id(lab.attach(pair[1])) == {pair[1]: DONE}


@pytest.mark.parametrize("what", sorted(set(DAMAGES) - {"QCOW2 header"}))
def test_a_damaged_clone_holds_up_the_plugs_as_a_clone_that_fails_does(lab, world, shown, what):
    """Its label has the PV UUID of the original: no host that sees both can plug the original again."""
    bad, good = lab.clone("Production"), lab.clone("Testing")
    DAMAGES[what](world.lun(bad).disk)

    def seen():
        with connect(lab.where()) as calls:
            return lun_search.find(calls, records.read(calls), records.read(calls).portals())

    (lost,) = attach.unseen(seen(), [], [], everything=True)
    assert lost.scsi_id == bad and str(attach.not_attachable(lost).error).endswith(luns.UNMAP)
    for wanted in ({"everything": True}, {}):
        (held,) = lab.attach(*[] if wanted else [good], **wanted)
        assert (held.scsi_id, held.status, shown) == (good, FAILED, [])
        assert str(held.error).endswith(
            f"originals: {bad} (damaged). {introduced(lab, held)} {luns.UNMAP} Then repeat the command, or add "
            "--leave-others."
        ), "no repeated command mends it"
        assert lab.sr(held.sr_uuid)[1]["PBDs"] == [] and not is_as(lab, good, "Testing")
    world.luns[:] = [lun for lun in world.luns if lun.scsi_id != bad]
    assert by_id(lab.attach(everything=True)) == {good: DONE}, "it is unmapped"


def test_a_clone_that_fails_alone_is_named_with_what_to_do(lab):
    bad = lab.clone("Production")
    lab.fail(bad)
    (failed,) = lab.attach(bad)
    assert failed.status == FAILED and str(failed.error).endswith(luns.UNMAP)


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_busy_lun_is_one_of_ours_where_a_run_has_begun_with_it(lab, is_begun):
    with connect(lab.where()) as calls:
        pool = records.read(calls)
    if is_begun:
        pool.at_work = {"relvmoiscsi:at-work:a run": frozenset(["its id"])}
    seen = luns.classified(pool, PoolLun("its id", "busy", records.ProbePortal("10.0.0.5", "iqn")))
    assert (seen.kind, seen.may_be_untouched, seen.is_untouched) == ("busy", is_begun, False)


@pytest.mark.parametrize("at_once", [1, 2])
def test_what_adapters_see_is_one_target(lab, world, shown, at_once):
    lab.original("Fabric", target=FABRIC)
    lab.pool.api.host_plugins.functions["relvmoiscsi"] = world.plugin
    bad, good = lab.clone("Fabric"), lab.clone("Fabric")

    def attached():
        with connect(lab.where()) as calls:
            pool = records.read(calls)
            chosen = attach.choose(lun_search.find_on_master(calls, pool), [bad, good], [])
            return by_id(attach.attach(calls, pool, chosen, attach.AttachRequest(run="a run", jobs=at_once)))

    lab.fail(bad)
    assert attached() == {bad: FAILED, good: FAILED} and shown == [] and is_as(lab, bad, "Fabric")
    world.fail.clear()
    assert attached() == {bad: DONE, good: DONE}


@pytest.mark.parametrize(
    "function, arguments, code",
    [
        ("recover", {}, "UNKNOWN_XENAPI_PLUGIN_FUNCTION"),
        *((name, {}, "RELVMOISCSI_FAILURE") for name in ("lun", "doctor", "map", "resignature", "add_lun")),
        ("resignature", {"dry_rnu": "true"}, "RELVMOISCSI_FAILURE"),
        ("classify", {"hba": "perhaps"}, "RELVMOISCSI_FAILURE"),
    ],
)
def test_the_simulated_plugin_fails_as_the_real_one_does_and_writes_nothing(lab, world, function, arguments, code):
    lab.original("Fabric", target=FABRIC)
    clone = lab.clone("Fabric")
    lab.pool.api.host_plugins.functions["relvmoiscsi"] = world.plugin
    named = {**arguments, "scsi_id": clone} if arguments and function == "resignature" else arguments

    with connect(lab.where()) as calls:
        assert calls.run("host.call_plugin", lab.pool.master, "relvmoiscsi", "version", {}) == __version__
        with pytest.raises(PoolFailure) as caught:
            calls.run("host.call_plugin", lab.pool.master, "relvmoiscsi", function, named)

    assert caught.value.code == code and is_as(lab, clone, "Fabric")
