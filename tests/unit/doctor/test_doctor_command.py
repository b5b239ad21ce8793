# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi doctor`: what it prints, in which order, and how it ends. What it finds: tests/unit/doctor/."""

import sys

import pytest

from relvmoiscsi import __version__
from relvmoiscsi import doctor as health
from relvmoiscsi.doctor import doctor_command
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


def severities(ran):
    return [line.split()[0] for line in ran.out.splitlines()[:-2] if not line.startswith(" ")]


REASON = "sm-plugins lacks relvmoiscsi. Run sync."
HOSTS = problem("hosts", "'xs2' has no complete installation.", "Install it.")._replace(host="xs2")


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [
        ([FINE], "Ready."),
        ([FINE, OLD], "Ready, with 1 warning."),
        ([WHITELIST, FINE], "Not ready (1 problem): " + REASON),
        ([AWAY], "Not ready (1 thing unknown): xapi does not answer. Start it."),
        ([AWAY, OLD, WHITELIST] * 2, "Not ready (2 problems, 2 things unknown, 2 warnings): " + REASON),
        ([WHITELIST._replace(host="xs2")], "Not ready (1 problem): 'xs2': " + REASON),
        ([HOSTS], "Not ready (1 problem): 'xs2' has no complete installation. Install it."),
    ],
)
def test_the_verdict_and_its_first_reason_are_the_last_line_and_the_worst_comes_last(doctor, findings, verdict):
    ran, as_json = doctor(*findings), doctor(*findings, words=["--json"])
    is_ready = verdict.startswith("Ready")
    assert (ran.status, last_line(ran)) == (0 if is_ready else 4, verdict)
    assert severities(ran) == sorted(severities(ran), key=["ok", "warning", "unknown", "problem"].index)
    assert (as_json.status, as_json.json["ready"], as_json.json["verdict"]) == (ran.status, is_ready, verdict)
    names = {"name": "check_name", "status": "check_status"}
    told = [{names.get(key, key): value for key, value in finding._asdict().items()} for finding in findings]
    assert as_json.json["findings"] == told
    assert as_json.json["version"] == __version__


@pytest.mark.processes
@pytest.mark.parametrize("findings", [[WHITELIST, FINE, OLD], [AWAY]])
def test_the_verdict_of_a_host_that_is_not_ready_is_on_stderr_where_stdout_is_lost(doctor, monkeypatch, findings):
    verdict = last_line(doctor(*findings))
    for words in (["--quiet"], ["--json"]):
        assert doctor(*findings, words=words).err == f"relvmoiscsi: {verdict}\n"
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        ran = doctor(*findings)
    assert ran.status == 4 and ran.err.splitlines()[-1] == f"relvmoiscsi: {verdict}"


def test_names_that_would_take_over_a_terminal_are_escaped(doctor):
    hostile = problem("hosts", "\x9b31m\u202e owned cannot be asked.", "Look at zzz\x1b[2J\udcff.conf.")

    assert "\\x9b31m\\u202e owned cannot be asked" in doctor(hostile).out
    assert "zzz\\x1b[2J" in last_line(doctor(hostile))
    assert doctor(hostile, words=["--json"]).json["ready"] is False


def test_off_dom0_it_says_so(command, tmp_path, monkeypatch):
    """A real host that is ready: tests/unit/doctor/test_doctor_pool.py."""
    monkeypatch.setattr(doctor_command, "HOST", Host(str(tmp_path)))
    ran = command("doctor")
    assert (ran.status, last_line(ran).split(": ")[:2]) == (4, ["Not ready (1 problem)", "This machine is not a dom0"])
