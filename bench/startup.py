# SPDX-License-Identifier: LGPL-2.1-only
"""What it costs to start: xapi runs the driver once for every call."""

import subprocess
import sys
import time
import xmlrpc.client
from typing import Any, Dict, List

from bench import installed
from bench.table import Spread, print_table, ratios, verdict

ROUNDS = 15
BARE, HELP, REFUSED = "python -c pass", "relvmoiscsi --help", "sr_create, refused"
GOALS = {HELP: 3.0}  #: in multiples of a bare interpreter

_LIST = """
import os, sys
before = set(sys.modules)
os._exit = sys.exit  # the driver ends at once, and there is more to be said here
import runpy
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit:
    pass
sys.stderr.write("\\nmodules: " + " ".join(set(sys.modules) - before))
"""


def call(command: str) -> str:
    """The argument xapi would give; without a target, so that sr_create refuses before it needs anything."""
    parameters = {
        "command": command,
        "host_ref": "OpaqueRef:host",
        "session_ref": "OpaqueRef:session",
        "sr_ref": "OpaqueRef:sr",
        "sr_uuid": "0a0b0c0d-0000-4000-8000-000000000001",
        "subtask_of": "OpaqueRef:task",
        "args": ["0"],
        "device_config": {"SRmaster": "true"},
    }
    return xmlrpc.client.dumps((parameters,), command)


def _time(argv: List[str]) -> float:
    began = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def _modules(python: str, command: str) -> List[str]:
    argv = [python, "-c", _LIST, installed.DRIVER, call(command)]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return sorted(done.stderr.decode().rpartition("modules: ")[2].split())


def run(results: Dict[str, Any], unmet: List[str]) -> None:
    rows, found, verdicts = [], [], []
    for python in filter(None, (sys.executable, installed.python36())):
        version, driver = installed.version_of(python), installed.driver(python)
        contestants = {
            BARE: [python, "-c", "pass"],
            "python -c 'import xmlrpc.client'": [python, "-c", "import xmlrpc.client"],
            "sr_get_driver_info": [*driver, call("sr_get_driver_info")],
            REFUSED: [*driver, call("sr_create")],
            HELP: [*installed.command(python), "--help"],
        }
        times: Dict[str, List[float]] = {name: [] for name in contestants}
        for number in range(ROUNDS + 1):
            for name, argv in contestants.items():
                seconds = _time(argv)
                if number:
                    times[name].append(seconds)
        for name, values in times.items():
            command = name.partition(",")[0]
            modules = _modules(python, command) if command.startswith("sr_") else []
            ours = sum(module.partition(".")[0] == "relvmoiscsi" for module in modules)
            counted: List[object] = [len(modules), ours] if modules else ["", ""]
            bare = ratios(times[BARE], values)
            rows.append([f"{version}  {name}", Spread.of(values).ms(), bare.times(), *counted])
            found.append({"python": version, "what": name, "seconds": values, "modules": modules})
            if name in GOALS:
                verdicts.append((f"Python {version}: {name} in {GOALS[name]:g} bare interpreters", name, bare))
    print_table(
        "Start-up, ms: median (fastest-slowest), and in multiples of a bare interpreter",
        ("Python", "time", "x bare", "modules", "of them ours"),
        rows,
        "started as the package does, the code compiled; sr_create is refused for want of a target",
    )
    print()
    for what, name, bare in verdicts:
        verdict(what, bare.middle <= GOALS[name], bare.times(), unmet)
    results["startup"] = found
