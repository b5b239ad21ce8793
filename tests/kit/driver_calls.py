# SPDX-License-Identifier: LGPL-2.1-only
"""Calls of the SR driver as xapi makes them, and its answers read as strictly as xapi reads them."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from kit.pool import wire
from kit.pool.runner import PATH, request

EXECUTABLE = Path(__file__).resolve().parents[2] / "drivers" / "ReLVMoISCSISR"
HBA_EXECUTABLE = EXECUTABLE.with_name("ReLVMoHBASR")

#: a current Python and that of dom0, as far as this machine has them
_VENVS = EXECUTABLE.parents[1] / ".venv"
_FOUND = [str(path) for path in (_VENVS / "current/bin/python", _VENVS / "py36/bin/python") if path.exists()]
INTERPRETERS = _FOUND or [sys.executable]

SESSION = "OpaqueRef:aa11cafe-0000-4000-8000-000000000001"
SR = "OpaqueRef:bb22cafe-0000-4000-8000-000000000002"
SR_UUID = "5d0d2b3a-7777-4a4a-9b9b-0123456789ab"
SCSI_ID = "36001405993c87c37fa84d02b7fa62c40"

DEVICE_CONFIG = {
    "SRmaster": "true",
    "target": "10.0.0.5",
    "targetIQN": "iqn.2010-01.com.example:clone7",
    "SCSIid": SCSI_ID,
}

SUCCESS_TEXT = (
    "Error reporting error, unknown key The SR has been successfully resigned. Use the lvmoiscsi type to attach it"
)


class Answer(NamedTuple):
    """What xapi gets."""

    result: object  #: a wire.Fault, or the one value as a wire.Element
    stdout: bytes
    stderr: bytes


def call_of(command, device_config=None, **more):
    """xapi's argument for a command."""
    members = {
        "host_ref": "OpaqueRef:cc33",
        "command": command,
        "args": ["0"],
        "device_config": DEVICE_CONFIG if device_config is None else device_config,
        "session_ref": SESSION,
        "sr_ref": SR,
        "sr_uuid": SR_UUID,
        "subtask_of": "DummyRef:|5b0c|SR.create",
    }
    members.update(more)
    return request(members)


def read(stdout, stderr=b""):
    """The answer in a driver's output; fails for anything that xapi would not take."""
    return Answer(wire.method_response(wire.parse(stdout)), stdout, stderr)


def execute(*argv):
    """Run the driver as a process with exactly xapi's environment; it has to end with 0."""
    process = subprocess.Popen(
        [str(word).encode("utf-8") for word in argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={"PATH": PATH},
    )
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    return read(stdout, stderr)
