# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi doctor`: what it prints, in which order, and how it ends. What it finds: tests/unit/doctor/."""

import os
import shutil

import pytest

from kit import shell
from kit.doctor_world import DRIVER, REAL_DRIVER, UUID, World
from kit.pool.simulator import Pool, sm_directory
from relvmoiscsi import __version__
from relvmoiscsi import doctor as health
from relvmoiscsi.cli import doctor as cli_doctor
from relvmoiscsi.doctor.finding import ok, problem, unknown, warning
from relvmoiscsi.host.this_host import Host

FINE = ok("executable", "It is there.")
OLD = warning("left-overs", "A call has left a device.", "Repeat the call.")
AWAY = unknown("pool", "xapi does not answer.", "Start it.")
WHITELIST = problem("whitelist", "sm-plugins lacks relvmoiscsi.", "Run sync.")


@pytest.fixture
def doctor(command, monkeypatch):
    """Runs the command in this process, on a host of which these are the findings."""

    def run(*findings, words=()):
        monkeypatch.setattr(health, "examine", lambda _host: list(findings))
        return command("doctor", *words)

    return run


def last_line(ran):
    return ran.out.splitlines()[-1]


@pytest.mark.processes
def test_a_real_host_that_is_ready(command, monkeypatch):
    world = World()
    second = world.at("/usr/share/relvmoiscsi/drivers/ReLVMoHBASR")
    directory = sm_directory(world.at("/opt/simulated"), world.at(REAL_DRIVER), second)
    monkeypatch.setattr(cli_doctor, "HOST", world.host())
    with Pool(directory, world.at("/var/lib/xcp/xapi"), hosts=("xs1",)) as pool:
        pool.db.set("host", pool.master, "uuid", UUID)
        pool.db.set("SM", pool.db.refs("SM", type="relvmoiscsi")[0], "driver_filename", DRIVER)
        os.makedirs(world.at("/plugins"))
        os.symlink(str(shell.TOP / "drivers/plugins/relvmoiscsi"), world.at("/plugins/relvmoiscsi"))
        pool.api.host_plugins.directories[pool.master] = world.at("/plugins")
        ran = command("doctor")
    shutil.rmtree(world.root)

    assert (ran.status, last_line(ran), ran.err) == (0, "Ready.", "")
    assert {line.split()[0] for line in ran.out.splitlines()[:-2]} == {"ok"}


@pytest.mark.parametrize(
    ("findings", "status", "verdict"),
    [
        ([FINE, OLD], 0, "Ready, with 1 warning."),
        ([WHITELIST, FINE], 4, "Not ready (1 problem): sm-plugins lacks relvmoiscsi. Run sync."),
        ([AWAY], 4, "Not ready (1 thing unknown): xapi does not answer. Start it."),
        (
            [AWAY, OLD, WHITELIST, AWAY, WHITELIST, OLD],
            4,
            "Not ready (2 problems, 2 things unknown, 2 warnings): sm-plugins lacks relvmoiscsi. Run sync.",
        ),
        ([WHITELIST._replace(host="xs2")], 4, "Not ready (1 problem): xs2: sm-plugins lacks relvmoiscsi. Run sync."),
        (
            [problem("hosts", "xs2 has no complete installation.", "Install it.")._replace(host="xs2")],
            4,
            "Not ready (1 problem): xs2 has no complete installation. Install it.",
        ),
    ],
)
def test_the_verdict_and_its_first_reason_are_the_last_line(doctor, findings, status, verdict):
    ran = doctor(*findings)
    assert (ran.status, last_line(ran)) == (status, verdict)


def test_the_worst_comes_last(doctor):
    ran = doctor(WHITELIST, AWAY, FINE, OLD)

    assert [line.split()[0] for line in ran.out.splitlines()[:-2] if not line.startswith(" ")] == [
        "ok", "warning", "unknown", "problem",
    ]  # fmt: skip
    assert "warning  left-overs" in ran.out and "What to do: Repeat the call" in ran.out


@pytest.mark.parametrize("findings", [[FINE], [WHITELIST, AWAY]])
def test_json(doctor, findings):
    ran = doctor(*findings, words=["--json"])

    is_ready = findings == [FINE]
    assert (ran.status == 0, ran.json["ready"], ran.json["version"]) == (is_ready, is_ready, __version__)
    assert ran.json["verdict"].startswith("Ready." if is_ready else "Not ready (1 problem, 1 thing unknown): ")
    assert ran.json["findings"] == [dict(finding._asdict()) for finding in findings]


def test_names_that_would_take_over_a_terminal_are_escaped(doctor):
    hostile = problem("hosts", "\x9b31m\u202e owned cannot be asked.", "Look at zzz\x1b[2J\udcff.conf.")

    assert "\\x9b31m\\u202e owned cannot be asked" in doctor(hostile).out
    assert "zzz\\x1b[2J" in last_line(doctor(hostile))
    assert doctor(hostile, words=["--json"]).json["ready"] is False


def test_off_dom0_it_says_so(command, tmp_path, monkeypatch):
    monkeypatch.setattr(cli_doctor, "HOST", Host(str(tmp_path)))
    ran = command("doctor")

    assert (ran.status, last_line(ran).split(": ")[:2]) == (4, ["Not ready (1 problem)", "This is no dom0"])
