# SPDX-License-Identifier: LGPL-2.1-only
"""Time and memory on loop devices, in paired runs: each round does everything once, on the same clone.

Others who use the machine only slow things down, so the fastest rounds are judged. The processor time, of programs and
kernel, stands beside it: it is what a busy host feels, and LVM waits for most of its time.
"""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from bench import installed, luns
from bench.counts import resignature
from bench.lvm import Loop, Lvm
from bench.table import Spread, print_table, ratios, size, verdict
from kit.builder import BuiltSr
from relvmoiscsi.host.disk.block_device import open_device

ROUNDS = {1: 4, 6: 4, 50: 3, 500: 3}  #: LVs beside MGT: how often
RENAMED_AT_MOST = 50  #: one lvrename takes as long as a vgimportclone

OURS_IN_PROCESS, OURS = "relvmoiscsi, in process", "relvmoiscsi, the command"
OURS_36 = "relvmoiscsi, the command, Python 3.6"
VGIMPORTCLONE, RENAMED = "vgimportclone", "vgimportclone + lvrename each"
PROCEDURE = "LVM part of the 2015 procedure"

#: by number of VDIs, how many times as fast as vgimportclone, which never looks at a volume; fastest rounds
GOALS = {
    OURS_IN_PROCESS: {1: 5.0, 6: 4.0, 50: 1.5, 500: 0.4},
    OURS: {1: 0.9, 6: 0.9, 50: 0.8, 500: 0.3},
}
MEMORY_MIB = 36
_YES = ("--yes", "--not-in-use")  #: the loop device is our own
_COMMAND = "import gc, sys; gc.disable(); sys.path.insert(0, '.'); from relvmoiscsi.cli import main; "
_COMMAND += "status = main(sys.argv[1:]); sys.stderr.write(open('/proc/self/status').read()); sys.exit(status)"


def _cannot_run() -> Optional[str]:
    """Why there is nothing to measure here, or None."""
    if os.geteuid() != 0:
        return "loop devices and LVM need root"
    missing = [program for program in ("losetup", "lvm", "vgimportclone") if shutil.which(program) is None]
    return f"{missing[0]} is not installed" if missing else None


class _Bench:
    """One clone on a loop device, and everything that can be done to it."""

    def __init__(self, directory: str, built: BuiltSr) -> None:
        self.truth = built.truth
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
        self.lvm.vgimportclone("VG_XenStorage-clone")
        names = [volume.name for volume in self.truth.volumes if volume.name != "MGT"]
        self.lvm.rename_all("VG_XenStorage-clone", names)

    def procedure(self) -> None:
        self.lvm.restore_edited(self.truth.vg_name)

    def contestants(self) -> Dict[str, Callable[[], None]]:
        start = installed.command(sys.executable)
        found: Dict[str, Callable[[], None]] = {
            OURS_IN_PROCESS: self.in_process,
            OURS: lambda: self.command(start),
            VGIMPORTCLONE: self.vgimportclone,
            PROCEDURE: self.procedure,
        }
        old = installed.python36()
        if old is not None:
            start_old = installed.command(old)
            found[OURS_36] = lambda: self.command(start_old)
        if len(self.truth.volumes) - 1 <= RENAMED_AT_MOST:
            found[RENAMED] = self.renamed
        return found

    def check(self) -> None:
        """The alternatives did what they are measured for; or the numbers mean nothing."""
        self.loop.reset()
        new_name = self.lvm.restore_edited(self.truth.vg_name)
        names = self.lvm.lv_names(new_name)
        assert len(names) == len(self.truth.volumes)
        assert not {volume.name for volume in self.truth.volumes}.difference(["MGT"]).intersection(names)


