# SPDX-License-Identifier: LGPL-2.1-only
"""The acceptance kit against the simulated pool: what it does, refuses, reports, and that it leaves nothing behind."""

import contextlib
import errno
import io
import json
import os
import re
import signal
import subprocess
import sys

import pytest

import relvmoiscsi
from acceptance import __main__ as kit
from acceptance import day, made, report
from kit.lun_world import FABRIC, World
from kit.pool.errors import XenError
from kit.pool_lab import IQN, TARGET, Image, Lab, only_reads
from kit.streams import Terminal, Unwritable
from relvmoiscsi import cli
from relvmoiscsi.errors import Refused
from relvmoiscsi.pool import lock, lock_keys
from relvmoiscsi.pool.connection import Where, connect

pytestmark = [pytest.mark.states, pytest.mark.usefixtures("parsers_that_stay")]

SCRATCH = {made.SCRATCH: "true"}


class Acceptance(Lab):
    """A production SR with a VM that runs, and a scratch SR; the array clones what it is told to."""

    def __init__(self, world, simulated, directory):
        super().__init__(world, simulated)
        self.directory, self.runs, self.clones, self.versions = directory, 0, [], {}
        simulated.api.host_plugins.functions["relvmoiscsi"] = self.plugin

    def make(self, target=TARGET, **options):
        for name in ("Production", "Scratch"):
            self.original(name, target, IQN if target else "", **options)
        self.pool.db.set("SR", self.scratch, "other_config", SCRATCH)
        self.vm("web", self.vdi("Production", "data")[0], networks=[self.network("office")], state="Running")

    @property
    def scratch(self):
        return self.originals["Scratch"][1]

    def plugin(self, host, function, arguments):
        if function != "version":
            return self.world.plugin(host, function, arguments)
        return self.versions.get(host, relvmoiscsi.__version__)

    def array(self, what, scsi_id):
        assert (what, scsi_id) == ("clone", self.originals["Scratch"][0])
        self.clones.append(self.clone("Scratch"))
        return False

    def run(self, *words, array=None, say=lambda _: None):
        """(exit status, the report or None)."""
        self.said = []

        def tell(text):
            self.said.append(text)
            say(text)

        self.runs += 1  # a directory each: reports are named by process and second, which two runs here may share
        reports = self.directory / str(self.runs)
        arguments = kit._parser().parse_args(["--sr", "Scratch", "--report", str(reports), *words])
        tools = kit.Tools(command, array or self.array, tell)
        if arguments.clean:
            return kit.clean(self.where(), tools, arguments.sr), None
        status = kit.run(self.where(), tools, arguments.sr, arguments.target, arguments.report, arguments.records_only)
        (written,) = reports.glob("*.json")
        return status, json.loads(written.read_text(encoding="utf-8"))

    def kits(self, name, sr_uuid=None):
        """As a run on the scratch SR would call it."""
        uuid = sr_uuid or self.pool.db.get("SR", self.scratch, "uuid")
        return f"{made.PREFIX}{uuid[:8]}-20261122T080000Z-1 {name}"

    def everything(self):
        """The whole database, but for sessions and tasks."""
        tables = [table for table in self.pool.db._rows if table not in ("session", "task")]
        return {table: self.pool.db.records(table) for table in tables}


