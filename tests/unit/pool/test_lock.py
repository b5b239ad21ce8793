# SPDX-License-Identifier: LGPL-2.1-only
"""One client at a time: the lock in the pool, taken, refreshed, stale, broken; whatever comes between two calls."""

import itertools
import json
import queue
import re
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.examples import WHOLE, dice, examples
from kit.pool.api import GoneAway
from kit.pool_fakes import until
from relvmoiscsi.errors import Busy, Refused
from relvmoiscsi.pool import attach, client_process, lock, lock_keys
from relvmoiscsi.pool.calls import PoolFailure, PoolGone
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.records import SCSI_ID

WHAT = "360014050000000000000000000000003"


def connected(name, what):
    """A fixture: the calls of a client."""

    @pytest.fixture(name=name)
    def client(lab):
        with connect(lab.where()) as calls:
            yield calls

    client.__doc__ = what
    return client


_calls = connected("calls", "Of the client that is looked at.")
_other = connected("other", "Of another one.")
_killed = connected("killed", "Of one that is killed with its lock.")


def taken(calls, doing="restore"):
    mine = lock.Held(calls, [WHAT], doing)
    mine.take()
    return mine


def unlocked(calls, what=WHAT):
    return lock.unlock(calls, lock.to_break(calls, what))


def keys(lab):
    config = lab.pool.db.get("pool", lab.pool.pool, "other_config")
    return sorted(key[len(lock_keys.KEY) :] for key in config if key.startswith(lock_keys.KEY))


def open_keys(lab):
    config = lab.pool.db.get("pool", lab.pool.pool, "other_config")
    return sorted(key[len(lock_keys.OPEN_KEY) :] for key in config if key.startswith(lock_keys.OPEN_KEY))


@pytest.fixture
def vm_admin(lab):
    lab.pool.api.users["eve"] = ("x", "vm-admin")
    with connect(lab.where()._replace(user="eve", password="x")) as calls:
        yield calls


def write_open(lab, name, **values):
    """A vm-operator writes this."""
    facts = {"who": "eve", "host": "h", "process": "1", "doing": "clone", "since": "then", **values}
    lab.pool.db.add_to("pool", lab.pool.pool, "other_config", lock_keys.OPEN_KEY + name, json.dumps(facts))


def gone(_name, _params):
    raise GoneAway()


def is_refused(calls, said="Another client has locked"):
    with pytest.raises(Busy, match=said):
        taken(calls)


def is_broken(mine, calls):
    with pytest.raises(Refused, match="Another client has broken this run's lock"):
        mine.verify(calls)


ADD = "pool.add_to_other_config"


def test_who_has_it_is_told_to_the_other_with_the_command_that_breaks_it(lab, calls, other):
    with lock.held(calls, [WHAT], "attach"), pytest.raises(Refused) as refused:
        taken(other)
    said = str(refused.value)
    (there,) = [each for each in said.split("`") if each.startswith("relvmoiscsi pool unlock")]
    assert there == f"relvmoiscsi pool unlock {WHAT}"
    for part in ("`relvmoiscsi pool attach` of ", " on ", "(process ", "since 20", "refreshed at 20", "30 minutes"):
        assert part in said
    assert keys(lab) == []
    taken(other).release()
    assert keys(lab) == []


@pytest.mark.parametrize("ended", [True, False])
def test_the_lock_of_a_process_of_this_machine_that_has_ended_is_told_as_one(lab, calls, other, ended, monkeypatch):
    """A killed command on this very machine was told to be waited for."""
    kernel, space, pid = client_process.this_process()
    process = [kernel, space, str(2**22 + 1) if ended else pid]
    with monkeypatch.context() as of_killed:
        of_killed.setattr(lock, "this_process", lambda: process)
        taken(calls, "attach")
    with pytest.raises(Busy) as refused:
        taken(other)
    assert ("has ended, and has left its lock." in refused.value.message) is ended
    assert refused.value.advice.startswith("Break the lock: `relvmoiscsi pool unlock" if ended else "Wait until ")
    assert refused.value.advice.count("hen repeat the command") == 1


@pytest.mark.parametrize("what", ["SR", "VM"])
def test_the_other_is_told_the_name_of_what_is_locked(lab, calls, other, what):
    """A person has given a name, and found only an id in the refusal."""
    ref = lab.originals["Production"][1] if what == "SR" else lab.vm("web")
    uuid, name = (lab.pool.db.get(what, ref, field) for field in ("uuid", "name_label"))
    names = [lock_keys.name_for(uuid)]
    with lock.held(calls, names, "restore"), pytest.raises(Busy) as refused:
        lab.pool.api.calls.clear()
        lock.verify_free(other, names)
    assert "VM.get_all_records" not in lab.pool.api.calls
    assert refused.value.message.endswith(f" The lock is on the {what} '{name}'.")


