# SPDX-License-Identifier: LGPL-2.1-only
"""Work on a device is given up at the deadline unless it writes; then it is waited for."""

import ctypes
import errno
import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from glob import glob

import pytest

from kit.clock import Clock, over_after
from relvmoiscsi.deadline import NO_DEADLINE, NOT_BEGUN, Deadline, OutOfTime
from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.host import own_process as child_module
from relvmoiscsi.host.disk.hiding import hidden, hidden_adapters, is_switch_on
from relvmoiscsi.host.files import LEAST_OPEN
from relvmoiscsi.host.locks.lun_lock import lun_lock
from relvmoiscsi.host.locks.lvm_locks import lvm_locks
from relvmoiscsi.host.locks.sm_locks import (
    FAIRLOCK,
    LVM_LOCK,
    lvm_lock,
)
from relvmoiscsi.host.own_process import ask_parent, in_call, run_in_child, run_parallel, still_there
from relvmoiscsi.host.terminated import Terminated, heeded
from relvmoiscsi.host.this_host import Host

pytestmark = pytest.mark.processes

MAYBE_BEGUN = "The LUN may hold an unfinished resignature. The same call again finishes it."


def for_ever():
    """What a read from a disk is that does not answer."""
    reading, writing = os.pipe()
    os.read(reading, 1)
    os.close(writing)


def test_work_is_done_in_another_process_which_has_ended_and_what_that_prints_is_no_answer_to_xapi(capfd):
    before = os.listdir("/proc/self/fd")

    def work(_begin):
        os.write(1, b"stray")
        os.write(2, b"stray")
        return f"\u00e9\udcff {os.getpid()}"

    what, other = run_in_child(work, NO_DEADLINE, "it was done").split()

    assert what == "\u00e9\udcff" and int(other) != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(int(other), 0)
    assert capfd.readouterr() == ("", "")
    assert os.listdir("/proc/self/fd") == before, "no descriptor stays"


def raises(error):
    raise error


REFUSED = Refused("It is in use.", "InvalidDev").in_state("Nothing was written.")


@pytest.mark.parametrize(
    "work, error, message",
    [
        (lambda begin: raises(REFUSED), RelvmoiscsiError, "It is in use. Nothing was written."),
        (lambda begin: begin() or raises(Refused("Something else.")), RelvmoiscsiError, MAYBE_BEGUN),
        (lambda begin: raises(KeyError("flowers")), RuntimeError, "KeyError.*flowers"),  # a bug is a bug here as well
        (lambda begin: os.kill(os.getpid(), signal.SIGKILL), Refused, "ended from outside. .*wrote nothing to the LUN"),
        (lambda begin: begin() or os.kill(os.getpid(), signal.SIGKILL), Refused, "from outside. .*" + MAYBE_BEGUN),
        (lambda begin: raises(MemoryError()), Refused, "more memory .*wrote nothing to the LUN.* an SR needs less."),
        (lambda begin: begin() or raises(MemoryError()), Refused, "more memory .*" + MAYBE_BEGUN),
    ],
)
def test_how_work_fails_and_what_state_the_lun_is_in_comes_to_the_call(work, error, message):
    with pytest.raises(error, match=message) as caught:
        run_in_child(work, Deadline(600, state=NOT_BEGUN), "it was done")
    if "in use" in message:
        assert (caught.value.sm_key, caught.value.disk_state) == ("InvalidDev", "Nothing was written.")


def test_a_child_that_fails_before_its_work_says_why(monkeypatch):
    """Such a child was told as one that was ended from outside."""
    monkeypatch.setitem(child_module.flock.inherited_lock_fds, 1 << 20, False)  # not open
    with pytest.raises(RuntimeError, match="Bad file descriptor"):
        run_in_child(lambda begin: "", NO_DEADLINE, "it was done")


