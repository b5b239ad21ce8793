# SPDX-License-Identifier: LGPL-2.1-only
"""What must be loaded until the driver, and the command, read a LUN for the first time.

xapi starts the driver once for every call, and a person waits for the command.
"""

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Dict, List, NamedTuple, Tuple

from bench import installed
from bench.over_iscsi import ME, can_run
from bench.table import Number, Spread, print_table
from kit import driver_process, golden
from kit.driver_calls import call_of
from kit.iscsi.programs import Export, Tgt
from kit.pool.client import connected_locally
from kit.pool.simulator import Pool
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.iscsi import Portal, list_luns

ROUNDS = 7
MODULES, SECONDS = 100, 0.1

#: ends the process at the first read of the LUN, and tells what that took. The driver reads in a child, whose stderr is
#: not that of the call; the time of its parent counts as well
_UNTIL_THE_FIRST_READ = """
import gc, os, sys, time
gc.disable()
sys.path.insert(0, {top!r})
from relvmoiscsi.iscsi.lun_device import LunDevice
said, began = os.dup(2), os.getpid()
def tell(*_):
    own = sum(name.partition(".")[0] == "relvmoiscsi" for name in sys.modules)
    seconds = time.process_time()
    if os.getpid() != began:
        with open("/proc/{{}}/schedstat".format(began)) as file:
            seconds += int(file.read().split()[0]) / 1e9
    os.write(said, "until the first read: {{}} {{}}".format(own, seconds).encode())
    os._exit(0)
LunDevice.read = tell
"""
_COMMAND = "from relvmoiscsi.cli import main; main(sys.argv[1:])"


class Start(NamedTuple):
    """What it took until the first read."""

    modules: int  #: our own
    seconds: float  #: of a processor


def numbers() -> List[Number]:
    what, goal = "own modules, and processor time, until the first read", f"at most {MODULES}, {SECONDS} s"
    reason = can_run()
    if reason is not None:
        return [Number(what, goal, reason, None)]
    found: Dict[Tuple[str, str], List[Start]] = {}
    for python in filter(None, (sys.executable, installed.python36())):
        subprocess.run([python, "-IBm", "compileall", "-q", "relvmoiscsi"], check=True)
        for name, starts in _starts(python).items():
            found[installed.version_of(python), name] = starts
    rows = [
        [f"{name}, Python {version}", starts[0].modules, Spread.of([start.seconds for start in starts]).ms()]
        for (version, name), starts in found.items()
    ]
    print_table(
        "Until the first read of a LUN over iSCSI",
        ("", "own modules", "processor, ms: median (fastest-slowest)"),
        rows,
    )
    worst: Dict[str, Start] = {}  # of all Pythons
    for (_, name), starts in found.items():
        modules, seconds = starts[0].modules, Spread.of([start.seconds for start in starts]).middle
        before = worst.get(name, Start(0, 0.0))
        worst[name] = Start(max(before.modules, modules), max(before.seconds, seconds))
    is_met = all(start.modules <= MODULES and start.seconds <= SECONDS for start in worst.values())
    seen = "; ".join(f"{name} {start.modules}, {start.seconds:.2f} s" for name, start in worst.items())
    return [Number(what, goal, seen, is_met)]


def _starts(python: str) -> Dict[str, List[Start]]:
    top = os.path.abspath(".")
    hook = _UNTIL_THE_FIRST_READ.format(top=top)
    with tempfile.TemporaryDirectory(prefix="bench", dir="/tmp") as directory:  # the path of a socket is short
        image = os.path.join(directory, "lun.img")
        golden.load("chain").disk.to_file(image)
        os.mkdir(os.path.join(directory, "sm"))
        socket = os.path.join(directory, "xapi")
        with ExitStack() as stack:
            pool = stack.enter_context(Pool(Path(directory, "sm"), socket))
            session = stack.enter_context(connected_locally(pool))
            target = stack.enter_context(Tgt(directory, [Export(1, image)]))
            (lun,) = list_luns([Portal("127.0.0.1", target.port)], target.iqn, ME, Deadline(60)).disks
            config = {"SRmaster": "true", "target": "127.0.0.1", "port": str(target.port)}
            config.update({"targetIQN": target.iqn, "SCSIid": lun.scsi_id})
            call = call_of("sr_create", config, host_ref=pool.master, session_ref=session.handle)
            url = f"iscsi://127.0.0.1:{target.port}/{target.iqn}/1"
            words = [python, "-ISB", "-c", hook + _COMMAND, "resignature", url, "--yes", "--not-in-use"]
            pipe = subprocess.PIPE
            found: Dict[str, List[Start]] = {"driver": [], "command": []}
            for _ in range(ROUNDS):
                driver = driver_process.start(socket, os.path.join(directory, "host"), call, python, before=hook)
                found["driver"].append(_told(driver))
                found["command"].append(_told(subprocess.Popen(words, stdout=pipe, stderr=pipe)))
    return found


def _told(process: "subprocess.Popen[bytes]") -> Start:
    printed, said = process.communicate()
    _, is_there, numbers = said.decode().partition("until the first read: ")
    assert is_there, printed + said
    modules, seconds = numbers.split()
    return Start(int(modules), float(seconds))