@pytest.mark.parametrize(
    "work", [taken, lambda calls: lock.verify_free(calls, [lock_keys.name_for(WHAT)])], ids=["take", "look"]
)
def test_a_lock_that_is_released_at_this_very_moment_was_not_left(lab, calls, other, work, monkeypatch):
    """The process ends behind its release. A person was told to break the lock, which was gone."""
    with monkeypatch.context() as of_ending:
        of_ending.setattr(lock, "this_process", lambda: [*client_process.this_process()[:2], str(2**22 + 1)])
        mine = taken(calls, "attach")
    lab.before("host.get_servertime", mine.release)
    work(other)


@pytest.mark.parametrize("is_guarded_too", [True, False])
def test_an_open_lock_is_never_told_as_one_of_a_process_that_has_ended(lab, calls, other, is_guarded_too):
    """A vm-operator copies what each role reads of a live lock, with the PID of no process."""
    mine = taken(calls)
    (text,) = [text for key, text in other.pool()[1]["other_config"].items() if key.startswith(lock_keys.KEY)]
    kernel, space, _ = client_process.this_process()
    values = {**json.loads(text), "token": "t", "who": "eve", "process_mark": f"{kernel} {space} {2**22 + 1}"}
    write_open(lab, f"{WHAT}:1", **values)
    if not is_guarded_too:
        mine.release()
    with pytest.raises(Busy) as refused:
        taken(other)
    (refusal,) = lock.refusals(other, [lock_keys.name_for(WHAT)]).values()
    for each in (refused.value, refusal):
        assert "has ended" not in each.message and each.advice.startswith("Wait until ")
        assert ("of 'eve' on" in each.message) is not is_guarded_too


def test_what_another_client_says_that_it_does_is_no_command_of_a_shell(lab, calls):
    """A vm-operator may write a lock."""
    write_open(lab, f"{WHAT}:1", doing="restore --undo;reboot $(id)", refreshed=lock._Locks(calls).now(), token="t")
    is_refused(calls, re.escape("'restore --undo;reboot $(id)' of 'eve'"))


def test_what_another_client_says_is_shown_in_part(lab, calls):
    """Each may be megabytes long."""
    now = lock._Locks(calls).now()
    long = dict.fromkeys(("doing", "who", "host", "process", "since"), "x" * 5000)
    write_open(lab, f"{WHAT}:1", **{**long, "refreshed": now, "token": "t"})
    shown = "'" + "x" * 200 + "[.]{3}'"
    with pytest.raises(Refused, match=f"{shown} of {shown} on {shown} .process unknown., since unknown, refr"):
        taken(calls)


def test_of_several_none_is_taken_where_one_is_locked(lab, calls, other):
    with lock.held(calls, ["b"], "attach"):
        with pytest.raises(Refused, match="has locked b"), lock.held(other, ["a", "b", "c"], "attach"):
            pass
        assert keys(lab) == ["b:1"]


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("is_before", [True, False])
def test_a_run_that_passes_over_a_locked_name_has_the_locks_of_the_others_alone(lab, calls, other, name, is_before):
    theirs, refused = lock.Held(other, [name], "attach"), {}
    if is_before:
        theirs.take()
    else:
        lab.before(ADD, lambda: write_open(lab, f"{name}:1", refreshed=lock._Locks(other).now(), token="t"))
    (mine,) = {"a", "b"} - {name}
    with lock.held(calls, ["a", "b"], "attach", refused) as held:
        assert [(what, f"has locked {name}: " in str(said)) for what, said in refused.items()] == [(name, True)]
        assert keys(lab) == sorted([*([f"{name}:1"] if is_before else []), f"{mine}:1"])
        held.verify(calls)
        held.refresh(calls)
        assert f"{mine}:2" in keys(lab) and f"{name}:2" not in keys(lab)
    assert keys(lab) == ([f"{name}:1"] if is_before else [])


def test_a_run_that_passes_over_a_name_leaves_the_key_that_another_run_has_added_at_the_same_moment(lab, calls, other):
    """Both would add the same key, and xapi adds it once."""
    theirs, refused = lock.Held(other, ["a"], "attach"), {}
    lab.before(ADD, theirs.take)
    with lock.held(calls, ["a", "b"], "attach", refused):
        assert list(refused) == ["a"] and keys(lab) == ["a:1", "b:1"]
    theirs.verify(other)


def test_many_locks_take_a_call_each_and_three_for_all(lab, calls):
    """Of 30 LUNs, four calls each took a second of a path with 5 ms."""
    del lab.pool.api.calls[:]
    mine = lock.Held(calls, ["a", "b", "c"], "attach")
    mine.take()
    assert lab.pool.api.calls == ["pool.get_all_records", "host.get_servertime", *[ADD] * 3, "pool.get_all_records"]
    mine.verify(calls)
    assert keys(lab) == ["a:1", "b:1", "c:1"]


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_lock_that_appears_while_several_are_taken_is_seen_whichever_it_is_on(lab, calls, other, name):
    lab.before(ADD, lambda: write_open(lab, f"{name}:1", refreshed=lock._Locks(other).now(), token="t"))
    with pytest.raises(Refused, match=f"has locked {name}: .*of 'eve'"), lock.held(calls, ["a", "b"], "attach"):
        raise AssertionError("two clients are at work")
    assert keys(lab) == []