@pytest.mark.parametrize("runs", [run_in_child, lambda work, *more: run_parallel([work], *more)])
def test_a_host_that_starts_no_process_is_told_with_the_state_of_the_lun(monkeypatch, runs):
    def fork():
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(Refused, match="starts no thread or process .*: Resource temporarily unavailable") as caught:
        runs(for_ever, Deadline(5, state=NOT_BEGUN), "the LUN was read")
    assert (caught.value.disk_state, "TasksMax" in caught.value.advice) == (NOT_BEGUN, True)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_no_write_begins_after_the_deadline(tmp_path):
    written = tmp_path / "written"

    def work(begin):
        try:
            begin()
        except Exception:  # as engines do that would take back what they have not done
            written.write_text("in a handler")
            raise
        written.write_text("in the work")
        return "done"

    # The clock is looked at when the deadline is made, before and after the question is read, and for the answer.
    with pytest.raises(OutOfTime, match="over before the first write") as caught:
        run_in_child(work, Deadline(50, Clock(0, 0, 0, 51), NOT_BEGUN), "the LUN was read")

    assert caught.value.disk_state == NOT_BEGUN
    assert not written.exists()


def test_what_began_before_the_deadline_goes_on_to_its_end():
    deadline = Deadline(50, Clock(0, 0, 0, 49, 2, 2))

    assert run_in_child(lambda begin: begin() or "done", deadline, "the LUN was read") == "done"


# --- what an answer costs the call, whatever a LUN has put into it


@pytest.fixture
def reads(monkeypatch):
    """The sizes of what this process reads."""
    sizes, real = [], os.read

    def read(descriptor, size):
        data = real(descriptor, size)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(os, "read", read)
    return sizes


def test_a_long_answer_is_read_in_blocks(reads):
    answer = run_in_child(lambda begin: "x" * 200000, NO_DEADLINE, "it was done", only_reads=True)

    assert answer == "x" * 200000
    assert len(reads) < 1000


def test_an_answer_that_is_not_whole_at_the_deadline_is_given_up():
    """The deadline counts while bytes come, too."""
    with pytest.raises(OutOfTime):
        run_in_child(lambda begin: "x" * 1000000, Deadline(50, Clock(0, 0, 60)), "it was done", only_reads=True)


def test_an_answer_longer_than_any_of_an_sr_is_refused_by_the_child(reads, monkeypatch):
    monkeypatch.setattr(child_module, "_MOST_ANSWER_BYTES", 1000, raising=False)

    with pytest.raises(RelvmoiscsiError, match="found 100013 bytes, at most 1000 are read"):
        run_in_child(lambda begin: "x" * 100000, NO_DEADLINE, "it was done", only_reads=True)

    assert sum(reads) < 1000


@pytest.mark.parametrize(
    "work",
    [
        lambda begin: raises(Refused("x" * 100000).advising("y" * 100000).in_state("z" * 100000)),
        lambda begin: raises(KeyError("x" * 100000)),
    ],
)
def test_a_long_error_is_cut_before_the_call_reads_it(reads, work):
    with pytest.raises((RelvmoiscsiError, RuntimeError)):
        run_in_child(work, NO_DEADLINE, "it was done", only_reads=True)

    assert sum(reads) < 30000


# --- what memory a child may take


def memory_of_the_work():
    """What the kernel would say of this process: its limit, and its turn when the memory of the host runs out."""
    with open("/proc/self/oom_score_adj") as adjustment:
        return resource.getrlimit(resource.RLIMIT_DATA), int(adjustment.read())


@pytest.fixture
def little(monkeypatch):
    """A limit that this test takes only once."""
    monkeypatch.setattr(child_module, "MOST_MEMORY_BYTES", 96 << 20)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside others"])
def test_work_that_takes_more_memory_than_the_largest_sr_fails_alone(little, beside):
    def work(_begin=None):
        # each too large for the heap: there, what the process of the tests has freed counts for its child already
        return str(len([bytearray(64 << 20) for _ in range(4)]))

    if beside:
        outcomes = run_parallel([work, str], NO_DEADLINE, "it was done")
        assert isinstance(outcomes[0], RelvmoiscsiError) and outcomes[1] == ""
        assert "needs more memory than this host gives it, which is 96 MiB at most." in outcomes[0].message
    else:
        with pytest.raises(RelvmoiscsiError, match="needs more memory than this host gives it"):
            run_in_child(work, NO_DEADLINE, "it was done")


