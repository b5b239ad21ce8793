# SPDX-License-Identifier: LGPL-2.1-only
"""The runs that the documents show are real: the same words, and the same answers to the prompts, print the same lines,
but for UUIDs and the date; and the same Python runs. Pools are the simulated one.
"""

import doctest
import inspect
import json
import os
import re
import time
import uuid
from contextlib import ExitStack

import pytest

from kit import golden
from kit.builder import raw
from kit.documented import DATE, UUID, is_in_order, shown, shown_in
from kit.lun_world import FABRIC, World
from kit.pool.client import connected
from kit.pool_lab import IQN, TARGET, Lab
from kit.shell import TOP
from kit.xe import xe
from relvmoiscsi import engine, errors
from relvmoiscsi.cli.output import wrapped
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.formats.saved_vms import NAME_LABEL
from relvmoiscsi.lun.named_device import open_device
from relvmoiscsi.resignature.reading.lun_contents import Lun

PROMPT = "[y/N] "


def text_of(page):
    return (TOP / page).read_text(encoding="utf-8")


def today(text):
    return DATE.sub(time.strftime("%Y-%m-%d"), text)


@pytest.fixture
def new_lab(name_pool):
    """`new_lab(host names)`: a pool, which the command talks to, with a LUN for what tests put there."""
    with ExitStack() as stack:

        def make(*hosts):
            world = World()
            lab = Lab(world, stack.enter_context(world.pool(hosts=hosts)))
            lab.pool.api.host_plugins.functions["relvmoiscsi"] = world.plugin
            name_pool(lab.pool)
            return lab

        yield make


# --- one LUN: README.rst, docs/administrator.rst, docs/one-vdi.rst, docs/scripting.rst, docs/python.rst


