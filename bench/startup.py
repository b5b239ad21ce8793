# SPDX-License-Identifier: LGPL-2.1-only
"""What it costs to start: xapi runs the driver once for every call."""

import subprocess
import sys
import time
import xmlrpc.client
from typing import Any, Dict, List

from bench.table import Spread, print_table, ratios
from bench.timing import python36, version_of

DRIVER = "drivers/ReLVMoISCSISR"
ROUNDS = 15

_LIST = """
import sys
before = set(sys.modules)
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
    argv = [python, "-c", _LIST, DRIVER, call(command)]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return sorted(done.stderr.decode().rpartition("modules: ")[2].split())


def run(results: Dict[str, Any], _unmet: List[str]) -> None:
    rows, found = [], []
    for python in filter(None, (sys.executable, python36())):
        version = version_of(python)
        contestants = {
            "python -c pass": [python, "-c", "pass"],
            "python -c 'import xmlrpc.client'": [python, "-c", "import xmlrpc.client"],
            "sr_get_driver_info": [python, DRIVER, call("sr_get_driver_info")],
            "sr_create, refused": [python, DRIVER, call("sr_create")],
            "relvmoiscsi --help": [python, "-m", "relvmoiscsi", "--help"],
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
            bare = ratios(times["python -c pass"], values)
            rows.append([f"{version}  {name}", Spread.of(values).ms(), bare.times(), *counted])
            found.append({"python": version, "what": name, "seconds": values, "modules": modules})
    print_table(
        "Start-up, ms: median (fastest-slowest), and in multiples of a bare interpreter",
        ("Python", "time", "x bare", "modules", "of them ours"),
        rows,
        "sr_create is refused for want of a target, before anything else is needed",
    )
    results["startup"] = found
