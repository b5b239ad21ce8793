# SPDX-License-Identifier: LGPL-2.1-only
"""Clients that others wrote, on the simulated pool. `make clients` fetches them, and nobody else collects these tests.

RELVMOISCSI_CLIENTS is the directory with `node` and `java` (tools/clients.sh).
"""

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
FETCHED = os.environ.get("RELVMOISCSI_CLIENTS", "")

collect_ignore_glob = [] if FETCHED else ["test_*.py"]


@pytest.fixture
def run():
    """`run(pool, program, argument..., stdin="", NAME=value)`: what a program prints that knows the pool's address."""

    def output_of(pool, *argv, stdin="", **names):
        done = subprocess.run(
            [str(word) for word in argv], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120,
            check=False, universal_newlines=True, env={**os.environ, **pool.environment, **names}
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout
        return done.stdout

    return output_of