@pytest.fixture
def luns(tmp_path, monkeypatch):
    """The LUN of the documents, and a copy of it, in the working directory."""
    for name in ("original.img", "clone.img"):
        golden.load("chain").disk.to_file(str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def as_typed(line):
    """Without what was typed, and without the one number that depends on how a file system keeps sparse files."""
    return re.sub(r"differs \([0-9.]+", "differs (all", line.replace(PROMPT + "y", PROMPT)).rstrip()


@pytest.mark.parametrize("page", ["README.rst", "docs/administrator.rst", "docs/one-vdi.rst", "docs/scripting.rst"])
def test_a_run_prints_what_the_page_says(page, luns, command, type_in):
    runs = [(argv, lines) for program, argv, lines in shown_in(text_of(page)) if program == "relvmoiscsi"]
    for argv, lines in runs:
        type_in("y\n")
        ran = command(*argv)
        text = ran.err + "\n" + ran.out
        printed = [as_typed(line) for line in f"{text}\n{wrapped(text, 80)}".splitlines()]  # a page shows a terminal
        assert ran.status == 0
        assert [line for line in lines if line.strip() != "..." and as_typed(line) not in printed] == [], argv
    assert runs


def test_the_json_on_the_page_is_a_part_of_what_the_run_prints(luns, command):
    (block,) = re.findall(r"::\n\n(    \{\n(?:    .*\n)+)", text_of("docs/scripting.rst"))[:1]
    said = json.loads(block)
    ran = command("resignature", "clone.img", "--yes", "--json", "--sr-uuid", said["new_sr"]).json

    assert (said.pop("command"), said.pop("json_version")) == ("resignature", 1)
    (vdi,) = said.pop("vdi_pairs")
    assert vdi in ran["vdi_pairs"] and said == {key: ran.get(key) for key in said}


def test_the_python_on_the_page_runs(luns, command):
    page, said = "docs/python.rst", []
    lines = doctest.DocTestParser().get_doctest(text_of(page), {}, page, page, 0)
    ran = doctest.DocTestRunner(verbose=False).run(lines, out=said.append)

    assert ran.failed == 0, "".join(said)
    called = " ".join(example.source for example in lines.examples)
    uncalled = [name for name in engine.PROMISED if f"engine.{name}" not in called]
    assert uncalled == ["Comparison", "Inspection", "OneVdiRequest", "Result"]
    assert command("show", "clone.img", "--json").json["state"] == "clean"


def test_the_page_describes_what_python_is_given():
    page = text_of("docs/python.rst")
    results = [each for each in map(vars(engine).get, engine.PROMISED) if isinstance(each, type)]
    for result in [*results, Lun, IdMap]:
        name = result.__name__
        (table,) = re.findall(rf"^{name}\n~+\n\n((?:.*\n)+?)(?=\S+.*\n[~-][~-]|\Z)", page, re.MULTILINE)
        table = "".join(re.findall(r"^``.*``$", table, re.MULTILINE))
        assert sorted(re.findall(r"``(\w+)``", table)) == sorted(result._fields), name

    functions = [name for name in engine.PROMISED if name[0].islower()]
    for name in functions:
        words = inspect.signature(getattr(engine, name)).parameters
        assert f"``{name}({', '.join(words)})``" in page
    assert sorted(functions) == ["compare", "inspect", "prepare", "recover", "resignature", "undo"]


def test_the_page_says_of_each_family_of_errors_what_it_leaves():
    table = text_of("docs/python.rst").partition("leaves on the LUN\n")[2].partition("Every error")[0]
    families = {
        each.__name__ for each in errors.RelvmoiscsiError.__subclasses__() if each.__module__ == errors.__name__
    }
    assert set(re.findall(r"``([A-Z]\w+)``", table)) == families


def test_a_finished_lun_is_refused_for_other_ids_and_a_plan_is_one_line(luns, command):
    request = engine.ResignatureRequest(scsi_id="36001405f", sr_uuid=str(uuid.uuid4()))
    with open_device("clone.img", writable=True) as device:
        prepared = engine.prepare(device, os.urandom, request)
        for each in (prepared, prepared.plan, prepared.lun):
            assert "\n" not in repr(each) and len(repr(each)) < 300
        engine.resignature(device, prepared)
        assert isinstance(engine.prepare(device, os.urandom, request), engine.AlreadyDone)
        ids = prepared.plan.run.ids
        vdi = next(old for old in ids.uuids if old != ids.sr)
        chosen = IdMap(ids.sr, {vdi: str(uuid.uuid4())}, {})
        for other in (request._replace(sr_uuid=str(uuid.uuid4())), request._replace(chosen=chosen)):
            with pytest.raises(errors.Refused, match="already has other ids: .*`again`"):
                engine.prepare(device, os.urandom, other)


# --- a pool: docs/pool.rst, docs/pool-vms.rst


def runs_of(command, page):
    """Runs what a page shows; gives (argv, how it ended) after each, so that a test makes what the page has happen."""
    uuids = {}
    for argv, lines in shown(TOP / page):
        ran = command(*map(today, argv))
        printed = sorted(ran.err.splitlines()) + ran.out.splitlines()
        assert is_in_order(lines, printed, uuids), (argv, printed)
        yield argv, ran.status
    assert len(uuids) > 2


@pytest.fixture
def three_srs(new_lab):
    """Three SRs in use, on one of them the disks of a VM, and an array snapshot of each."""
    made = new_lab("xs1", "xs2", "xs3")
    for name in ("Production", "Testing", "Archive"):
        made.original(name)
    vm = made.pool.db.create("VM", name_label="web")
    for label in ("root disk", "data"):
        made.pool.db.create("VBD", VM=vm, VDI=made.vdi("Production", label)[0])
    for name in ("Production", "Testing", "Archive"):
        made.clone(name)
    return made


def test_the_runs_on_the_page_of_a_pool_print_what_it_says(three_srs, command):
    statuses, third, before = [], three_srs.pool.hosts[2], three_srs.summary()
    for argv, status in runs_of(command, "docs/pool.rst"):
        statuses.append(status)
        if status == 9:
            three_srs.pool.come_back(third)
        elif argv[1] == "discard":
            assert three_srs.summary() == before, "the end is as the beginning"
            three_srs.pool.go_down(third)  # as the page has it for what follows

    assert statuses == [0, 0, 0, 0, 9]


def test_the_python_on_the_page_of_a_pool_attaches_the_clones_and_makes_a_vm(new_lab, capsys):
    lab = new_lab("xs1", "xs2")
    lab.original("Production")
    lab.vm("web", lab.vdi("Production", "root disk")[0], networks=[lab.network("office")])
    lab.clone("Production")
    (block,) = re.findall(r"^From Python\n-+\n\n::\n\n((?:    .*\n|\n)+)", text_of("docs/pool.rst"), re.MULTILINE)
    pool = lab.pool.environment
    here = f"Where({pool['XENSERVER_HOST']!r}, {pool['XENSERVER_USER']!r}, password)"
    exec(re.sub(r"Where\(.*?\)", here, inspect.cleandoc(block)), {"password": pool["XENSERVER_PASSWORD"]})

    assert re.findall("'status'(?:: |, )'(.+?)'", capsys.readouterr().out) == ["attached", "cloned"]
    assert {"web", "web on Production changed 2026-11-21"} <= set(names(lab)["VM"]) and "lab" in names(lab)["network"]


def test_the_run_on_the_page_of_vms_prints_what_it_says(new_lab, command):
    """The VMs "web" and "db" on one SR, and another VM that runs elsewhere."""
    lab = new_lab("xs1", "xs2")
    lab.original("Production")
    lab.original("Testing")
    net = lab.network("office")
    root, data = (lab.vdi("Production", label)[0] for label in ("root disk", "data"))
    lab.vm("web", root, networks=[net], state="Running", ha_always_run=True, ha_restart_priority="restart")
    lab.vm("db", data, networks=[net])
    lab.vm("helper", lab.vdi("Testing", "data")[0])

    def state():
        """Names of VDIs but for saved records, and the disks of VMs."""
        vdis = [(row["uuid"], row["name_label"]) for row in lab.pool.db.records("VDI").values()]
        vms = {ref: (vm["name_label"], lab.disks_of(ref)) for ref, vm in lab.pool.db.records("VM").items()}
        return sorted(row for row in vdis if row[1] != NAME_LABEL), vms

    before = state()
    for argv, status in runs_of(command, "docs/pool-vms.rst"):
        assert status == 0
        if argv[1] in ("save-vms", "discard"):
            lab.clone("Production")
    assert state() == before


# --- over iSCSI and over Fibre Channel: docs/night.rst, docs/fibre-channel.rst

NIGHT, FIBRE_CHANNEL = "docs/night.rst", "docs/fibre-channel.rst"
ATTACH, REST = "3. Attach the copy", ["4. Make copies of the VMs", "5. Remove the copies"]


def section(page, title):
    """The text below a title of a page."""
    return re.search(rf"^{re.escape(title)}\n-+\n((?:.*\n)*?)(?=.*\n---+\n|\Z)", text_of(page), re.MULTILINE).group(1)


@pytest.fixture(params=[NIGHT, FIBRE_CHANNEL])
def night(request, new_lab):
    """(the text that is read, the lab): an SR in use with the disks of three VMs, and a clone of it."""
    lab, on_fabric = new_lab("xs1", "xs2"), request.param == FIBRE_CHANNEL
    volumes = [raw("mail", label="mail store", extents=1)]
    lab.original("Production", FABRIC if on_fabric else TARGET, "" if on_fabric else IQN, volumes)
    network = lab.network("office")
    for name, label in (("web", "root disk"), ("db", "data"), ("mail", "mail store")):
        lab.vm(name, lab.vdi("Production", label)[0], networks=[network], state="Running")
    clone = lab.clone("Production")
    if on_fabric:  # mapped to the master alone
        lab.world.unmapped.update((host, clone) for host in lab.pool.hosts[1:])
    first = section(FIBRE_CHANNEL, "From a snapshot to VMs") if on_fabric else section(NIGHT, ATTACH)
    return first + "".join(section(NIGHT, title) for title in REST), lab


def names(lab):
    """What an administrator sees in the pool."""
    tables = ("SR", "VM", "VDI", "network")
    return {table: sorted(row["name_label"] for row in lab.pool.db.records(table).values()) for table in tables}


def test_the_night_prints_what_the_page_says_and_leaves_nothing(night, command, type_in):
    text, lab = night
    before, uuids, statuses = names(lab), {}, []
    for program, words, lines in shown_in(today(text)):
        type_in("y\n")
        argv = [UUID.sub(lambda found: uuids[found.group()], word) for word in words]  # those that were printed
        assert program != "xe" or not any(word.startswith("vm=") for word in argv), "several VMs may have a name"
        status, out, err = command(*argv) if program == "relvmoiscsi" else xe(lab.pool, argv)
        statuses.append((argv[0] if program == "xe" else argv[1], status))
        typed = err.replace(PROMPT, PROMPT + "y\n") + out
        assert is_in_order(lines, map(str.rstrip, typed.splitlines()), uuids), (argv, typed)
        assert err.count(PROMPT) == sum(PROMPT in line for line in lines), "each prompt is on the page"
        for start in re.findall(r"\bxe (vm-start uuid=\S+)", "\n".join(lines)):  # behind `next:`
            statuses.append(("vm-start", xe(lab.pool, UUID.sub(lambda found: uuids[found.group()], start).split())[0]))
        if argv[0] == "sr-create":
            lab.world.unmapped.clear()  # as the page has it for what follows
        if argv[1] == "clone":
            assert {f"{vm} on Production changed 2026-11-21" for vm in ("web", "db", "mail")} <= set(names(lab)["VM"])

    assert names(lab) == before
    calls = [("clone", 0), *[("vm-start", 0)] * 3, *[("vm-shutdown", 0)] * 3, ("discard", 0)]
    assert statuses[-len(calls) :] == calls
    assert [status for _, status in statuses].count(1) == ("relvmohba" in text), "the error that is success"


def test_every_page_shows_the_error_that_is_success_as_xe_prints_it():
    """The driver's own words: tests/unit/sr_driver/test_main.py has them byte for byte."""
    found = []
    for page in sorted((TOP / "docs").rglob("*.rst")):
        for line in re.findall("^ *Error parameters: (.*)", page.read_text(encoding="utf-8"), re.MULTILINE):
            found.append((page.name, line.replace("lvmohba", "lvmoiscsi")))

    words = ", Error reporting error, unknown key The SR has been successfully resigned. "
    assert [each for each in found if each[1] != words + "Use the lvmoiscsi type to attach it, "[:-1]] == []
    assert {page for page, _ in found} >= {"driver.rst", "fibre-channel.rst", "xen-orchestra.rst"}


# --- docs/xen-orchestra.rst


def test_the_way_of_xen_orchestra_leads_to_an_sr_on_every_host_and_away_from_it_again(new_lab):
    lab, page = new_lab("xs1", "xs2", "xs3"), text_of("docs/xen-orchestra.rst")
    lab.original("Production")
    values = {"IQN": IQN, "SCSIID": lab.clone("Production")}
    copy = values["SCSIID"]

    def asked(words):
        words = [re.sub(r"(?<==)(IQN|SCSIID|NEW|HOST)$", lambda found: values[found.group()], word) for word in words]
        return xe(lab.pool, words)

    def on_page(call):
        return next(iter(re.findall(rf"^ +xe ({call} .*)$", page, re.MULTILINE))).split()

    #: blocks of a list stand further in
    ((program, words, lines),) = shown_in(re.sub("^   (?=    )", "", page, flags=re.MULTILINE))
    status, _, err = asked(words)
    assert (program, status) == ("xe", 1)
    assert [line.rstrip() for line in err.splitlines()] == [line.strip() for line in lines]

    with connected(lab.pool) as session:
        api = session.xenapi
        config = {"target": TARGET, "targetIQN": IQN, "SCSIid": copy}
        told = json.dumps(api.SR.probe(lab.pool.hosts[0], config, "relvmoiscsi", {}))
        values["NEW"] = new = re.search(r"<new_uuid>\s*([0-9a-f-]{36})", told.replace("\\n", " ")).group(1)
        assert new == lab.world.sr_uuid(copy), "step 2"

        for host in lab.pool.hosts:
            values["HOST"] = api.host.get_uuid(host)
            status, _, err = asked(on_page("sr-probe"))
            assert (status, "SR_BACKEND_FAILURE_107" in err, copy in err) == (1, True, True), "step 3"

        sr = api.SR.introduce(new, "Production copy", "a copy", "lvmoiscsi", "user", True, {})  # step 4: reattachSr
        for host in lab.pool.hosts:
            api.PBD.plug(api.PBD.create({"host": host, "SR": sr, "device_config": config}))
        assert [pbd["currently_attached"] for pbd in lab.pool.db.records("PBD", SR=sr).values()] == [True] * 3

        assert asked(on_page("sr-param-set"))[0] == 0
        assert {"gc": "false", "indestructible": "true"}.items() <= api.SR.get_other_config(sr).items(), "step 5"

        for pbd in api.SR.get_PBDs(sr):  # step 6: forgetSr
            api.PBD.unplug(pbd)
        api.SR.forget(sr)
    assert lab.world.state(copy) == "resignatured"
