# SPDX-License-Identifier: LGPL-2.1-only
"""Time and memory on loop devices, beside LVM: each round does everything once, on the same clone.

`vgimportclone` changes the ids of PV and VG, and the name of the VG. One `lvrename` for each volume changes the names
of the volumes. Neither changes the ids of the volumes, MGT or the images.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Callable, Dict, List, Optional, Sequence

from bench import installed, luns
from bench.counts import resignature
from bench.lvm import Loop, Lvm
from bench.table import Number, Spread, print_table, ratios, size
from kit.builder import BuiltSr
from relvmoiscsi.host.disk.block_device import open_device

COUNTS = (1, 6, 50, 500)  #: LVs beside MGT
ROUNDS = 3
RENAMED_AT_MOST = 50  #: one lvrename takes as long as a vgimportclone
JUDGED, GOAL = 50, 20.0  #: with so many VDIs, so many times as fast as LVM's own commands

OURS_IN_PROCESS, OURS = "relvmoiscsi, in process", "relvmoiscsi, the command"
OURS_36 = "relvmoiscsi, the command, Python 3.6"
VGIMPORTCLONE, RENAMED = "vgimportclone", "vgimportclone + lvrename each"
ORDER = (OURS_IN_PROCESS, OURS, OURS_36, VGIMPORTCLONE, RENAMED)

_YES = ("--yes", "--not-in-use")  #: the loop device is our own
_COMMAND = "import gc, sys; gc.disable(); sys.path.insert(0, '.'); from relvmoiscsi.cli import main; "
_COMMAND += "status = main(sys.argv[1:]); sys.stderr.write(open('/proc/self/status').read()); sys.exit(status)"

#: for each contestant, seconds of each round
Seconds = Dict[str, List[float]]
Contestants = Dict[str, Callable[[], None]]


def _cannot_run() -> Optional[str]:
    """Why there is nothing to measure here, or None."""
    if os.geteuid() != 0:
        return "loop devices and LVM need root"
    missing = [program for program in ("losetup", "lvm", "vgimportclone") if shutil.which(program) is None]
    return f"{missing[0]} is not installed" if missing else None


class _Bench:
    """One clone on a loop device, and everything that can be done to it."""

    def __init__(self, directory: str, built: BuiltSr) -> None:
        self.names = [volume.name for volume in built.truth.volumes if volume.name != "MGT"]
        self.loop = Loop(built.disk, os.path.join(directory, "clone.img"), built.truth.areas[0].end)
        self.lvm = Lvm(os.path.join(directory, "lvm"), self.loop.device)

    def in_process(self) -> None:
        with open_device(self.loop.device, writable=True) as device:
            resignature(device, os.urandom)

    def command(self, start: Sequence[str]) -> None:
        subprocess.run([*start, "resignature", self.loop.device, *_YES], check=True, stdout=subprocess.DEVNULL)

    def vgimportclone(self) -> None:
        self.lvm.vgimportclone("VG_XenStorage-clone")

    def renamed(self) -> None:
        self.vgimportclone()
        self.lvm.rename_all("VG_XenStorage-clone", self.names)

    def judged(self) -> Contestants:
        return {OURS_IN_PROCESS: self.in_process, RENAMED: self.renamed}

    def all(self) -> Contestants:
        start, old = installed.command(sys.executable), installed.python36()
        found: Contestants = {
            OURS_IN_PROCESS: self.in_process,
            OURS: lambda: self.command(start),
            VGIMPORTCLONE: self.vgimportclone,
        }
        if old is not None:
            start_old = installed.command(old)
            found[OURS_36] = lambda: self.command(start_old)
        if len(self.names) <= RENAMED_AT_MOST:
            found[RENAMED] = self.renamed
        return found

    def check(self) -> None:
        """LVM's commands do what they are measured for; or the numbers mean nothing."""
        self.loop.reset()
        self.renamed()
        found = self.lvm.lv_names("VG_XenStorage-clone")
        assert len(found) == len(self.names) + 1 and not set(found) & set(self.names)


def _measured(count: int, choose: Callable[[_Bench], Contestants]) -> Seconds:
    os.makedirs("build/bench", exist_ok=True)
    with tempfile.TemporaryDirectory(dir="build/bench") as directory:
        bench = _Bench(directory, luns.chains(count))
        try:
            if count <= RENAMED_AT_MOST:
                bench.check()
            contestants = choose(bench)
            clock: Seconds = {name: [] for name in contestants}
            for number in range(ROUNDS + 1):
                for name, act in contestants.items():
                    bench.loop.reset()
                    began = time.perf_counter()
                    act()
                    if number:  # the first round warms caches up
                        clock[name].append(time.perf_counter() - began)
            return clock
        finally:
            bench.loop.detach()


def numbers() -> List[Number]:
    what = f"{JUDGED} VDIs, times as fast as {RENAMED}"
    goal, reason = f"at least {GOAL:g}", _cannot_run()
    if reason is not None:
        return [Number(what, goal, reason, None)]
    found = _measured(JUDGED, _Bench.judged)
    times = ratios(found[OURS_IN_PROCESS], found[RENAMED])
    return [Number(what, goal, f"in process, {times.times()}", times.middle >= GOAL)]


def print_all() -> Dict[int, Seconds]:
    """The tables of the page. Return the seconds by number of VDIs, for the plot."""
    times = {count: _measured(count, _Bench.all) for count in COUNTS}
    rows = [[name, *(_cell(times[count].get(name)) for count in COUNTS)] for name in ORDER if name in times[COUNTS[0]]]
    columns = ("", *(f"{count} VDIs" for count in COUNTS))
    print_table("Time on a loop device, ms: median (fastest-slowest)", columns, rows)
    with tempfile.TemporaryDirectory(dir="build/bench") as directory:
        _print_memory(directory)
    return times


def _cell(values: Optional[Sequence[float]]) -> str:
    return Spread.of(values).ms() if values else "-"


def _print_memory(directory: str) -> None:
    """Peak resident memory of the command, as the kernel tells it (VmHWM)."""
    pythons = [path for path in (sys.executable, installed.python36()) if path is not None]
    rows = []
    for count in (1, 100, 1000):
        built = luns.chains(count)
        loop = Loop(built.disk, os.path.join(directory, "clone.img"), built.truth.areas[0].end)
        try:
            row: List[object] = [f"{count} VDIs"]
            for python in pythons:
                loop.reset()
                row.append(size(_peak(python, loop.device)))
        finally:
            loop.detach()
        rows.append(row)
    versions = [installed.version_of(python) for python in pythons]
    print_table("Peak memory of the command (VHD chains)", ("", *("Python " + version for version in versions)), rows)


def _peak(python: str, device: str) -> int:
    argv = [python, "-ISB", "-c", _COMMAND, "resignature", device, *_YES]
    done = subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    (line,) = [line for line in done.stderr.decode().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024
