# SPDX-License-Identifier: LGPL-2.1-only
"""The client, a process of its own, is killed (SIGKILL) at a call of attach that does more than read, and run again.

The call at which it dies is done, and its answer comes to nobody: after the n-th call the pool is as n calls leave it.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from itertools import chain

import pytest

from kit.examples import steps
from kit.lun_world import World
from kit.pool_fakes import until
from kit.pool_lab import Lab, only_reads
from kit.shell import TOP

pytestmark = pytest.mark.processes

TARGET, IQN, CHAP = "10.0.0.6", "iqn.2026-01.test:guarded", ("alice", "a secret word")
#: what a death leaves is the pool's, whichever Python died, and the tests without a process take the other calls
EVERY = 20
FORBIDDEN = {"SR.destroy", "Async.SR.destroy", "VDI.destroy", "Async.VDI.destroy"}

#: imports once, then becomes the client as often as it is told: argv as JSON, a line each; answers with the process id,
#: and with the exit status when that has ended
_NURSERY = """
import json, os, sys
from relvmoiscsi import cli
from relvmoiscsi.cli import parser, pool
import XenAPI, concurrent.futures, xmlrpc.client, http.client, ssl
parser.make_parser(["pool"])
for line in sys.stdin:
    task = json.loads(line)
    child = os.fork()
    if child == 0:
        os.environ.update(task["environment"])
        out = os.open(task["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1); os.dup2(out, 2)
        try:
            status = cli.main(task["argv"])
        except SystemExit as end:
            status = end.code
        sys.stdout.flush(); sys.stderr.flush()
        os._exit(status or 0)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.fixture(scope="module")
def nursery():
    process = subprocess.Popen(
        [sys.executable, "-c", _NURSERY],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=str(TOP), env=dict(os.environ, PYTHONPATH=str(TOP)),
    )  # fmt: skip
    yield process
    process.stdin.close()
    process.wait()
    process.stdout.close()


class Site:
    """A pool with an original and two clones of it behind a target that wants CHAP."""

    def __init__(self, nursery, tmp_path, pool, world):
        self.nursery, self.tmp_path, self.pool, self.world = nursery, tmp_path, pool, world
        self.lab = Lab(world, pool)
        self.lab.original("Guarded", target=TARGET, iqn=IQN, chap=CHAP)
        self.clones = [self.lab.clone("Guarded"), self.lab.clone("Guarded")]
        (tmp_path / "chap").write_text(CHAP[1] + "\n")
        self.chap = ["--target", TARGET, "--chap-user", CHAP[0], "--chap-password-file", str(tmp_path / "chap")]
        self.secrets_before = self.orphans()

    def run(self, *words, die_at=None):
        """(status, what it printed, how many calls did more than read): killed at the call of this number."""
        pid, count, lock = [], [0], threading.Lock()
        started = threading.Event()

        def before(method, params):
            if only_reads(method):
                return
            with lock:
                count[0] += 1
                if count[0] == die_at:
                    assert started.wait(20)
                    os.kill(pid[0], signal.SIGKILL)
                    until(lambda: state_of(pid[0]) in ("Z", ""))

        self.pool.api.before = before
        out = self.tmp_path / "out"
        task = {
            "argv": ["pool", *words, "--yes", "--json"],
            "out": str(out),
            "environment": self.pool.environment,
        }
        self.nursery.stdin.write(json.dumps(task).encode() + b"\n")
        self.nursery.stdin.flush()
        pid.append(int(self.nursery.stdout.readline()))
        started.set()
        status = int(self.nursery.stdout.readline())
        self.pool.api.before = None
        until(lambda: self.pool.is_at_rest)
        self.lab.later()
        return status, out.read_text(), count[0]

    def orphans(self):
        named = {value for pbd in self.pool.db.records("PBD").values() for value in pbd["device_config"].values()}
        secrets = self.pool.db.records("secret", value=CHAP[1]).values()
        return {secret["uuid"] for secret in secrets if secret["uuid"] not in named}

    def notes(self):
        return [
            key for key in self.pool.db.get("pool", self.pool.pool, "other_config") if key.startswith("relvmoiscsi")
        ]

    def state(self):
        """The pool without references, UUIDs and passwords."""
        found = []
        for scsi_id, facts in self.lab.summary().items():
            place = self.clones.index(scsi_id) if scsi_id in self.clones else "original"
            pbds = sorted((self.pool.hosts.index(host), plugged) for host, plugged, _ in facts["pbds"])
            found.append((str(place), {**facts, "pbds": pbds}))
        return sorted(found, key=str)


def state_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def every_death(nursery, tmp_path, words, verify):
    """Kill the client at its first call, its second ... until it comes to its end; `verify` runs it again."""
    expected = None
    for number in chain([0], steps(EVERY)):
        world = World()
        with world.pool(hosts=("xs1", "xs2")) as pool:
            site = Site(nursery, tmp_path, pool, world)
            status, _, calls = site.run(*words(site), die_at=number or None)
            expected = verify(site, expected, number) or expected
            assert not FORBIDDEN & set(pool.api.calls)
        if number and calls < number:
            assert status == 0
            return number
    raise AssertionError("it never came to its end")


def test_killed_at_every_call_of_attach(nursery, tmp_path):
    def words(site):
        return ["attach", "--all", *site.chap]

    def finished(site, expected, number):
        status, text, _ = site.run(*words(site), "--clean-secrets")
        assert status == 0, text
        rows = json.loads(text[text.index("{") : text.rindex("}") + 1])["luns"]
        assert [row["scsi_id"] for row in rows] == site.clones
        assert {row["status"] for row in rows} <= {"attached", "already attached"}
        assert len(site.pool.db.refs("SR")) == 3 and len(site.pool.db.refs("PBD")) == 6, "nothing is doubled"
        assert site.orphans() <= site.secrets_before, f"a Secret is left behind after a death at call {number}"
        assert site.notes() == []
        state = site.state()
        assert expected in (None, state), number
        if number % 10 == 0:
            _, text, _ = site.run(*words(site))
            assert text.count('"status": "already attached"') == 2
        return state

    assert every_death(nursery, tmp_path, words, finished) > 25