class Stepped(threading.Thread):
    """A client that takes its locks, one call to the pool at each step; refused, it releases them."""

    def __init__(self, calls, whats):
        super().__init__(daemon=True)
        self._call, self._at_call, self._may_go = calls.call, queue.Queue(), queue.Queue()
        calls.call = self._wait_and_call
        self.mine, self.has_locks, self.bug = lock.Held(calls, whats, "attach"), False, None
        self.start()
        self.has_calls = self._at_call.get(timeout=30)

    def _wait_and_call(self, *words):
        self._at_call.put(True)
        self._may_go.get()
        return self._call(*words)

    def run(self):
        try:
            self.mine.take()
            self.has_locks = True
        except Refused:
            self.mine.release()
        except Exception as bug:  # noqa: BLE001 - the test raises it
            self.bug = bug
        self._at_call.put(False)

    def step(self):
        if self.has_calls:
            self._may_go.put(None)
            self.has_calls = self._at_call.get(timeout=30)


TAKING = 5  #: calls that take two locks


@pytest.mark.parametrize("is_stale", [False, True])
@pytest.mark.parametrize(("ones", "others"), [("ab", "bc"), ("ba", "bc"), ("ab", "cb"), ("ab", "ba")])
def test_of_two_with_a_lock_in_common_at_most_one_goes_on_however_their_calls_mix(lab, ones, others, is_stale):
    """`is_stale`: a killed client has left the lock that both want."""
    mixes = list(itertools.combinations(range(2 * TAKING), TAKING))
    winners = set()
    for turns in mixes if WHOLE else dice(f"{ones} {others} {is_stale}").sample(mixes, 12):
        if is_stale:
            with connect(lab.where()) as calls:
                lock.Held(calls, ["b"], "attach").take()
            lab.later()
        with connect(lab.where()) as one_calls, connect(lab.where()) as other_calls:
            one, other = Stepped(one_calls, ones), Stepped(other_calls, others)
            for turn in range(2 * TAKING):
                (one if turn in turns else other).step()
            for each in (one, other):
                while each.has_calls:
                    each.step()
                each.join(30)
            del one_calls.call, other_calls.call
            assert (one.bug, other.bug) == (None, None)
            assert not (one.has_locks and other.has_locks), turns
            for client, calls, whats in ((one, one_calls, ones), (other, other_calls, others)):
                if client.has_locks:
                    winners.add(client is one)
                    client.mine.verify(calls)
                    assert {key[0] for key in keys(lab)} == set(whats)
                    client.mine.release()
            assert keys(lab) == []
    assert winners == {True, False} or not WHOLE


@pytest.mark.parametrize("calls_made", range(TAKING + 1))
def test_one_killed_while_it_takes_several_leaves_each_lock_free_or_stale(lab, calls, other, calls_made):
    killed = Stepped(calls, "ab")
    for _ in range(calls_made):
        killed.step()
    left = keys(lab)
    assert left == ["a:1", "b:1"][: max(0, calls_made - 2)]
    for what in ("a", "b"):
        mine = lock.Held(other, [what, "c"], "attach")
        if what + ":1" in left:
            with pytest.raises(Refused, match="has locked " + what):
                mine.take()
        else:
            mine.take()
            mine.verify(other)
        mine.release()
        assert keys(lab) == left
    lab.later()
    mine = lock.Held(other, "abc", "attach")
    mine.take()
    mine.verify(other)
    mine.release()
    assert keys(lab) == []
    while killed.has_calls:
        killed.step()
    del calls.call


@pytest.mark.parametrize("count", [1, 99, 200, *([800] if WHOLE else [])])
def test_a_run_with_many_locks_reads_the_pool_for_few_of_its_steps_and_soon_sees_a_broken_lock(calls, count):
    """A reading has all locks, and each LUN has three steps: the sum grew with the square of the LUNs."""
    moment, names = [0.0], [lock_keys.name_for(f"36001405{number:025}") for number in range(count)]
    mine = lock.Held(calls, names, "attach", clock=lambda: moment[0])
    config, read = {}, []
    pool = "OpaqueRef:pool", {"master": "OpaqueRef:master", "other_config": config}
    calls.pool = lambda: read.append(1) or pool
    calls.call = lambda method, _, *key: config.update([key]) if key else "20261122T00:00:00Z"
    mine.take()
    del read[:]
    steps = 3 * count
    for _ in range(steps):  # ten LUNs in parallel, each step of 0.1 s
        moment[0] += 0.01
        mine.verify(calls)
    assert len(read) <= (steps if count < 100 else 40), "for 100 locks or more, not more readings for more locks"

    config.pop(f"{lock_keys.KEY}{names[-1]}:1")
    moment[0] += 1.0
    is_broken(mine, calls)