def command(*words):
    """`relvmoiscsi pool` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(["pool", *words, "--json"])
    return kit.answer(status, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def opened(directory, monkeypatch):
    world = World()
    with world.pool(hosts=("xs1", "xs2")) as simulated:
        for name, value in simulated.environment.items():
            monkeypatch.setenv(name, value)
        yield Acceptance(world, simulated, directory)


@pytest.fixture
def empty_pool(tmp_path, monkeypatch):
    with opened(tmp_path, monkeypatch) as ready:
        yield ready


@pytest.fixture
def pool(empty_pool, whole):
    whole.untouched.put(empty_pool)
    return empty_pool


@pytest.fixture
def type_in(monkeypatch):
    """Puts somebody at a terminal, who types a text and then no more."""
    return lambda text: monkeypatch.setattr(sys, "stdin", Terminal(text))


def statuses(report):
    return {row["name"]: row["status"] for row in report["steps"]}


# --- whatever ends it

ERROR = XenError("INTERNAL_ERROR", "a test")
STEPS = [step.name for step in day.STEPS] + ["clean", "nothing else"]


class Ends:
    """Has a call of a step end with an error: the n-th that changes something, or with 0 the first.

    Counts the calls of each step that change something. `states` has the pool before the first of each kind.
    """

    def __init__(self, pool, step=None, number=0, error=None):
        self.wanted, self.number, self.error = step, number, error
        self.step, self.changes, self.hit, self.states, self.pool = "", dict.fromkeys(STEPS, 0), False, {}, pool
        pool.pool.api.before = self.before

    def say(self, text):
        if text.endswith(" ..."):
            self.step = text.split(":")[0]

    def before(self, method, _params):
        if self.step and not only_reads(method) and not method.startswith(("task.", "GET ")):
            self.changes[self.step] += 1
            if self.wanted is None and method not in self.states:
                self.states[method] = Image(self.pool)
        is_it = self.step == self.wanted and self.number == (self.changes[self.step] if self.number else 0)
        if is_it and not self.hit:
            self.hit = True
            raise self.error


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that passes, and what was counted in it."""
    with pytest.MonkeyPatch.context() as patch, opened(tmp_path_factory.mktemp("reports"), patch) as pool:
        pool.make()
        ends, before = Ends(pool), pool.everything()
        ends.untouched = Image(pool)
        ends.status, ends.report = pool.run(say=ends.say)
        ends.said, ends.directory, ends.left = pool.said, pool.directory, pool.everything() != before
    return ends


def test_the_whole_day(whole):
    assert whole.status == 0, "\n".join(whole.said)
    assert whole.report["result"] == "passed" and set(statuses(whole.report).values()) == {"passed"}
    assert not whole.left


@pytest.mark.states("error", few=1)
@pytest.mark.parametrize("error", [ERROR, KeyboardInterrupt], ids=["error", "ctrl-c"])
@pytest.mark.parametrize("step", STEPS)
def test_whatever_ends_a_step_all_is_taken_away_and_told(pool, whole, step, error):
    before = pool.everything()
    last = 0 if step == "write" else whole.changes[step]  # a PUT ends otherwise
    ends = Ends(pool, step, last, error)
    status, report = pool.run(say=ends.say)
    assert ends.hit

    pool.pool.api.before = None
    said = "\n".join(pool.said)
    verify_true(report, status, step, error, said)
    if statuses(report)["clean"] != "passed":
        assert pool.run("--clean")[0] == 0, "\n".join(pool.said)
    assert pool.everything() == before, said


#: what may fail as well where the last call of a step was to stop a VM: it keeps its disk
NOT_STOPPED = {"start": ["discard"], "start restored": ["undo", "rescue", "give back", "discard"]}


def verify_true(report, status, step, error, said):
    """The report names the step that was ended as such, and as not run all after Ctrl-C, or those that need it."""
    found, wanted = statuses(report), "interrupted" if error is KeyboardInterrupt else "FAILED"
    if status == 0:  # the product or the kit has done without the answer
        assert set(found.values()) == {"passed"}, said
        return
    expected = dict.fromkeys(STEPS, "passed")
    expected[step] = wanted
    for each in day.STEPS:
        after_ctrl_c = "interrupted" in list(expected.values())[: STEPS.index(each.name)]
        if after_ctrl_c or any(expected[name] != "passed" for name in each.needs):
            expected[each.name] = "not run"
    for each in (
        {"clean": ["nothing else"], **NOT_STOPPED}.get(step, []) if wanted == "FAILED" or step == "clean" else []
    ):
        expected[each] = found[each]
    assert found == expected, said
    assert (status, report["result"]) == ((130, wanted) if wanted == "interrupted" else (1, "failed"))


def test_what_a_run_that_is_killed_before_any_kind_of_change_leaves_is_known_by_its_marks(whole, pool):
    """The process is gone, and the pool is as it was at that call."""
    before = pool.everything()
    assert {"VM.create", "Async.VM.hard_shutdown", "SR.set_other_config", "PUT /import_metadata"} <= set(whole.states)
    for method, state in whole.states.items():
        state.put(pool)
        assert pool.run("--clean")[0] == 0, (method, pool.said)
        assert pool.everything() == before, method


# --- what does not fit


def marked(**fields):
    def given(pool):
        for name, value in fields.items():
            pool.pool.db.set("SR", pool.scratch, name, value)

    return given