def _processor_seconds() -> float:
    """Of this process and of all that it has waited for."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


#: for each contestant, seconds of each round
Seconds = Dict[str, List[float]]


def _measure(bench: _Bench, rounds: int) -> Tuple[Seconds, Seconds]:
    """By the clock, and of processors."""
    bench.check()
    contestants = bench.contestants()
    clock: Seconds = {name: [] for name in contestants}
    processor: Seconds = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, act in contestants.items():
            bench.loop.reset()
            began, used = time.perf_counter(), _processor_seconds()
            act()
            if number:  # the first round warms caches up
                clock[name].append(time.perf_counter() - began)
                processor[name].append(_processor_seconds() - used)
    return clock, processor


def run(results: Dict[str, Any], unmet: List[str]) -> None:
    reason = _cannot_run()
    if reason is not None:
        print(f"\nNOT RUN: time and memory beside LVM: {reason}")
        return
    times: Dict[int, Seconds] = {}
    processor: Dict[int, Seconds] = {}
    os.makedirs("build/bench", exist_ok=True)
    with tempfile.TemporaryDirectory(dir="build/bench") as directory:
        for count, rounds in ROUNDS.items():
            bench = _Bench(directory, luns.chains(count))
            try:
                version = bench.lvm.version()
                times[count], processor[count] = _measure(bench, rounds)
            finally:
                bench.loop.detach()
        _print_times(times, processor, version)
        _judge(times, unmet)
        results["time"] = {str(count): found for count, found in times.items()}
        results["processor_time"] = {str(count): found for count, found in processor.items()}
        results["lvm"] = version
        results["memory"] = _memory(directory, unmet)


def _print_times(times: Dict[int, Seconds], processor: Dict[int, Seconds], version: str) -> None:
    counts = list(times)
    names = sorted({name for found in times.values() for name in found}, key=_order)
    columns = ("", *(f"{count} VDIs" for count in counts))
    for what, measured in (("Time", times), ("Processor time", processor)):
        rows = [[name, *(_cell(measured[count].get(name)) for count in counts)] for name in names]
        print_table(f"{what} on a loop device, ms: median (fastest-slowest)", columns, rows)
    against = [name for name in names if name not in (OURS_IN_PROCESS, OURS, OURS_36)]
    rows = [
        [f"{name} / {own}, {what}", *(_ratio(measured[count], own, name) for count in counts)]
        for own in (OURS_IN_PROCESS, OURS)
        for what, measured in (("time", times), ("processor time", processor))
        for name in against
    ]
    print_table(
        "How many times faster: median (least-most) of the pairs",
        columns,
        rows,
        f"LVM {version}, nothing activated. vgimportclone changes PV id, VG id and VG name, nothing else.",
        "The procedure is measured up to vgcfgrestore: without the activation of every LV, MGT, VHD parents.",
        "LVM never flushes; ours flushes six times.",
    )


def _order(name: str) -> int:
    return (OURS_IN_PROCESS, OURS, OURS_36, VGIMPORTCLONE, RENAMED, PROCEDURE).index(name)


def _cell(values: Optional[Sequence[float]]) -> str:
    return Spread.of(values).ms() if values else "-"


def _ratio(found: Dict[str, List[float]], own: str, other: str) -> str:
    return ratios(found[own], found[other]).times() if other in found else "-"


def _judge(times: Dict[int, Seconds], unmet: List[str]) -> None:
    print()
    for own, goals in GOALS.items():
        for count, wanted in goals.items():
            ratio = min(times[count][VGIMPORTCLONE]) / min(times[count][own])
            what = f"{count} VDIs: {own} {wanted:g} times as fast as vgimportclone"
            verdict(what, ratio >= wanted, f"{ratio:.2f}", unmet)


def _memory(directory: str, unmet: List[str]) -> List[Dict[str, Any]]:
    """Peak resident memory of the command, as the kernel tells it (VmHWM)."""
    pythons = [path for path in (sys.executable, installed.python36()) if path is not None]
    found: List[Dict[str, Any]] = []
    rows = []
    for kind, build in luns.KINDS.items():
        for count in (1, 100, 1000):
            built = build(count)
            loop = Loop(built.disk, os.path.join(directory, "clone.img"), built.truth.areas[0].end)
            try:
                row: List[object] = [kind, count]
                for python in pythons:
                    loop.reset()
                    version, peak = _peak(python, loop.device)
                    row.append(size(peak))
                    found.append({"kind": kind, "vdis": count, "python": version, "bytes": peak})
            finally:
                loop.detach()
            rows.append(row)
    versions = list(dict.fromkeys(item["python"] for item in found))
    print_table("Peak memory of the command", ("", "VDIs", *("Python " + version for version in versions)), rows)
    print()
    for item in found:
        if item["vdis"] == 1000:
            what = "{} MiB at 1000 VDIs, {}, Python {}".format(MEMORY_MIB, item["kind"], item["python"])
            verdict(what, item["bytes"] <= MEMORY_MIB << 20, size(item["bytes"]), unmet)
    return found


def _peak(python: str, device: str) -> "tuple[str, int]":
    argv = [python, "-ISB", "-c", _COMMAND, "resignature", device, *_YES]
    done = subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    (line,) = [line for line in done.stderr.decode().splitlines() if line.startswith("VmHWM:")]
    return installed.version_of(python), int(line.split()[1]) * 1024