@pytest.mark.parametrize("is_stale", [False, True])
def test_of_two_that_add_at_the_same_moment_one_goes_on(lab, calls, other, killed, is_stale):
    """xapi adds no key that is there. `is_stale`: both would break the lock of a killed client."""
    if is_stale:
        taken(killed)
        lab.later()
    first = []
    lab.before(ADD, lambda: first.append(taken(other)))
    is_refused(calls)
    first[0].verify(other)
    assert keys(lab) == [f"{WHAT}:{1 + is_stale}"]


def test_an_answer_that_was_lost_is_no_other_client(lab, calls):
    """XenAPI makes the call again, and xapi answers that the key is there."""
    api, real = lab.pool.api, lab.pool.api.call
    lost = []

    def call(method, params, local=False):
        found = real(method, params, local)
        if method == "pool.add_to_other_config" and not lost:
            lost.append(method)
            raise GoneAway()
        return found

    api.call = call
    mine = taken(calls)
    del api.call
    assert lost and api.calls.count("pool.add_to_other_config") == 2
    mine.verify(calls)


def test_it_is_stale_after_30_minutes_and_not_before(lab, calls, other):
    slow = taken(calls)
    lab.later(29)
    is_refused(other)
    lab.later(2)
    mine = taken(other, "discard")
    mine.verify(other)
    assert keys(lab) == [f"{WHAT}:2"]
    with pytest.raises(Refused, match="has broken this run's lock .* belongs to `relvmoiscsi pool discard`"):
        slow.verify(calls)
    slow.release()
    mine.verify(other)


def test_a_run_that_is_alive_is_never_stale(lab, calls, other):
    mine = taken(calls)
    for _ in range(4):
        lab.later(25)
        mine.refresh(calls)
    is_refused(other)
    mine.verify(calls)
    mine.release()
    assert keys(lab) == []


def test_a_thread_refreshes_it_while_the_work_goes_on_also_when_the_pool_was_away(lab, calls, monkeypatch):
    monkeypatch.setattr(lock, "REFRESH_SECONDS", 0.01)
    away = []

    def before(name, _params):
        if name == "host.get_servertime" and len(away) < 3:
            away.append(name)
            raise GoneAway()

    with lock.held(calls, [WHAT], "restore --home") as mine:
        lab.pool.api.before = before
        until(lambda: len(away) >= 3 and any(not key.endswith((":1", ":2")) for key in keys(lab)))
        mine.verify(calls)
    assert keys(lab) == []


def test_an_answer_that_nobody_expects_does_not_end_the_thread(lab, calls, monkeypatch):
    monkeypatch.setattr(lock, "REFRESH_SECONDS", 0.01)
    real, failed = lock._Locks.now, []

    def now(*arguments):
        if len(failed) < 3:
            failed.append(arguments)
            raise TypeError("no date")
        return real(*arguments)

    with lock.held(calls, [WHAT], "restore --home") as mine:
        monkeypatch.setattr(lock._Locks, "now", now)
        until(lambda: len(failed) == 3 and any(not key.endswith((":1", ":2")) for key in keys(lab)))
        mine.verify(calls)


def test_of_the_run_that_refreshes_and_one_that_breaks_it_at_the_same_moment_one_has_it(lab, calls, other):
    slow = taken(calls)
    lab.later()
    lab.before(ADD, lambda: slow.refresh(calls))
    is_refused(other)
    slow.verify(calls)

    lab.later()
    won = []
    lab.before(ADD, lambda: won.append(taken(other)))
    slow.refresh(calls)
    won[0].verify(other)
    is_broken(slow, calls)


def test_one_who_has_seen_a_stale_lock_withdraws_where_another_has_a_new_one(lab, calls, other, killed):
    """The stale one was released meanwhile, and the numbers begin at 1 again."""
    old = taken(killed)
    old.refresh(killed)
    lab.later()
    new = []

    def meanwhile():
        old.release()
        new.append(taken(other))

    lab.before(ADD, meanwhile)
    mine = lock.Held(calls, [WHAT], "discard")
    with pytest.raises(Refused):
        mine.take()
    mine.release()
    new[0].verify(other)
    assert keys(lab) == [f"{WHAT}:1"]


def test_it_is_broken_by_the_command_at_once_with_all_that_its_run_has(lab, calls, other):
    mine = lock.Held(calls, ["a-VM", WHAT], "restore")
    mine.take()
    broken = unlocked(other)
    assert {each.what for each in broken} == {WHAT, "a-VM"} and keys(lab) == []
    is_broken(mine, calls)
    with pytest.raises(Refused, match="Another client has broken this run's lock"):
        mine.refresh(calls)
    assert keys(lab) == []