def with_a_vm(pool):
    pool.vm("a person's", pool.vdi("Scratch", "data")[0], state="Running")


def with_memory_of_a_vm(pool):
    ref = pool.vm("a person's", state="Suspended")
    pool.pool.db.set("VM", ref, "suspend_VDI", pool.vdi("Scratch", "data")[0])


def unplugged_on_a_member(pool):
    pool.pool.storage.pbd_unplug("", pool.pool.db.refs("PBD", SR=pool.scratch)[1])


def left_by_a_run(pool):
    pool.pool.db.create("VDI", SR=pool.scratch, name_label=pool.kits("disk one"))


def with_a_uuid_that_is_a_path(pool):
    pool.pool.db.forge("SR", pool.scratch, "uuid", "../../x-")


UNMARKED = marked(other_config={made.SCRATCH: "yes"})
COPY = marked(other_config={**SCRATCH, "relvmoiscsi:original-sr": "x"})
IN_USE = "VMs that the kit has not made have disks on the SR 'Scratch': \"a person's\"."


@pytest.mark.parametrize("given, message", [
    (UNMARKED, "is not marked as a scratch SR"),
    (COPY, "Name an original"),
    (with_a_uuid_that_is_a_path, "has the UUID '../../x-', which is no UUID"),
    (with_a_vm, IN_USE),
    (with_memory_of_a_vm, IN_USE),
    (left_by_a_run, "Run `make acceptance-clean` first"),
    (unplugged_on_a_member, "is not plugged on these hosts: xs2"),
])  # fmt: skip
def test_an_sr_that_is_not_given_away_is_refused_and_nothing_is_done(pool, capsys, given, message):
    given(pool)
    before, calls = pool.everything(), len(pool.pool.api.calls)
    status = kit.main(["--sr", "Scratch", "--snapshot", "exit 1", "--report", str(pool.directory)], command)
    said = capsys.readouterr().err
    assert status == 4 and message in said and " Nothing was done." in said
    assert pool.everything() == before and all(map(only_reads, pool.pool.api.calls[calls:]))


def test_no_report_goes_where_another_user_could_lead_it_and_nothing_is_done(pool, capsys):
    place = pool.directory / "reports"
    place.mkdir()
    place.chmod(0o777)
    before = pool.everything()
    assert kit.main(["--sr", "Scratch", "--snapshot", "exit 1", "--report", str(place / "new")], command) == 2
    said = capsys.readouterr().err
    assert "other users can change the directory" in said and " Nothing was done. Give" in said
    assert pool.everything() == before and list(place.iterdir()) == []


@pytest.mark.parametrize("ending", [".json", ".rst"])
def test_a_report_replaces_no_file(tmp_path, ending):
    """A link in its place could lead to any file."""
    (tmp_path / "other").write_text("of root")
    (tmp_path / f"run{ending}").symlink_to(tmp_path / "other")
    with pytest.raises(made.Failed, match="The run has passed; its report .* cannot be written: File exists"):
        kit._written(report.facts("run", {"type": "lvmoiscsi"}, [], [], []), str(tmp_path), "run")
    assert (tmp_path / "other").read_text() == "of root"


def test_nothing_is_taken_from_an_sr_that_is_not_marked(pool):
    left_by_a_run(pool)
    UNMARKED(pool)
    before = pool.everything()
    with pytest.raises(Refused):
        pool.run("--clean")
    assert pool.everything() == before


def test_what_a_person_or_a_run_on_another_sr_has_made_is_no_left_over(pool):
    """Objects that resemble those of the kit: a name without a run, another SR, a mark without a name."""
    db, kits = pool.pool.db, pool.kits("one")
    uuid, other = (db.get("SR", pool.originals[name][1], "uuid") for name in ("Scratch", "Production"))
    db.create("VDI", SR=pool.scratch, name_label=made.PREFIX + "notes")
    db.create("VDI", SR=pool.originals["Production"][1], name_label=kits)
    db.create("VM", name_label=kits)
    db.create("VM", name_label="mine", other_config={made.MARK: uuid})
    db.create("network", name_label=kits)
    (copy,) = pool.attach(pool.clone("Production"))
    db.set("SR", db.by_uuid("SR", copy.sr_uuid), "name_label", kits)
    for table in ("VM", "network"):
        db.create(table, name_label=pool.kits("one", other), other_config={made.MARK: other})
    db.create("network", name_label=pool.kits("isolated", other), other_config={"relvmoiscsi:done": "true"})
    db.add_to("pool", pool.pool.pool, "other_config", made.NOTE + other[:8] + "-20261122T080000Z-1", "3600")
    before = pool.everything()

    assert pool.run("--clean")[0] == 0
    assert pool.everything() == before


