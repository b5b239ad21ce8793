# SPDX-License-Identifier: LGPL-2.1-only
"""What ten LUNs at a time are worth to `relvmoiscsi pool attach`, and how much memory the client takes.

The simulated pool is a process of its own, so its work does not count for the client. Each call takes LATENCY on the
network. Each resignature takes CREATE, the time of a driver beside nine others. The storage manager takes no time.
"""

import json
import os
import subprocess
import sys
from typing import List, NamedTuple

from bench.table import Number, print_table

LUNS = 30
TARGETS = 4  #: that the LUNs are behind: those of one are attached when all of them have their identities
LATENCY = 0.005  #: seconds
CREATE = 1.0  #: seconds of SR.create on a LUN
JOBS = (1, 10)
GOAL = 8.0  #: so many times as fast ten at a time are

_SERVER = f"""
import sys
from kit.lun_world import World
from kit.pool_lab import Lab
world = World(create_s={CREATE})
with world.pool(hosts=("xs1", "xs2")) as pool:
    lab = Lab(world, pool)
    for number in range({TARGETS}):
        lab.original(str(number), iqn="iqn.2026-01.test:array-" + str(number))
    for number in range({LUNS}):
        lab.clone(str(number % {TARGETS}))
    pool.api.latency_s = {LATENCY}
    print(pool.url, pool.api.password, flush=True)
    sys.stdin.read()
"""

_CLIENT = """
import json, sys, time
from relvmoiscsi.pool import attach, lun_search, records
from relvmoiscsi.pool.connection import Where, connect
url, password, jobs = sys.argv[1], sys.argv[2], int(sys.argv[3])
began = time.monotonic()
with connect(Where(url, "root", password)) as calls:
    pool = records.read(calls)
    found = lun_search.find(calls, pool, pool.portals(), jobs)
    chosen = attach.choose(found, [], [], everything=True)
    done = attach.attach(calls, pool, chosen, attach.AttachRequest(run="bench", jobs=jobs))
seconds = time.monotonic() - began
(peak,) = [int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM:")]
states = [each.status for each in done]
print(json.dumps({"seconds": seconds, "bytes": peak, "attached": states.count("attached")}))
"""


class Run(NamedTuple):
    """What it took the client to attach all LUNs."""

    seconds: float
    bytes: int  #: resident at the most
    attached: int


def attach_all(jobs: int) -> Run:
    """With so many LUNs at a time, in a fresh pool."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([".", "tests"]))
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert server.stdout is not None
    words = server.stdout.readline().decode().rstrip("\n").split(" ", 1)
    try:
        client = [sys.executable, "-c", _CLIENT, *words, str(jobs)]
        return Run(**json.loads(subprocess.check_output(client, env=environment).decode()))
    finally:
        server.communicate()


def numbers() -> List[Number]:
    found = {jobs: attach_all(jobs) for jobs in JOBS}
    assert all(one.attached == LUNS for one in found.values()), found
    ratio = found[1].seconds / found[10].seconds
    print_table(
        f"pool attach, {LUNS} LUNs of {TARGETS} targets: {1000 * LATENCY:g} ms a call, {CREATE:g} s a resignature",
        ("--jobs", "time", "memory"),
        [[str(jobs), f"{one.seconds:.1f} s", f"{one.bytes / (1 << 20):.0f} MiB"] for jobs, one in found.items()],
    )
    what = "pool attach: ten LUNs at a time, times as fast as one by one"
    return [Number(what, f"at least {GOAL:g}", f"{ratio:.1f}", ratio >= GOAL)]