def test_the_limit_counts_from_the_memory_of_the_call_and_not_the_stacks_of_threads_that_read_a_disk(little):
    """A program that has taken more than the limit can look at a LUN, as a LUN is read: by 31 other threads."""
    own = bytearray(96 << 20)

    def work(_begin):
        hear, tell = os.pipe()
        threads = [threading.Thread(target=os.read, args=(hear, 1)) for _ in range(31)]
        for thread in threads:
            thread.start()
        taken = len(bytearray(48 << 20))
        os.write(tell, bytes(31))
        return taken

    assert run_in_child(work, NO_DEADLINE, "it was done") == len(own) // 2


def test_the_kernel_ends_a_child_before_any_program_of_the_host():
    limits, turn = memory_of_the_work()

    (_soft, hard), turn_of_child = run_in_child(lambda begin: memory_of_the_work(), NO_DEADLINE, "it was done")

    assert turn < turn_of_child == 1000
    assert (limits, turn) == memory_of_the_work() and hard == limits[1]


def test_a_lower_limit_of_the_host_stays():
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    lower = 700 << 20
    resource.setrlimit(resource.RLIMIT_DATA, (lower, hard))
    try:
        (found, _hard), _turn = run_in_child(lambda begin: memory_of_the_work(), NO_DEADLINE, "it was done")
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    assert found <= lower


# --- a child that no signal ends, as one in an open() of a disk that does not answer


@pytest.fixture
def stuck(monkeypatch):
    """The children that were given up; they end with the test."""
    pids = []
    monkeypatch.setattr(child_module._Child, "kill", lambda child: pids.append(child.pid))
    monkeypatch.setattr(child_module, "_REAP_MILLISECONDS", 20)
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert still_there() == []


def give_one_up():
    with pytest.raises(OutOfTime):
        run_in_child(lambda begin: for_ever() or "", Deadline(0.05), "the LUN was read")


def test_a_child_that_somebody_else_takes_note_of_has_ended():
    usual = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # then the kernel does
    try:
        assert run_in_child(lambda begin: "done", NO_DEADLINE, "it was done") == "done"
        assert still_there() == []
    finally:
        signal.signal(signal.SIGCHLD, usual)


def test_who_was_given_up_is_known_until_it_has_ended(stuck):
    give_one_up()
    assert still_there() == stuck

    os.kill(stuck[0], signal.SIGKILL)
    os.waitid(os.P_PID, stuck[0], os.WEXITED | os.WNOWAIT)
    assert still_there() == []
    stuck.clear()


CLONE = "36001405b8f1d4c2a3e5f60718293a4b5"
VG = "VG_XenStorage-old"
#: as SM's flock.py locks a file, and as LVM does
OF_SM_AND_LVM = (("lockf", LVM_LOCK), ("flock", "lvm/V_" + VG))
LOCK_OF_LUN = os.path.join("run/relvmoiscsi/locks", CLONE)
ALL = (*OF_SM_AND_LVM, ("flock", LOCK_OF_LUN))