def test_a_lock_that_is_refreshed_while_it_is_broken_does_not_stay(lab, calls, other):
    mine = taken(calls)
    found = lock.to_break(other, WHAT)
    ref = lab.pool.pool
    text = lab.pool.db.get("pool", ref, "other_config")[f"{lock_keys.KEY}{WHAT}:1"]
    lab.before(
        "pool.remove_from_other_config",
        lambda: lab.pool.db.add_to("pool", ref, "other_config", f"{lock_keys.KEY}{WHAT}:2", text),
    )
    lock.unlock(other, found)
    assert keys(lab) == []
    is_broken(mine, calls)


def test_one_that_somebody_has_spoiled_is_no_free_one_and_can_be_broken(lab, calls):
    lab.pool.db.set("pool", lab.pool.pool, "other_config", {f"{lock_keys.KEY}{WHAT}:7": "no JSON", "mine": "x"})
    lab.later(10000)
    is_refused(calls, "of 'unknown' on 'unknown'")
    unlocked(calls)
    assert lab.pool.db.get("pool", lab.pool.pool, "other_config") == {"mine": "x"}
    taken(calls).release()


def test_a_name_from_the_pool_does_not_reach_the_terminal(lab, calls):
    text = json.dumps({"who": "\x1b[2J", "host": "h", "refreshed": "2026-01-01T00:00:00Z"})
    lab.pool.db.set("pool", lab.pool.pool, "other_config", {f"{lock_keys.KEY}{WHAT}:1": text})
    assert "\x1b" not in lock.read(calls)[WHAT].text()


def test_the_lock_of_a_run_to_which_the_pool_is_lost_stays_until_it_is_stale(lab, calls, other):
    with pytest.raises(PoolGone), lock.held(calls, [WHAT], "attach"):
        lab.pool.api.before = gone
        calls.records("SR")
    lab.pool.api.before = None
    is_refused(other)
    lab.later()
    taken(other)


def test_a_run_removes_a_bounded_number_of_stale_locks_and_its_own(lab, calls):
    """A vm-operator can write any number of open keys, and each removal is a call."""
    for number in range(150):
        for what in (WHAT, f"lun-{number}"):
            write_open(lab, f"{what}:{number + 1}", refreshed="2001-01-01T00:00:00Z", token="t")
    mine = taken(calls)
    assert len(open_keys(lab)) == 200
    mine.release()
    assert keys(lab) == [] and len(open_keys(lab)) == 100


def test_stale_locks_of_others_go_when_a_run_ends_and_no_others(lab, calls, other, killed):
    """Of a copy that nobody works with any more, say."""
    lock.Held(killed, ["gone"], "discard").take()
    lab.later()
    lock.Held(killed, ["in-use"], "attach").take()
    with lock.held(calls, [WHAT], "restore"):
        assert keys(lab) == [f"{WHAT}:1", "gone:1", "in-use:1"]
    assert keys(lab) == ["in-use:1"]


@pytest.mark.parametrize(
    ("names", "method", "states"),
    [
        (["Production"], "SR.introduce", ["resignatured"]),
        (["Production", "Testing"], "Async.SR.create", ["resignatured", "clean"]),
    ],
)
def test_an_attach_whose_lock_is_broken_goes_on_with_nothing(lab, world, other, names, method, states):
    """The call that is on its way is done. No other LUN is resignatured, and no host plugs."""
    clones = [lab.clone(name) for name in names]
    lab.before(method, lambda: [unlocked(other, each) for each in lock.read(other)])

    done = lab.attach(*clones)

    assert all(each.status == attach.FAILED and "has broken this run's lock" in str(each.error) for each in done)
    assert [world.state(clone) for clone in clones] == states
    assert "Async.PBD.plug" not in lab.pool.api.calls and "PBD.plug" not in lab.pool.api.calls


# --- by roles


def test_each_role_locks_where_it_may_and_respects_the_other(lab, calls, vm_admin):
    mine = taken(calls)
    assert (keys(lab), open_keys(lab)) == ([f"{WHAT}:1"], [])
    is_refused(vm_admin)
    mine.release()
    of_admin = taken(vm_admin)
    assert (keys(lab), open_keys(lab)) == ([], [f"{WHAT}:1"])
    is_refused(calls)
    of_admin.verify(vm_admin)
    of_admin.refresh(vm_admin)
    of_admin.release()
    assert keys(lab) == open_keys(lab) == []


def test_a_vm_operator_takes_no_lock_from_a_pool_operator(lab, calls, other):
    """With its token, which all may read, the highest number, and a time that never comes."""
    mine = taken(calls)
    (text,) = [
        text
        for key, text in lab.pool.db.get("pool", lab.pool.pool, "other_config").items()
        if key.startswith(lock_keys.KEY)
    ]
    write_open(lab, f"{WHAT}:2", refreshed=lock._Locks(calls).now(), token="t")
    write_open(lab, f"{WHAT}:99999999999999999", refreshed="2999-01-01T00:00:00Z", token=json.loads(text)["token"])
    mine.verify(calls)
    mine.refresh(calls)
    is_refused(other)
    mine.release()
    assert keys(lab) == [] and open_keys(lab) == [f"{WHAT}:2"]
    is_refused(other, "of 'eve' on 'h'")


