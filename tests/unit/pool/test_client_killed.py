# SPDX-License-Identifier: LGPL-2.1-only
"""The client, a process of its own, is killed (SIGKILL) at a call of attach of each kind that does more than read, and
run again.

The call at which it dies is done, and its answer comes to nobody: after the n-th call the pool is as n calls leave it.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from kit.examples import of_each_kind
from kit.pool_fakes import until
from kit.pool_lab import Image, only_reads
from kit.shell import TOP
from relvmoiscsi.pool import attach, luns, records, secrets
from relvmoiscsi.pool.connection import connect

pytestmark = pytest.mark.processes

TARGET, IQN, CHAP = "10.0.0.6", "iqn.2026-01.test:guarded", ("alice", "a secret word")
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


def run(lab, nursery, tmp_path, words, die_at=None):
    """(status, the calls that did more than read) of the client: killed at the call of this number."""
    pid, seen, lock, started = [], [], threading.Lock(), threading.Event()

    def before(method, _params):
        if only_reads(method):
            return
        with lock:
            seen.append(method)
            if len(seen) == die_at:
                assert started.wait(60)
                os.kill(pid[0], signal.SIGKILL)
                until(lambda: state_of(pid[0]) in ("Z", ""))

    lab.pool.api.before = before
    task = {"argv": words, "out": str(tmp_path / "out"), "environment": lab.pool.environment}
    nursery.stdin.write(json.dumps(task).encode() + b"\n")
    nursery.stdin.flush()
    pid.append(int(nursery.stdout.readline()))
    started.set()
    status = int(nursery.stdout.readline())
    lab.pool.api.before = None
    until(lambda: lab.pool.is_at_rest)
    return status, seen


def state_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def run_again(lab):
    """As `attach --all --clean-secrets`."""
    with connect(lab.where()) as calls, secrets.chap(calls, [records.Portal(TARGET)], *CHAP) as portals:
        pool = records.read(calls)
        secrets.clean(calls, secrets.left_behind(calls, pool, time.time()))
        found = luns.find(calls, pool, portals, 1)
        chosen = attach.choose(found, [], [], everything=True)
        return attach.attach(calls, pool, chosen, attach.AttachRequest(run="a later run"), found=found)


def orphans(lab):
    named = {value for pbd in lab.pool.db.records("PBD").values() for value in pbd["device_config"].values()}
    return {row["uuid"] for row in lab.pool.db.records("secret", value=CHAP[1]).values() if row["uuid"] not in named}


def test_killed_at_a_call_of_each_kind_of_attach(lab, nursery, tmp_path):
    lab.original("Guarded", target=TARGET, iqn=IQN, chap=CHAP)
    clone, secrets_before = lab.clone("Guarded"), orphans(lab)
    (tmp_path / "chap").write_text(CHAP[1] + "\n")
    chap = ["--target", TARGET, "--chap-user", CHAP[0], "--chap-password-file", str(tmp_path / "chap")]
    words = ["pool", "attach", "--all", "--yes", "--json", *chap]
    untouched = Image(lab)
    status, kinds = run(lab, nursery, tmp_path, words)
    assert status == 0 and len(kinds) > 20
    expected, count = lab.summary(), {table: len(lab.pool.db.refs(table)) for table in ("SR", "PBD")}

    for number in of_each_kind(kinds, 40, "killed"):
        untouched.put(lab)
        lab.pool.api.clock = time.time
        status, _ = run(lab, nursery, tmp_path, words, number)
        assert status == signal.SIGKILL
        lab.later()
        (done,) = run_again(lab)
        assert done.scsi_id == clone and done.status in (attach.DONE, attach.ALREADY)
        assert lab.summary() == expected, f"a death at call {number}"
        assert {table: len(lab.pool.db.refs(table)) for table in count} == count, "nothing is doubled"
        assert orphans(lab) <= secrets_before, f"a Secret is left behind after a death at call {number}"
        assert not lab.pool.db.get("pool", lab.pool.pool, "other_config")
    assert not FORBIDDEN & set(lab.pool.api.calls)
