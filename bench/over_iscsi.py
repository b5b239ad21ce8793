# SPDX-License-Identifier: LGPL-2.1-only
"""A resignature over a session of our own to tgt on loopback: round trips, time, and a copy beside qemu-img.

A round trip is a wait of the initiator for the target: what was sent together is waited for once. So a path to the
array with a latency of 1 ms adds as many milliseconds as there are round trips.
"""

import os
import resource
import shutil
import subprocess
import tempfile
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional
from unittest import mock

from bench import luns
from bench.counts import dice, resignature
from bench.table import Spread, print_table, verdict
from kit.builder import BuiltSr
from kit.iscsi.programs import Export, Tgt
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.device import Chunk, Device, Range
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.iscsi import Initiator, Portal, open_lun
from relvmoiscsi.iscsi.link import Link

COUNTS = (1, 6, 50, 500)
ROUNDS = 5
MOST_ROUND_TRIPS = 40  #: of a whole call, login and logout included, at any number of VDIs
MIB = 1 << 20
COPIED_MIB = 256
COMMAND_MIB, DEPTH = 1, 32
ME = Initiator("iqn.2026-01.test:bench", "0a0b0c0d-0000-4000-8000-000000000001")


def can_run() -> Optional[str]:
    """Why there is nothing to measure here, or None."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [program for program in ("tgtd", "tgtadm", "setpriv") if shutil.which(program, path=path) is None]
    return f"{missing[0]} is not installed" if missing else None


def run(results: Dict[str, Any], unmet: List[str]) -> None:
    """Raises nothing; what is not here is said."""
    reason = can_run()
    if reason is not None:
        print(f"\nNOT RUN: a resignature over iSCSI: {reason}")
        return
    os.makedirs("build/bench", exist_ok=True)
    with tempfile.TemporaryDirectory(dir="build/bench") as directory:
        results["over_iscsi"] = _calls(directory, unmet)
        results["iscsi_copy"] = _copies(directory)


# --- a call


class _Call(NamedTuple):
    seconds: float
    round_trips: int


def _over_iscsi(target: Tgt) -> _Call:
    waits = [0]
    wait = Link.wait

    def counted(link: Link, is_done: Callable[[], bool], what: str) -> None:
        waits[0] += not is_done()
        wait(link, is_done, what)

    began = time.perf_counter()
    where = [Portal("127.0.0.1", target.port)]
    with mock.patch.object(Link, "wait", counted), open_lun(where, target.iqn, ME, 1, True, Deadline(60)) as device:
        resignature(device, dice("iscsi"), "scsi id")
    return _Call(time.perf_counter() - began, waits[0])


def _on_file(path: str) -> float:
    began = time.perf_counter()
    with open_device(path, writable=True) as device:
        resignature(device, dice("iscsi"), "scsi id")
    return time.perf_counter() - began


def _calls(directory: str, unmet: List[str]) -> List[Dict[str, Any]]:
    rows, found = [], []
    for count in COUNTS:
        built = luns.chains(count)
        calls = [_call(built, directory) for _ in range(ROUNDS)]
        files = [_file(built, directory) for _ in range(ROUNDS)]
        (trips,) = {call.round_trips for call in calls}
        seconds = [call.seconds for call in calls]
        rows.append([f"{count} VDIs", trips, Spread.of(seconds).ms(), Spread.of(files).ms()])
        found.append({"vdis": count, "round_trips": trips, "seconds": seconds, "file_seconds": files})
    print_table(
        "Over a session of our own to tgt on loopback, connection to logout (VHD chains)",
        ("", "round trips", "ms: median (fastest-slowest)", "on the image file, ms"),
        rows,
    )
    print()
    most = max(one["round_trips"] for one in found)
    what = f"a call waits at most {MOST_ROUND_TRIPS} times for the target, at any number of VDIs"
    verdict(what, most <= MOST_ROUND_TRIPS, str(most), unmet)
    return found


def _call(built: BuiltSr, directory: str) -> _Call:
    path = os.path.join(directory, "lun.img")
    built.disk.to_file(path)
    with Tgt(directory, [Export(1, os.path.abspath(path))]) as target:
        return _over_iscsi(target)


def _file(built: BuiltSr, directory: str) -> float:
    path = os.path.join(directory, "lun.img")
    built.disk.to_file(path)
    return _on_file(path)


# --- a copy


class _Copy(NamedTuple):
    mib_a_second: float
    cpu_ms_a_mib: float


def _copies(directory: str) -> Dict[str, Any]:
    """Reading and writing, beside `qemu-img` over libiscsi where that is installed."""
    path, image = os.path.join(directory, "copy.img"), os.path.join(directory, "other.img")
    with open(path, "wb") as file:
        for _ in range(COPIED_MIB):
            file.write(os.urandom(MIB))
    with Tgt(directory, [Export(1, os.path.abspath(path))]) as target:
        url = f"iscsi://127.0.0.1:{target.port}/{target.iqn}/1"
        found = {
            "ours, read": _measured(lambda: _ours(target, _read)),
            "ours, write": _measured(lambda: _ours(target, _write)),
        }
        if _knows_iscsi(url):
            found["qemu-img, read"] = _measured(lambda: _qemu(url, image))
            found["qemu-img, write"] = _measured(lambda: _qemu(image, url))
    rows = [[name, f"{copy.mib_a_second:.0f}", f"{copy.cpu_ms_a_mib:.2f}"] for name, copy in found.items()]
    print_table(
        f"{COPIED_MIB} MiB over iSCSI, tgt on loopback, commands of {COMMAND_MIB} MiB, {DEPTH} at a time",
        ("", "MiB/s", "CPU, ms a MiB"),
        rows,
        *([] if "qemu-img, read" in found else ["NOT RUN: qemu-img has no iscsi driver here (qemu-block-extra)"]),
    )
    return {name: copy._asdict() for name, copy in found.items()}


def _measured(work: Callable[[], None]) -> _Copy:
    cpu, began = _cpu(), time.perf_counter()
    work()
    return _Copy(COPIED_MIB / (time.perf_counter() - began), 1000 * (_cpu() - cpu) / COPIED_MIB)


def _cpu() -> float:
    """Seconds of this process, and of those it has waited for; not of the target."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _ours(target: Tgt, work: Callable[[Device], None]) -> None:
    where = [Portal("127.0.0.1", target.port)]
    with open_lun(where, target.iqn, ME, 1, True, Deadline(300)) as device:
        work(device)


def _read(device: Device) -> None:
    for batch in _batches():
        device.read([Range(MIB * number, MIB) for number in batch])


def _write(device: Device) -> None:
    data = os.urandom(MIB)
    for batch in _batches():
        device.write([Chunk(MIB * number, data) for number in batch])
    device.flush()


def _batches() -> List[range]:
    return [range(first, first + DEPTH) for first in range(0, COPIED_MIB, DEPTH)]


def _knows_iscsi(url: str) -> bool:
    if shutil.which("qemu-img") is None:
        return False
    words = ["qemu-img", "info", "-f", "raw", url]
    asked = subprocess.run(words, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return asked.returncode == 0


def _qemu(source: str, goal: str) -> None:
    """Through the page cache of neither side: only the target has one."""
    words = ["qemu-img", "convert", "-f", "raw", "-O", "raw", "-n", "-S", "0", "-m", str(DEPTH // 2), "-W"]
    if not goal.startswith("iscsi:"):
        with open(goal, "wb") as file:
            file.truncate(COPIED_MIB * MIB)
    subprocess.run([*words, source, goal], check=True, stdout=subprocess.DEVNULL)