def test_of_any_number_of_open_keys_a_step_parses_one(lab, calls, monkeypatch):
    """450000 of them took 27 seconds, before each step of a run."""
    mine = taken(calls)
    config = lab.pool.db.get("pool", lab.pool.pool, "other_config")
    forged = {f"{lock_keys.OPEN_KEY}{what}:{number}": "{}" for what in (WHAT, "bait") for number in range(1, 2000)}
    lab.pool.db.set("pool", lab.pool.pool, "other_config", {**config, **forged})
    parsed, real = [], lock_keys.lock_of
    monkeypatch.setattr(lock, "lock_of", lambda key, text: parsed.append(key.text) or real(key, text))
    mine.verify(calls)
    assert parsed == [f"{lock_keys.KEY}{WHAT}:1", f"{lock_keys.OPEN_KEY}{WHAT}:1999"]


@pytest.mark.parametrize("at", ["bait:1", f"{WHAT}:1", f"{WHAT}:9"])
def test_no_open_key_ends_the_refreshes_of_a_guarded_lock(lab, calls, other, at):
    """A vm-operator gives an old time to a key with the token of the run, and has a key on the name."""
    mine = taken(calls)
    write_open(lab, at, refreshed="1970-01-01T00:00:00Z", token=mine._values["token"])
    write_open(lab, f"{WHAT}:2", refreshed="no time, so never stale", token="t")
    for _ in range(3):
        lab.later(25)
        mine.refresh(calls)
        mine.verify(calls)
    is_refused(other)


def test_a_key_that_a_failed_refresh_has_left_ends_no_lock(lab, calls):
    """It grows stale beside the fresh key, and the next refresh removes it."""
    mine = taken(calls)
    with lab.cut("pool.remove_from_other_config"), pytest.raises(PoolGone):
        mine.refresh(calls)
    assert keys(lab) == [f"{WHAT}:1", f"{WHAT}:2"]
    lab.later(25)
    mine.refresh(calls)
    assert keys(lab) == [f"{WHAT}:3"]


def test_of_any_number_of_keys_with_the_token_of_a_run_its_end_removes_100(lab, calls):
    mine = taken(calls)
    for number in range(150):
        write_open(lab, f"lun-{number}:1", refreshed="1970-01-01T00:00:00Z", token=mine._values["token"])
        write_open(lab, f"{WHAT}:{number + 1}", refreshed="1970-01-01T00:00:00Z", token=mine._values["token"])
    mine.release()
    assert keys(lab) == [] and len(open_keys(lab)) == 200


def test_a_run_with_open_keys_removes_the_keys_that_it_has_written(lab, vm_admin):
    """And no others with its token: there the lock of a vm-admin is public."""
    mine = taken(vm_admin)
    now = lock._Locks(vm_admin).now()
    for number in range(10, 160):
        write_open(lab, f"{WHAT}:{number}", refreshed=now, token=mine._values["token"])
    mine.release()
    assert f"{WHAT}:1" not in open_keys(lab) and len(open_keys(lab)) == 150


@pytest.mark.parametrize("moment", ["2999-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1970-01-01T00:00:00Z"])
def test_an_absurd_time_is_stale(lab, calls, moment):
    write_open(lab, f"{WHAT}:1", refreshed=moment, token="t")
    taken(calls).release()
    assert open_keys(lab) == []


def test_a_run_that_begins_removes_no_fresh_key_of_another_run_beside_a_stale_one(lab, calls, vm_admin):
    mine = taken(vm_admin)
    write_open(lab, f"{WHAT}:7", refreshed="2999-01-01T00:00:00Z", token="t")
    taken(calls)
    assert open_keys(lab) == [f"{WHAT}:1"]
    is_broken(mine, vm_admin)


@pytest.mark.parametrize("moment", ["2999-01-01T00:00:00Z", "1970-01-01T00:00:00Z"])
def test_an_absurd_time_between_the_two_readings_of_a_run_is_stale_too(lab, calls, other, moment):
    lab.before(ADD, lambda: write_open(lab, f"{WHAT}:1", refreshed=moment, token="t"))
    mine = taken(calls)
    mine.verify(calls)
    is_refused(other)
    mine.release()
    assert keys(lab) == open_keys(lab) == []


@pytest.mark.parametrize("is_other_slow", [False, True])
def test_a_client_that_takes_30_minutes_to_add_its_key_withdraws_for_any_key(lab, calls, other, is_other_slow):
    """Its key is stale from the start. Of two such clients with keys of two kinds, none would find its lock broken."""
    then = lock._Locks(other).now()

    def meanwhile():
        lab.later()
        now = then if is_other_slow else lock._Locks(other).now()
        write_open(lab, f"{WHAT}:1", refreshed=now, token="t")

    lab.before(ADD, meanwhile)
    is_refused(calls)


