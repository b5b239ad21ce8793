# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi doctor`: what it prints, in which order, and how it ends. What it finds: tests/unit/doctor/."""

import json
import os
import shutil
import xmlrpc.client

import pytest

from kit import shell
from kit.doctor_world import DRIVER, DROP_IN, REAL_DRIVER, STOCK, UUID, World
from kit.pool.simulator import Pool, sm_directory
from relvmoiscsi import __version__, cli
from relvmoiscsi.cli import doctor as cli_doctor
from relvmoiscsi.doctor.finding import problem, to_json
from relvmoiscsi.host.disk import cleanup_journal
from relvmoiscsi.host.this_host import Host

pytestmark = pytest.mark.processes


@pytest.fixture
def world(monkeypatch):
    made = World()
    monkeypatch.setattr(cli_doctor, "HOST", made.host())
    yield made
    shutil.rmtree(made.root)


@pytest.fixture
def pool(world):
    """A pool of this one host, on which all is well."""
    second = world.at("/usr/share/relvmoiscsi/drivers/ReLVMoHBASR")
    directory = sm_directory(world.at("/opt/simulated"), world.at(REAL_DRIVER), second)
    with Pool(directory, world.at("/var/lib/xcp/xapi"), hosts=("xs1",)) as started:
        started.db.set("host", started.master, "uuid", UUID)
        started.db.set("SM", started.db.refs("SM", type="relvmoiscsi")[0], "driver_filename", DRIVER)
        os.makedirs(world.at("/plugins"))
        os.symlink(str(shell.TOP / "drivers/plugins/relvmoiscsi"), world.at("/plugins/relvmoiscsi"))
        started.api.host_plugins.directories[started.master] = world.at("/plugins")
        yield started


@pytest.fixture
def doctor(capsys):
    """Runs the command in this process."""

    def run(*argv):
        capsys.readouterr()
        status = cli.main(["doctor"] + [str(word) for word in argv])
        out, err = capsys.readouterr()
        assert not shell.CONTROL.search(out + err), repr(out + err)
        assert shell.CONTRACT not in (out + err).lower()
        return shell.Ran(status, out, err)

    return run


def last_line(ran):
    return ran.out.splitlines()[-1]


def test_a_host_that_is_ready(world, pool, doctor):
    ran = doctor()

    assert (ran.status, last_line(ran), ran.err) == (0, "Ready.", "")
    assert {line.split()[0] for line in ran.out.splitlines()[:-2]} == {"ok"}


def test_warnings_do_not_keep_it_from_being_ready(world, pool, doctor):
    cleanup_journal.note("36001405993c87c37fa84d02b7fa62c40", ["1:0:0:0"], world.host())

    ran = doctor()

    assert (ran.status, last_line(ran)) == (0, "Ready, with 1 warning.")
    assert "warning  left-overs" in ran.out and "What to do: Repeat the call" in ran.out


def test_the_reason_is_the_last_line(world, pool, doctor):
    world.put("/etc/xapi.conf.d/zzz-linstor.conf", STOCK + " linstor\n")

    ran = doctor()

    assert ran.status == 4
    assert last_line(ran) == (
        "Not ready (1 problem): sm-plugins in /etc/xapi.conf.d/zzz-linstor.conf, the last such line that xapi reads, "
        "lacks relvmoiscsi and relvmohba; " + DROP_IN + " lists it, but xapi does not use that line. "
        "Run `/usr/share/relvmoiscsi/sm-whitelist sync`, then `xe-toolstack-restart`."
    )


def test_the_worst_comes_last(world, doctor):
    cleanup_journal.note("36001405993c87c37fa84d02b7fa62c40", ["1:0:0:0"], world.host())
    world.put("/etc/xapi.conf.d/zzz-linstor.conf", STOCK + " linstor\n")

    ran = doctor()

    words = [line.split()[0] for line in ran.out.splitlines()[:-2] if not line.startswith(" ")]
    order = ["ok", "warning", "unknown", "problem"]
    assert words == sorted(words, key=order.index) and set(words) == set(order)


def test_what_is_unknown_is_not_ready(world, doctor):
    ran = doctor()

    assert ran.status == 4
    assert last_line(ran).startswith("Not ready (1 thing unknown): xapi does not answer questions about the driver")


def test_a_problem_of_another_host_is_told_with_its_name(world, pool, doctor):
    other = pool._new_host(2, "xs2")
    ran = doctor()
    assert ran.status == 4
    assert last_line(ran).startswith("Not ready (1 problem): xs2 has no complete installation of relvmoiscsi")

    os.makedirs(world.at("/plugins2"))
    found = to_json(__version__, [problem("initiator", "This host has no iSCSI initiator name.", "Set it.")])
    answer = xmlrpc.client.dumps(({"Status": "Success", "Value": found},), methodresponse=True)
    world.program("/plugins2/relvmoiscsi", f"#!/bin/sh\ncat <<'END'\n{answer}END\n")
    pool.api.host_plugins.directories[other] = world.at("/plugins2")
    ran = doctor()
    assert ran.status == 4
    assert last_line(ran) == "Not ready (1 problem): xs2: This host has no iSCSI initiator name. Set it."


def test_json(world, pool, doctor):
    ran = doctor("--json")

    assert ran.status == 0
    assert (ran.json["ready"], ran.json["verdict"], ran.json["version"]) == (True, "Ready.", __version__)
    assert {tuple(sorted(finding)) for finding in ran.json["findings"]} == {
        ("advice", "host", "name", "sentence", "status")
    }


def test_json_of_a_host_that_is_not_ready(world, doctor):
    world.remove(DRIVER)

    ran = doctor("--json")

    assert ran.status == 4 and ran.json["ready"] is False
    assert ran.json["verdict"].startswith("Not ready (1 problem, 1 thing unknown): xapi looks for drivers in ")
    assert ran.json["findings"][0]["status"] == "problem"


def test_names_that_would_take_over_a_terminal_are_escaped(world, pool, doctor):
    pool.db.set("host", pool.master, "name_label", "\x9b31m\u202e owned")
    pool.storage.offline.add(pool.master)
    world.put("/etc/xapi.conf.d/zzz\x1b[2J\udcff.conf", STOCK)

    ran = doctor()

    assert ran.status == 4 and "\\x9b31m\\u202e owned cannot be asked" in ran.out
    assert "zzz\\x1b[2J" in last_line(ran)
    assert json.loads(doctor("--json").out)["ready"] is False


def test_off_dom0_it_says_so(doctor, tmp_path, monkeypatch):
    monkeypatch.setattr(cli_doctor, "HOST", Host(str(tmp_path)))
    ran = doctor()

    assert (ran.status, last_line(ran).split(": ")[:2]) == (4, ["Not ready (1 problem)", "This is no dom0"])