def is_free(how, path):
    """Can another process take the lock?"""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            with open(str(path), "a+", encoding="ascii") as file:
                getattr(fcntl, how)(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


@pytest.fixture
def root(tmp_path):
    """Of a host with LVM."""
    (tmp_path / "lvm").mkdir()
    return tmp_path


def free(root, names=OF_SM_AND_LVM):
    """Which of these locks another process could take."""
    return [is_free(how, root / name) for how, name in names]


@contextmanager
def both_locks(root):
    """What work in a child asks for where nobody has taken it."""
    with lvm_lock(Host(root)), lvm_locks([VG], root + "/lvm"):
        yield


@contextmanager
def guarded(root):
    """As a call holds a LUN."""
    with lun_lock(CLONE, Host(str(root))), hidden(CLONE, host=Host(str(root))):
        yield


@contextmanager
def all_locks(root):
    """As a call holds them while it scans, and those of LVM."""
    with guarded(root), hidden_adapters(["host1"], [], Host(str(root))), both_locks(str(root)):
        yield


def test_who_was_given_up_keeps_no_lock(root, fairlock, stuck):
    copies = [(how, f"copy{number}") for number, (how, _) in enumerate(ALL)]
    with all_locks(root):
        give_one_up()
        for (_, name), (_, copy) in zip(ALL, copies):
            os.link(str(root / name), str(root / copy))  # a file may go with its lock, but for whoever waits for it
        assert not any(free(root, copies))

    assert all(free(root, copies))
    assert fairlock.readline() == b"free\n"


# As misc/fairlock: who is greeted has the lock until the connection ends.
FAIRLOCK_SERVER = """
import socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
    server.bind(sys.argv[1])
    server.listen(1)
    print("ready", flush=True)
    connection = server.accept()[0]
    connection.sendall(b"You have the lock")
    try:
        while connection.recv(100):
            pass
    except ConnectionResetError:
        pass  # a client that was killed
    print("free", flush=True)
"""


@pytest.fixture
def fairlock(tmp_path):
    """The lines that the server prints."""
    path = tmp_path / FAIRLOCK
    path.parent.mkdir(parents=True)
    argv = [sys.executable, "-c", FAIRLOCK_SERVER, str(path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
        assert server.stdout.readline() == b"ready\n"
        yield server.stdout
        server.kill()


# --- a call that is killed, which undoes nothing


@pytest.fixture
def kill_during():
    """Runs a call, and kills it when its child says that it hangs; the child ends with the test."""
    hear, tell = os.pipe()
    hanging = []

    def hang():
        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # in the kernel the end of its parent does not end it
        os.write(tell, str(os.getpid()).encode("ascii"))
        for_ever()
        return "never"

    def kill(call):
        pid = os.fork()
        if not pid:
            call(hang)
        hanging.append(int(os.read(hear, 20)))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    yield kill
    for pid in hanging:
        os.kill(pid, signal.SIGKILL)
    os.close(hear)
    os.close(tell)


def test_the_locks_of_a_call_that_was_killed_are_free_whatever_hangs(root, fairlock, kill_during):
    def call(hang):
        with all_locks(root):
            run_parallel([hang], NO_DEADLINE, "an adapter had been scanned")

    kill_during(call)

    assert fairlock.readline() == b"free\n" and all(free(root, ALL))
    assert not is_switch_on(CLONE, Host(str(root)))
    with hidden(CLONE, host=Host(str(root))):
        pass


@pytest.mark.parametrize("has_all", [True, False])
def test_a_write_that_hangs_when_its_call_is_killed_keeps_what_guards_the_lun_alone(
    root, fairlock, kill_during, has_all
):
    """`has_all`: the call had the other locks, too, as after a scan; else the one that writes has taken them."""

    def write(begin, hang):
        begin()
        if has_all:
            return hang()
        with in_call(both_locks, str(root)):
            return hang()

    def call(hang):
        with (all_locks if has_all else guarded)(root):
            run_in_child(lambda begin: write(begin, hang), NO_DEADLINE, "the LUN was read", calls=[both_locks])

    kill_during(call)

    assert fairlock.readline() == b"free\n"
    switch = ("flock", "run/relvmoiscsi/hide/" + CLONE)
    assert free(root, (*ALL, switch)) == [True, True, False, False]


def test_locks_that_work_has_asked_for_are_free_when_it_is_done_with_them_and_their_files_gone(root, fairlock):
    def work(begin):
        begin()
        for _ in range(2):  # an unfinished run is settled first
            with in_call(both_locks, str(root)):
                assert not any(free(root))
            assert is_free("lockf", root / LVM_LOCK)
            assert not (root / "lvm" / ("V_" + VG)).exists()
            shutil.rmtree(str((root / FAIRLOCK).parent), ignore_errors=True)  # its server serves one
        return "done"

    assert run_in_child(work, NO_DEADLINE, "the LUN was read", calls=[both_locks]) == "done"
    assert fairlock.readline() == b"free\n"


def open_files(_begin=None):
    """Of this process, which has nothing else of the directory open."""
    return "\n".join(os.readlink(path) for path in glob("/proc/self/fd/*") if os.path.islink(path))


def test_work_that_only_reads_has_no_locks_and_work_that_writes_has_what_guards_the_lun(root, fairlock):
    """Its lock and the switch that hides it: a write that hangs may come to pass when the call is gone."""
    with all_locks(root):
        writing = run_in_child(open_files, NO_DEADLINE, "it was done")
        reading = run_in_child(open_files, NO_DEADLINE, "it was done", only_reads=True)
        (beside,) = run_parallel([open_files], NO_DEADLINE, "it was done")

    assert [text.count(str(root)) for text in (writing, reading, beside)] == [2, 0, 0]
    assert LOCK_OF_LUN in writing and "run/relvmoiscsi/switch-" in writing
    assert writing.count("socket:") == reading.count("socket:"), "the Fairlock"

    files = [os.open(str(root), os.O_RDONLY) for _ in range(20)]  # they have the numbers of locks that have ended
    (beside,) = run_parallel([open_files], NO_DEADLINE, "it was done")
    assert beside.count(str(root)) == len(files), "closed for nobody"
    for descriptor in files:
        os.close(descriptor)


def terminate_parent():
    os.kill(os.getppid(), signal.SIGTERM)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside others"])
def test_what_has_written_nothing_ends_with_a_call_that_is_terminated(tmp_path, beside):
    def work(_begin=None):
        (tmp_path / str(os.getpid())).touch()
        terminate_parent()
        for_ever()
        return "never"

    with pytest.raises(Terminated), heeded():
        if beside:
            run_parallel([work], NO_DEADLINE, "it was done")
        else:
            run_in_child(work, NO_DEADLINE, "it was done")

    (child,) = tmp_path.iterdir()
    with pytest.raises(ProcessLookupError):
        os.kill(int(child.name), 0)


def test_the_locks_of_work_that_writes_are_those_of_the_call_for_whoever_waits(root):
    def work(begin):
        with in_call(both_locks, str(root)):
            begin()
            with pytest.raises(Refused) as caught, lvm_lock(Host(str(root)), timeout=0):
                pytest.fail("taken twice")
            return str(caught.value)

    said = run_in_child(work, NO_DEADLINE, "it was done", calls=[both_locks])
    assert "is held by another run of relvmoiscsi" in said
    with in_call(both_locks, str(root)):  # outside of a child they are taken where they are asked for
        assert not is_free("lockf", root / LVM_LOCK)
    assert is_free("lockf", root / LVM_LOCK)


def test_a_lock_that_is_not_to_be_had_is_the_failure_of_the_work():
    @contextmanager
    def taken(what):
        raise Refused(f"The lock {what} is held.", "SRInUse").in_state("Nothing was changed.")
        yield

    def work(_begin):
        with in_call(taken, "of LVM"):
            return "never"

    with pytest.raises(RelvmoiscsiError, match="The lock of LVM is held. Nothing was changed.") as caught:
        run_in_child(work, NO_DEADLINE, "it was done", calls=[taken])
    assert caught.value.sm_key == "SRInUse"


def test_a_question_of_the_work_is_answered_by_the_call_and_not_with_the_locks_of_the_work(root):
    """A question has no end, as locks have."""
    asked = []

    def verify(name, *more):
        asked.append((os.getpid(), name, *more))
        if name != "free":
            raise NotFound(f"{name} is unknown.", "SRInUse").advising("Say another name.").in_state("Nothing was read.")

    def work(_begin):
        ask_parent(verify, "free", 1)
        with in_call(both_locks, str(root)):
            ask_parent(verify, "free", ["a list"])
            assert not any(free(root))
        ask_parent(verify, "nobody")

    with pytest.raises(RelvmoiscsiError) as caught:
        run_in_child(work, NO_DEADLINE, "it was done", calls=[both_locks, verify])

    assert str(caught.value) == "nobody is unknown. Nothing was read. Say another name."
    assert caught.value.sm_key == "SRInUse"
    assert asked == [(os.getpid(), "free", 1), (os.getpid(), "free", ["a list"]), (os.getpid(), "nobody")]

    with pytest.raises(NotFound):  # outside of a child the question is answered where it is asked
        ask_parent(verify, "nobody")


def test_what_has_begun_to_write_is_waited_for_by_a_call_that_is_terminated():
    with heeded():
        written = run_in_child(lambda begin: begin() or terminate_parent() or "written", NO_DEADLINE, "it was done")
    assert written == "written"


def test_a_write_that_hangs_is_given_up_and_keeps_what_guards_the_lun_alone(root, fairlock, stuck, monkeypatch):
    """SM waited for a map that queues without paths, for as long as that had none."""
    monkeypatch.setattr(child_module, "BATCH_SECONDS", 0.05)
    host, clock = Host(str(root)), Clock()

    def work(begin):
        begin()
        with in_call(both_locks, str(root)):
            clock.now += 60  # the deadline is over, and the batch has its own limit
            begin()
            for_ever()
        return "never"

    with pytest.raises(Refused, match="did not answer for 0.05 seconds.*" + MAYBE_BEGUN), guarded(root):
        run_in_child(work, Deadline(50, clock), "the LUN was read", calls=[both_locks])

    assert fairlock.readline() == b"free\n" and free(root, ALL) == [True, True, False]
    assert is_switch_on(CLONE, host)
    with pytest.raises(Refused, match="is held by"), lun_lock(CLONE, host, 0):
        pytest.fail("taken twice")

    os.kill(stuck[0], signal.SIGKILL)
    os.waitid(os.P_PID, stuck[0], os.WEXITED | os.WNOWAIT)
    assert not is_switch_on(CLONE, host)
    with guarded(root):
        pass
    assert not (root / LOCK_OF_LUN).exists() and not (root / "run/relvmoiscsi/hide").exists()


def test_a_signal_to_the_work_alone_does_not_end_it():
    """A service manager sends it to all; whether the work ends is for the call to say."""
    with heeded():
        done = run_in_child(lambda _: os.kill(os.getpid(), signal.SIGTERM) or "done", NO_DEADLINE, "it was done")
    assert done == "done"


# --- several at the same time


def test_what_works_give_beside_each_other_is_in_their_order():
    works = [lambda: "one", lambda: raises(Refused("It is refused.")), lambda: "three"]
    first, second, third = run_parallel(works, NO_DEADLINE, "it was done")

    assert (first, third) == ("one", "three")
    assert isinstance(second, RelvmoiscsiError) and "It is refused." in str(second)
    assert run_parallel([], NO_DEADLINE, "it was done") == []


def test_those_that_hang_are_killed_first_and_waited_for_at_the_same_time(stuck, monkeypatch):
    done = []
    monkeypatch.setattr(child_module._Child, "kill", lambda child: done.append(child.pid) or stuck.append(child.pid))
    monkeypatch.setattr(child_module, "_has_ended", lambda pid: bool(done.append(pid)))

    outcomes = run_parallel([for_ever] * 3, Deadline(0.05), "it was done")
    monkeypatch.undo()

    assert all(isinstance(one, OutOfTime) for one in outcomes)
    assert done == stuck * 3  # _REAP_MILLISECONDS has room for two looks
    assert still_there() == stuck


def test_one_that_hangs_is_given_up_and_does_not_hold_up_those_that_begin_later(monkeypatch):
    deadline = Deadline(600, over_after(3, monkeypatch))

    first, *others = run_parallel([for_ever, str, str, str], deadline, "it was done", at_once=2)

    assert isinstance(first, OutOfTime) and "over before it was done" in str(first)
    assert others == [""] * 3


def test_each_may_have_seconds_of_its_own_and_a_number_at_once():
    outcomes = run_parallel([for_ever] * 3, NO_DEADLINE, "it was done", at_once=2, seconds=0.1)

    assert [str(one) for one in outcomes] == ["The 0.1 seconds of this call were over before it was done."] * 3


def test_none_begins_after_the_deadline(tmp_path):

    def begin():
        (tmp_path / "begun").touch()
        return ""

    outcomes = run_parallel([for_ever, begin], Deadline(0.05), "it was done", at_once=1)

    assert [type(one) for one in outcomes] == [OutOfTime, OutOfTime]
    assert os.listdir(str(tmp_path)) == []


def test_a_bug_in_one_leaves_no_other_behind():
    hear, tell = os.pipe()

    def hang():
        os.write(tell, b"!")
        for_ever()
        return "never"

    def fail():
        os.read(hear, 1)  # the other one hangs
        return str(1 / 0)

    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run_parallel([hang, fail], NO_DEADLINE, "it was done")

    os.close(tell)
    assert os.read(hear, 1) == b"", "nobody else has the other end"
    os.close(hear)


def test_of_very_many_all_are_done(monkeypatch):
    """At a hard limit that a user cannot raise. A fork of this process is dear, so few are many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + LEAST_OPEN, hard))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(resource, "setrlimit", lambda *_: None)
            assert run_parallel([str] * 40, NO_DEADLINE, "it was done", at_once=40) == [""] * 40
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
