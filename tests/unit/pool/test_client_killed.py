# SPDX-License-Identifier: LGPL-2.1-only
"""The client, a process of its own, is killed (SIGKILL) in the middle of an attach, and run again.

Deaths at a call of each kind, of a client in this process: test_client_secrets.py and test_attach_plan.py.
"""

import os
import signal
import subprocess
import sys
import threading

import pytest

from kit.pool_fakes import until
from kit.pool_lab import Image
from kit.shell import TOP

pytestmark = pytest.mark.processes

TARGET, IQN, CHAP = "10.0.0.6", "iqn.2026-01.test:guarded", ("alice", "a secret word")


def run(lab, words, die_at=""):
    """The exit status of the client. It is killed at its first call of this method: the pool does what was asked, and
    nobody hears of that.
    """
    started, client = threading.Event(), []

    def before(method, _params):
        if method == die_at:
            lab.pool.api.before = None
            assert started.wait(60)
            client[0].kill()
            client[0].wait()

    lab.pool.api.before = before
    environment = dict(os.environ, PYTHONPATH=str(TOP), **lab.pool.environment)
    client.append(subprocess.Popen([sys.executable, "-m", "relvmoiscsi", *words], env=environment, cwd=str(TOP)))
    started.set()
    status = client[0].wait()
    lab.pool.api.before = None
    until(lambda: lab.pool.is_at_rest)
    return status


def test_killed_between_the_sr_and_its_pbds(lab, tmp_path):
    """Nothing is doubled, and no Secret is left behind."""
    lab.original("Guarded", target=TARGET, iqn=IQN, chap=CHAP)
    lab.clone("Guarded")
    (tmp_path / "chap").touch(0o600)
    (tmp_path / "chap").write_text(CHAP[1] + "\n")
    chap = ["--target", TARGET, "--chap-user", CHAP[0], "--chap-password-file", str(tmp_path / "chap")]
    words, untouched = ["pool", "attach", "--all", "--yes", *chap], Image(lab)
    tables = "SR", "PBD", "secret"

    def found():
        return lab.summary(), [len(lab.pool.db.refs(table)) for table in tables], lab.pool.db.records("pool")

    assert run(lab, words) == 0
    expected = found()
    untouched.put(lab)
    assert run(lab, words, "PBD.create") == -signal.SIGKILL and found() != expected
    lab.later()
    assert run(lab, [*words, "--clean-secrets"]) == 0
    assert found() == expected