def test_the_largest_number_keeps_nobody_from_seeing_the_next_one(lab, vm_admin, calls):
    """A number that no client reads would be a lock that nobody sees."""
    write_open(lab, f"{WHAT}:{10**18 - 1}", refreshed="2999-01-01T00:00:00Z", token="t")
    is_refused(vm_admin, f"`relvmoiscsi pool unlock {WHAT}`")
    unlocked(calls)
    taken(vm_admin).release()


def test_a_vm_admin_goes_on_beside_a_stale_lock_that_it_may_not_remove(lab, calls, vm_admin):
    slow = taken(calls)
    lab.later()
    mine = taken(vm_admin)
    assert keys(lab) == [f"{WHAT}:1"]
    mine.verify(vm_admin)
    is_broken(slow, calls)
    with pytest.raises(Refused):
        slow.refresh(calls)
    mine.release()
    assert keys(lab) == [f"{WHAT}:1"] and open_keys(lab) == []


def test_of_a_late_refresh_and_a_vm_admin_at_the_same_moment_no_two_go_on(lab, calls, vm_admin):
    slow = taken(calls)
    lab.later()
    won = []
    lab.before(ADD, lambda: won.append(taken(vm_admin)))
    with pytest.raises(Refused, match="has broken this run's lock"):
        slow.refresh(calls)
    assert len(won) == 1
    is_broken(slow, calls)


def test_of_two_kinds_of_clients_at_the_same_moment_at_most_one_goes_on(lab, calls, vm_admin):
    won = []
    lab.before(ADD, lambda: won.append(taken(vm_admin)))
    is_refused(calls)
    won[0].verify(vm_admin) if keys(lab) == [] else is_broken(won[0], vm_admin)


@pytest.mark.parametrize("text", ["\u00b2", "9" * 5000, "[" * 200000, '{"a": ' + "9" * 5000 + "}", "null", "[]"])
def test_no_text_of_a_key_ends_a_command_with_a_bug(lab, calls, text):
    config = {f"{begin}{WHAT}:1": text for begin in (lock_keys.KEY, lock_keys.OPEN_KEY)}
    lab.pool.db.set("pool", lab.pool.pool, "other_config", {**config, "mine": "x", f"{lock_keys.KEY}another:1": text})
    is_refused(calls)
    unlocked(calls)
    assert set(lab.pool.db.get("pool", lab.pool.pool, "other_config")) == {"mine", f"{lock_keys.KEY}another:1"}


@pytest.mark.parametrize(
    "end", ["\u00b2", "9" * 19, "", "01", "0", "1\n", "x:1", *(each * 250000 for each in '"\\\n0x')]
)
@pytest.mark.parametrize("begin", lock_keys.BEGINS)
def test_a_key_that_no_run_writes_is_no_lock_and_stays(lab, calls, begin, end):
    """xapi takes no call that removes a key of 200 KB of quotation marks: as JSON, it is too long."""
    lab.pool.db.set("pool", lab.pool.pool, "other_config", {f"{begin}{WHAT}:{end}": "{}"})
    run = lock.Held(calls, [WHAT], "attach")
    run.take()
    assert [each.key for each in unlocked(calls)] == [f"{lock_keys.KEY}{WHAT}:1"]
    assert set(lab.pool.db.get("pool", lab.pool.pool, "other_config")) == {f"{begin}{WHAT}:{end}"}


def test_the_token_of_a_run_in_a_forged_key_breaks_no_other_lock(lab, calls, other):
    mine, bystander = taken(calls), lock.Held(other, ["b"], "clone")
    bystander.take()
    write_open(lab, "b:1", refreshed="2999-01-01T00:00:00Z", token=mine._values["token"])
    unlocked(calls)
    bystander.verify(other)
    assert keys(lab) == ["b:1"]


def test_a_bait_with_the_token_of_a_guarded_lock_breaks_the_bait_alone(lab, calls, other):
    """A vm-operator reads the token, and asks a pool-operator to break a lock that is in the way."""
    mine = taken(other)
    write_open(lab, "bait:1", refreshed=lock._Locks(calls).now(), token=mine._values["token"])
    assert [each.what for each in lock.to_break(calls, "bait")] == ["bait"]
    unlocked(calls, "bait")
    mine.verify(other)
    assert keys(lab) == [f"{WHAT}:1"] and open_keys(lab) == []


def test_only_a_lock_that_was_told_goes_with_another(lab, calls, vm_admin):
    """A vm-operator gives the lock of a vm-admin the token of the bait, after the question."""
    write_open(lab, "bait:1", refreshed=lock._Locks(calls).now(), token="t")
    told = lock.to_break(calls, "bait")
    mine = taken(vm_admin)
    write_open(lab, f"{WHAT}:0", refreshed="2999-01-01T00:00:00Z", token="t")
    lock.unlock(calls, told)
    mine.verify(vm_admin)
    assert open_keys(lab) == [f"{WHAT}:0", f"{WHAT}:1"]