def test_the_lock_of_another_command_of_this_machine_stays(pool):
    """A person's `attach` locks a LUN before the LUN has an SR. A killed command of the kit has left another lock."""
    person, killed = lock_keys.name_for("36001405aaaa"), lock_keys.name_for("36001405bbbb")
    with connect(pool.where()) as calls:
        scratch = made.scratch_of(calls, "Scratch")
        with made.locks_of(scratch.new_run()):
            lock.Held(calls, [killed], "attach").take()
        with lock.held(calls, [person], "attach") as held:
            assert set(lock.read(calls)) == {person, killed}
            assert pool.run("--clean")[0] == 0, pool.said
            held.verify(calls)
            assert set(lock.read(calls)) == {person}


def test_a_vdi_that_a_persons_vm_has_stays(pool):
    left_by_a_run(pool)
    (vdi,) = pool.pool.db.refs("VDI", name_label=pool.kits("disk one"))
    pool.vm("a person's", vdi)
    before = pool.everything()
    assert pool.run("--clean")[0] == 1 and "a disk of a VM that the kit has not made" in pool.said[-1]
    assert pool.everything() == before


def test_what_cannot_be_taken_away_keeps_nothing_else_from_going(pool):
    """The hosts do not let go of the copy."""
    before = pool.everything()
    ends = Ends(pool)

    def refuse(method, _):
        if ends.step == "discard" or ends.step == "clean" and method == "Async.PBD.unplug":
            raise ERROR

    pool.pool.api.before = refuse
    status, report = pool.run(say=ends.say)
    rows = {row["name"]: row for row in report["steps"]}
    left = pool.everything()

    assert (status, rows["clean"]["status"], rows["nothing else"]["status"]) == (1, "FAILED", "FAILED")
    assert "copy'" in rows["clean"]["came"] and "`make acceptance-clean` tries again" in rows["clean"]["came"]
    assert rows["nothing else"]["came"].endswith("SR: 1 came, 0 went; PBD: 2 came, 0 went; VDI: 6 came, 0 went'.")
    assert (left["VM"], left["network"]) == (before["VM"], before["network"])
    assert report["notes"] == [
        "Objects of the kit may be left in the pool. Run `make acceptance-clean` before you unmap a clone."
    ]
    pool.pool.api.before = None
    assert pool.run("--clean")[0] == 0 and pool.everything() == before


def fails(pool, step, text, **options):
    """The run fails in this step, with this text in the report, and leaves the pool as it was."""
    before = pool.everything()
    status, report = pool.run(**options)
    rows = {row["name"]: row for row in report["steps"]}
    said = "\n".join(pool.said)
    assert (status, rows[step]["status"]) == (1, "FAILED") and text in rows[step]["came"], said
    assert rows["clean"]["status"] == rows["nothing else"]["status"] == "passed"
    assert pool.everything() == before
    return report


def no_plugin(*_):
    raise XenError("XENAPI_MISSING_PLUGIN", "relvmoiscsi")


def without_the_driver(pool):
    pool.pool.api.host_plugins.functions["relvmoiscsi"] = no_plugin


def without_a_type(pool):
    pool.pool.db.destroy("SM", pool.pool.db.refs("SM", type="relvmohba")[0])


def without_a_person(pool):
    pool.array = kit.ask(lambda _: None)


def whose_array_makes_two(pool):
    pool.array = lambda *_: bool([pool.clone("Scratch"), pool.clone("Scratch")])


def whose_array_gives_old_data(pool):
    """It has not flushed what it has told to be written."""

    def array(*_):
        record = pool.pool.db.record("VDI", pool.pool.db.refs("VDI", SR=pool.scratch)[-1])
        scsi_id = pool.clone("Scratch")
        pool.world._put(pool.world.lun(scsi_id).disk, "LV-" + record["uuid"], b"stale".ljust(4096))
        return False

    pool.array = array


