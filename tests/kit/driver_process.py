# SPDX-License-Identifier: LGPL-2.1-only
"""The executable that xapi starts, as a process of its own, with a simulated xapi and a host in a directory.

    process = start(socket_path, root, call_of("sr_create", ...))
    answer = ended(process)

It runs the file in drivers/ as it is. All that differs from a host: where xapi listens, where the host's files are, and
how long a target may be silent.
"""

import os
import subprocess
import sys

from kit.driver_calls import EXECUTABLE, read

TOP = EXECUTABLE.parents[1]

_STARTER = """
import runpy, sys
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.host.xapi import api
from relvmoiscsi.iscsi import link
link.SILENCE_SECONDS = link.NO_STEP_SECONDS = 600.0  # a machine may stand still for longer than a target may be silent
executable, socket_path, root = sys.argv[1:4]
del sys.argv[:4]
sys.argv.insert(0, executable)
api.Xapi.__init__.__defaults__ = (socket_path, *api.Xapi.__init__.__defaults__[1:])
from relvmoiscsi.lun import call
from relvmoiscsi.sr_driver.iscsi import iscsi_lun, target_access
target_access.THIS_HOST = iscsi_lun.THIS_HOST = call.THIS_HOST = Host(root)
runpy.run_path(executable, run_name="__main__")
"""


def start(socket_path, root, call, python=sys.executable, before=""):
    """The driver at work on one call; its answer is on its pipes. `before` is Python to be run first."""
    return subprocess.Popen(
        [python, "-c", before + _STARTER, str(EXECUTABLE), str(socket_path), str(root), call],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=str(TOP)),
        cwd="/",
    )


def ended(process, seconds=60):
    """Its answer, read as strictly as xapi reads it."""
    stdout, stderr = process.communicate(timeout=seconds)
    assert process.returncode == 0, stderr
    return read(stdout, stderr)