def test_a_run_that_takes_the_lock_after_the_question_keeps_it(lab, calls, other):
    """The client of the question was not dead: its run has ended, and the run of another client has begun."""
    first = taken(calls)
    write_open(lab, f"{WHAT}:5", refreshed=lock._Locks(calls).now(), token="t")
    told = lock.to_break(other, WHAT)
    first.release()
    lab.pool.db.remove_from("pool", lab.pool.pool, "other_config", f"{lock_keys.OPEN_KEY}{WHAT}:5")
    second = taken(calls, "clone")

    assert lock.unlock(other, told) == []
    second.verify(calls)


def test_of_a_run_with_open_keys_all_go(lab, calls, vm_admin):
    mine = lock.Held(vm_admin, ["a-VM", WHAT], "restore")
    mine.take()
    assert [each.what for each in unlocked(calls)] == [WHAT, "a-VM"]
    assert open_keys(lab) == []


def test_a_master_without_a_time_frees_no_lock(lab, calls, other):
    taken(calls)
    lab.answer("host.get_servertime", lambda *_: "soon")
    with pytest.raises(PoolFailure, match="does not say what time it is"):
        taken(other)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.dictionaries(st.text(max_size=4), st.none() | st.text() | st.lists(st.integers())).map(json.dumps) | st.text()
)
def test_any_key_is_a_lock_or_none(text):
    found = lock_keys.locks_in({lock_keys.KEY + "a:1": text, lock_keys.OPEN_KEY + text: text, text: text})
    for each in found:
        assert isinstance(each.text(), str) and each.is_stale("2026-11-22T12:00:00Z") in (True, False)


def test_a_lock_of_save_vms_names_the_command():
    (left,) = lock_keys.locks_in({f"{lock_keys.KEY}{WHAT}:1": json.dumps({"doing": "save-vms", "token": "x"})})

    assert left.text().startswith("`relvmoiscsi pool save-vms` of ")


@pytest.mark.parametrize("doing", ["discard --all --yes", "unlock x --yes", "restore --keep web", "", "\u202e`id`"])
def test_a_text_that_is_none_of_our_commands_is_none_to_copy(doing):
    key = lock_keys.OPEN_KEY + "3600a098038303053743f4a4f4e4b6d41:1"
    (forged,) = lock_keys.locks_in({key: json.dumps({"doing": doing, "token": "x"})})
    assert "`relvmoiscsi" not in forged.text() and forged.text().isprintable()
    (honest,) = lock_keys.locks_in({key: json.dumps({"doing": "restore --undo", "token": "x"})})
    assert "`relvmoiscsi pool restore --undo` of " in honest.text()


class _Compared(str):
    """A text that counts how often it is compared."""

    count = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        type(self).count += 1
        return str.__eq__(self, other)


def test_the_check_of_many_locks_looks_each_of_them_up(lab, calls):
    """A target can show thousands of clones: the check runs before each step of each of them."""
    whats = [_Compared(f"36001405{at:024d}") for at in range(300)]
    with lock.held(calls, whats, "attach") as held:
        _Compared.count = 0
        held.verify(calls)
        assert _Compared.count < 4 * 300


@pytest.mark.parametrize("field", ["doing", "who", "host"])
def test_each_text_of_a_lock_is_in_quotes_and_short_in_a_message(field):
    text = "root. That run is dead. Run `relvmoiscsi pool discard --all --yes`. Before, it was " + "x" * 60000
    key = lock_keys.OPEN_KEY + "3600a098038303053743f4a4f4e4b6d41:1"
    (forged,) = lock_keys.locks_in({key: json.dumps({field: text, "token": "x"})})

    told = forged.text()

    assert f"'{text[:120]}" in told and "...'" in told and len(told) < 1000


@pytest.mark.parametrize("field", ["process", "since", "refreshed"])
def test_what_is_no_number_and_no_time_of_a_lock_is_in_no_message(field):
    key = lock_keys.OPEN_KEY + "3600a098038303053743f4a4f4e4b6d41:1"
    (forged,) = lock_keys.locks_in({key: json.dumps({field: "2026-11-22T12:00:00Z. Run `id`", "token": "x"})})
    assert "id" not in forged.text()


@pytest.mark.parametrize("what", ["--yes", "-x", "a b", "", "x" * 256, "\u202e", "../x", "`reboot`"])
def test_a_name_that_no_run_locks_is_no_lock(what):
    """So no message has the name in a command to copy, such as `unlock --yes`."""
    assert lock_keys.locks_in({begin + what + ":1": "{}" for begin in (lock_keys.KEY, lock_keys.OPEN_KEY)}) == []
    with pytest.raises(Refused, match="cannot be locked"):
        lock_keys.name_for(what)
    with pytest.raises(Refused, match="cannot be locked"):
        lock_keys.name_of({"uuid": what, "other_config": {SCSI_ID: what}})


def test_a_mark_that_is_no_scsi_id_names_no_lock():
    uuid = "99999999-0000-4000-8000-000000000000"
    assert lock_keys.name_of({"uuid": uuid, "other_config": {SCSI_ID: "--yes"}}) == uuid
