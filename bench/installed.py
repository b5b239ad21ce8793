# SPDX-License-Identifier: LGPL-2.1-only
"""How the package starts its programs: with these options of the interpreter, and with the code compiled."""

import os
import re
import subprocess
from typing import List, Optional

LAUNCHER = "supp-pack/relvmoiscsi"
DRIVER = "drivers/ReLVMoISCSISR"
OURS = "build/bench/relvmoiscsi"  #: the launcher, with the code of this directory


def python36() -> Optional[str]:
    path = os.path.join(".venv", "py36", "bin", "python")
    return os.path.abspath(path) if os.path.exists(path) else None


def version_of(python: str) -> str:
    """As in "3.6.15"."""
    return subprocess.run([python, "-V"], check=True, stdout=subprocess.PIPE).stdout.decode().split()[1]


def command(python: str) -> List[str]:
    """What `relvmoiscsi` is on a host, for this interpreter and the code here, which it compiles first."""
    _compile(python)
    os.makedirs(os.path.dirname(OURS), exist_ok=True)
    with open(OURS, "w", encoding="utf-8") as program:
        program.write(_launcher().replace("/usr/share/relvmoiscsi", os.path.abspath(".")))
    return [python, *_options(), OURS]


def driver(python: str) -> List[str]:
    """The same for what xapi executes."""
    _compile(python)
    return [python, *_options(), DRIVER]


def _launcher() -> str:
    with open(LAUNCHER, encoding="utf-8") as program:
        return program.read()


def _options() -> List[str]:
    """What stands behind the interpreter in the first line of the launcher; the package's driver has the same."""
    found = re.match(r"#!/usr/bin/python3((?: -\w+)*)\n", _launcher())
    assert found, LAUNCHER
    return found.group(1).split()


def _compile(python: str) -> None:
    subprocess.run([python, "-IBm", "compileall", "-q", "relvmoiscsi"], check=True)