@pytest.mark.parametrize("given, step, text", [
    (without_the_driver, "drivers", "The host has no plugin relvmoiscsi"),
    (lambda pool: pool.versions.update({pool.pool.hosts[1]: "0.0.9"}), "drivers", "0.0.9"),
    (without_a_type, "drivers", "no SRs of type relvmohba"),
    (lambda pool: pool.clone("Scratch"), "prepare", "360014050000000000000000000000003"),
    (without_a_person, "clone", "No person can answer"),
    (whose_array_makes_two, "clone", "the number of clones"),
    (whose_array_gives_old_data, "data", "the bytes of the disk two"),
])  # fmt: skip
def test_a_pool_on_which_a_step_fails(pool, type_in, given, step, text):
    type_in("")
    given(pool)
    report = fails(pool, step, text)
    assert step != "clone" or "unmap it now" in report["notes"][0] or not report["notes"]


def without_hvm(pool):
    for host in pool.pool.hosts:
        pool.pool.db.set("host", host, "capabilities", ["xen-3.0-x86_64"])


def without_memory(pool):
    pool.pool.api.vms.free_memory_bytes = (256 << 20) - 1


STARTS = ["start", "start restored"]


@pytest.mark.parametrize("given, words, left_out, said", [
    (without_hvm, [], STARTS, "No host runs HVM VMs."),
    (without_memory, [], STARTS, "256 MiB"),
    (lambda pool: None, ["--records-only"], ["write", "data", *STARTS], "--records-only"),
])  # fmt: skip
def test_what_a_pool_cannot_do_or_may_not_is_said_first_and_left_out(pool, given, words, left_out, said):
    given(pool)
    status, report = pool.run(*words)
    found = statuses(report)

    assert [name for name, status in found.items() if status == "left out"] == left_out
    assert {found[name] for name in found if name not in left_out} == {"passed"}, "\n".join(pool.said)
    first, *rest = report["steps"]
    assert said in first["came"] and all(said in row["came"] for row in rest if row["name"] in left_out)
    assert (status, report["result"]) == (0, "passed")
    assert any("left out" in note for note in report["notes"])
    calls = pool.pool.api.calls
    assert "Async.VM.start" not in calls
    assert words == [] or not any(name.endswith("raw_vdi") for name in calls)


# --- who runs it, and how


def test_a_user_without_the_right_to_ask_hosts_and_what_others_do_meanwhile(pool, monkeypatch):
    pool.pool.api.users["operator"] = ("another password", "pool-operator")
    monkeypatch.setenv("XENSERVER_USER", "operator"), monkeypatch.setenv("XENSERVER_PASSWORD", "another password")
    monkeypatch.setattr(pool, "where", lambda: Where(pool.pool.url, "operator", "another password"))

    def array(*words):
        pool.pool.db.create("secret", value="of a person")
        return pool.array(*words)

    status, report = pool.run(array=array)
    *steps, last = report["steps"]
    assert "takes the role pool-admin" in steps[1]["came"] and {row["status"] for row in steps} == {"passed"}, pool.said
    assert status == 1 and "secret: 1 came, 0 went" in last["came"]


def test_no_password_is_in_a_report(pool):
    secrets = pool.pool.api.password, pool.pool.url

    def before(method, _):
        if method == "Async.VM.start":
            raise XenError("INTERNAL_ERROR", "he said {} at {}".format(*secrets))

    pool.pool.api.before = before
    pool.run()
    texts = [path.read_text(encoding="utf-8") for path in pool.directory.rglob("*") if path.is_file()]
    assert len(texts) == 2
    for text in texts:
        assert "(removed)" in text and not any(secret in text for secret in secrets)


def test_with_chap_no_secret_stays(empty_pool, tmp_path):
    empty_pool.make(chap=("somebody", "the CHAP secret"))
    before = empty_pool.everything()
    assert empty_pool.run()[0] == 0, "\n".join(empty_pool.said)
    assert empty_pool.everything() == before
    assert not any("the CHAP secret" in path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.*"))


def test_a_person_is_asked_until_the_clone_is_there_perhaps_behind_another_target(pool, type_in):
    type_in("\n\n")
    said = []
    person = kit.ask(said.append)

    def array(*words):
        again = person(*words)
        name = "Production"
        if len(said) == 2:
            name = "Scratch"
            pool.world.luns.pop()
        pool.world.add("10.0.0.6", IQN + ".clones", pool.world.lun(pool.originals[name][0]).disk.copy())
        return again

    assert pool.run("--target", "10.0.0.6", array=array)[0] == 0, "\n".join(pool.said)
    assert said[0].startswith("Clone the LUN 3600") and said[1].startswith("The pool sees no clone")
    pool.world.luns.pop()
    fails(pool, "clone", "no clone", array=lambda *_: False)


@pytest.mark.processes
@pytest.mark.parametrize(
    "scsi_id", ["1ATA;echo>there;", "1$(echo>there)", "1`echo>there`", "-o", "1 x", "1\n", "", "1" * 256]
)
def test_no_command_gets_a_scsi_id_that_a_shell_interprets(tmp_path, monkeypatch, scsi_id):
    """As `ssh array "clone $SCSIID"`, which has the array's shell read the SCSIid."""
    monkeypatch.chdir(tmp_path)
    array = kit.by_command('echo >here; sh -c "true $SCSIID"', 60)
    with pytest.raises(made.Failed, match="is given to no command"):
        array("clone", scsi_id)
    assert list(tmp_path.iterdir()) == []
    assert array("clone", "SVENDOR_M.odel:1-2=3+4@5") and os.listdir(str(tmp_path)) == ["here"]


@pytest.mark.processes
def test_the_command_at_the_array_gets_no_secret_of_ours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("XENSERVER_PASSWORD", "LIBISCSI_CHAP_PASSWORD", "LIBISCSI_CHAP_TARGET_PASSWORD"):
        monkeypatch.setenv(name, "the secret")
    monkeypatch.setenv("ARRAY", "of the person")
    assert kit.by_command("env >here", 60)("clone", "1")
    told = (tmp_path / "here").read_text(encoding="utf-8")
    assert "the secret" not in told and "ARRAY=of the person\n" in told


def test_nobody_there_and_no_command_is_a_usage_error(pool, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert kit.main(["--sr", "Scratch"], command) == 2 and "SNAPSHOT=" in capsys.readouterr().err


def test_fibre_channel_clones_are_mapped_to_the_other_hosts_afterwards(empty_pool):
    lab, asked = empty_pool, []
    lab.make(target=FABRIC)
    before = lab.everything()

    def array(what, scsi_id):
        asked.append(what)
        if what == "clone":
            lab.clones.append(lab.clone("Scratch"))
            lab.world.unmapped.add((lab.pool.hosts[1], lab.clones[0]))
        else:
            lab.world.unmapped.clear()
        return False

    assert lab.run(array=array)[0] == 0, "\n".join(lab.said)
    assert asked == ["clone", "map"] and lab.everything() == before


@pytest.mark.processes
def test_processes_and_a_real_ctrl_c(pool, tmp_path, monkeypatch):
    """`make acceptance` as a person runs it, with a command for the array; interrupted when it attaches."""
    before, asked = pool.everything(), tmp_path / "asked"
    pool.pool.api.before = lambda *_: not pool.clones and asked.exists() and pool.array("clone", asked.read_text())
    monkeypatch.setenv("SNAPSHOT", f'test -z "$XENSERVER_PASSWORD" && printf %s "$SCSIID" >{asked}')
    argv = [sys.executable, "-m", "acceptance", "--sr", "Scratch", "--report", str(tmp_path / "reports")]
    process = subprocess.Popen(argv, cwd=str(kit.TOP), stderr=subprocess.PIPE, universal_newlines=True)
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("attach: "):
            process.send_signal(signal.SIGINT)
    process.stderr.close()

    assert process.wait() == 130, said
    (path,) = (tmp_path / "reports").glob("*.json")
    found = statuses(json.loads(path.read_text(encoding="utf-8")))
    assert found["attach"] == "interrupted" and found["clean"] == found["nothing else"] == "passed", said
    assert pool.everything() == before


#: presses Ctrl-C once more, and takes a moment to end
_SLOW = """
import os, signal, sys, time
def ends(*_):
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(0.2)
    os._exit(130)
signal.signal(signal.SIGINT, ends)
os.write(int(sys.argv[1]), b"!")
while True:
    signal.pause()
"""


@pytest.fixture
def endings():
    """Of a process that nothing has told to handle signals in another way."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield kit.Endings()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_while_a_command_is_started_ends_it_and_so_does_a_second_one(monkeypatch, endings, number):
    """The kit goes on with what the command works on, so the command must have ended; also without a terminal."""
    started, popen, (ready, tells) = [], subprocess.Popen, os.pipe()

    def start(_argv, **options):
        started.append(popen([sys.executable, "-c", _SLOW, str(tells)], pass_fds=(tells,), **options))
        os.read(ready, 1)
        os.kill(os.getpid(), number)
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(sys, "stderr", Unwritable(errno.EIO))
    endings.listen()
    try:
        with pytest.raises(KeyboardInterrupt):
            kit.pool_process([], endings)("luns")
        assert started[0].returncode == 130
    finally:
        started[0].kill()
        os.close(ready)
        os.close(tells)


def test_under_nohup_a_run_outlives_its_terminal(endings):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    endings.listen()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)


def test_ctrl_c_outside_of_a_run_is_130(monkeypatch, capsys):
    def pressed(_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(kit.options, "where", pressed)
    assert kit.main(["--sr", "Scratch"], lambda *_: {}) == 130
    assert "`make acceptance-clean`" in capsys.readouterr().err


@pytest.mark.parametrize("pool", ["local", "https://pool.example"])
def test_a_password_is_in_no_report(pool):
    assert "the password" in kit._secrets(kit.Where(pool, "root", "the password"), [])


@pytest.mark.parametrize("pool", ["https://XS2.example:8443", "xs2.example", "local"])
def test_an_address_of_the_pool_is_in_no_report(pool):
    """A member names the master, and a message on a certificate names the host without its port."""
    messages = [
        "No pool answers at https://10.9.8.7:8443: Connection refused.",
        "The certificate of https://XS2.example:8443 is not valid for 'XS2.example', nor for 'xs2.example'.",
    ]
    secrets = kit._secrets(kit.Where(pool, "root", ""), [{"address": "10.9.8.7"}, {"address": "10.9.8.77"}])
    master, certificate = report.redacted(messages, secrets)
    assert "10.9.8.7" not in master and report.redacted("10.9.8.77", secrets) == "(removed)"
    assert "xs2" not in certificate.lower() or pool == "local"


# --- the report


@pytest.mark.parametrize("password", ["false", "1", "passed", "]", '"', "steps"])
def test_a_password_of_the_form_of_json_costs_no_report(password):
    row = day.Row(name="a step", status=day.PASSED, seconds=1.0, expected="all", came=f"he said {password}")
    found = report.facts("1", {"type": "lvmoiscsi"}, [], [row], [password])

    told = report.redacted(found, [password, ""])
    assert told["steps"][0]["came"] == "he said (removed)" and told["notes"] == ["(removed)"]
    assert told["steps"][0]["seconds"] == 1.0 and (told["result"] == "passed" or password == "passed")


EVIL = "evil\x1b]0;owned\x07\x9b31m\u202e"


def test_names_reach_terminal_and_report_without_control_characters(pool, capsys):
    """`answer` brings them back from the JSON of the command."""
    with pytest.raises(made.Failed) as failed:
        kit.answer(1, json.dumps({"error": {"message": f"The LUN holds {EVIL}."}}), "")
    row = day.Row(name="a step", status=day.PASSED, seconds=1.0, expected="all", came=str(failed.value))
    told = [report.page(report.facts("1", {"type": "lvmoiscsi"}, [], [row], [EVIL]))]

    pool.vm(EVIL, pool.vdi("Scratch", "data")[0])
    kit.main(["--sr", "Scratch", "--snapshot", "exit 1", "--report", str(pool.directory)], command)
    told.append(capsys.readouterr().err)
    for text in told:
        assert "owned" in text and all(char == "\n" or char.isprintable() for char in text)


def test_a_report_has_each_step_and_what_it_expects(whole):
    (path,) = whole.directory.rglob("*.rst")
    text = path.read_text(encoding="utf-8")
    rows = re.findall(r"   \* - (.*)\n" + r"     - (.*)\n" * 4, text[text.index("   * - step\n") :])[1:]
    assert [row[0] for row in rows] == STEPS
    assert [row[3] for row in rows[: len(day.STEPS)]] == [step.expected for step in day.STEPS]
