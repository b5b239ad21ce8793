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
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple
from unittest import mock

from bench import luns
from bench.counts import dice, resignature
from bench.table import Number, Spread, print_table, ratios
from kit.builder import BuiltSr
from kit.iscsi.programs import Export, Tgt
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.device import Chunk, Device, Range
from relvmoiscsi.iscsi import Initiator, Portal, open_lun
from relvmoiscsi.iscsi.link import Link
from relvmoiscsi.resignature.writing.step import BATCH_BYTES

COUNTS = (1, 6, 50, 500)
ROUNDS = 3
MOST_ROUND_TRIPS = 42  #: of a whole call, login and logout included, at any number of VDIs
PART_OF_QEMU = 0.5
MIB = 1 << 20
COPIED_MIB = 256
BATCH_MIB = BATCH_BYTES // MIB  #: as in a run
ME = Initiator("iqn.2026-01.test:bench", "0a0b0c0d-0000-4000-8000-000000000001")


def can_run() -> Optional[str]:
    """Why there is nothing to measure here, or None."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [program for program in ("tgtd", "tgtadm", "setpriv") if shutil.which(program, path=path) is None]
    return f"{missing[0]} is not installed" if missing else None


def round_trips() -> List[Number]:
    what = f"round trips of a run over iSCSI, fence included: {COUNTS[0]} to {COUNTS[-1]} VDIs"
    goal, reason = f"at most {MOST_ROUND_TRIPS}", can_run()
    if reason is not None:
        return [Number(what, goal, reason, None)]
    with _directory() as directory:
        found = [_trips(luns.chains(count), directory) for count in COUNTS]
    return [Number(what, goal, f"{min(found)} to {max(found)}", max(found) <= MOST_ROUND_TRIPS)]


def copies() -> List[Number]:
    """Reading and writing, beside `qemu-img` over libiscsi. Each round does everything once."""
    what, goal = "guest data over iSCSI, as a part of the speed of qemu-img", f"at least {PART_OF_QEMU} each"
    reason = can_run()
    with _directory() as directory:
        found = {} if reason else _copies(directory)
    if "qemu-img, read" not in found:
        return [Number(what, goal, reason or "qemu-img has no iscsi driver here (qemu-block-extra)", None)]
    rows = [
        [
            name,
            "{:.0f} ({:.0f}-{:.0f})".format(*_middle_first(copy.mib_a_second for copy in rounds)),
            "{:.2f} ({:.2f}-{:.2f})".format(*_middle_first(copy.cpu_ms_a_mib for copy in rounds)),
        ]
        for name, rounds in found.items()
    ]
    print_table(
        f"{COPIED_MIB} MiB over iSCSI, tgt on loopback, in batches of {BATCH_MIB} MiB: median (least-most)",
        ("", "MiB/s", "processor, ms a MiB"),
        rows,
    )
    parts = {}
    for verb in ("read", "write"):
        ours, theirs = ([copy.mib_a_second for copy in found[f"{who}, {verb}"]] for who in ("ours", "qemu-img"))
        parts[verb] = ratios(theirs, ours)
    is_met = all(part.middle >= PART_OF_QEMU for part in parts.values())
    return [Number(what, goal, "; ".join(f"{verb} {part.shares()}" for verb, part in parts.items()), is_met)]


def _middle_first(values: Iterable[float]) -> Tuple[float, float, float]:
    low, middle, high = Spread.of(list(values))
    return middle, low, high


def _directory() -> "tempfile.TemporaryDirectory[str]":
    os.makedirs("build/bench", exist_ok=True)
    return tempfile.TemporaryDirectory(dir="build/bench")


# --- a call


def _trips(built: BuiltSr, directory: str) -> int:
    """How often a whole call waits for the target, from connection to logout."""
    waits = [0]
    wait = Link.wait

    def counted(link: Link, is_done: Callable[[], bool], what: str) -> None:
        waits[0] += not is_done()
        wait(link, is_done, what)

    path = os.path.join(directory, "lun.img")
    built.disk.to_file(path)
    with Tgt(directory, [Export(1, os.path.abspath(path))]) as target, mock.patch.object(Link, "wait", counted):
        where = [Portal("127.0.0.1", target.port)]
        with open_lun(where, target.iqn, ME, 1, True, Deadline(60)) as device:
            resignature(device, dice("iscsi"), "360014051111111111111111111111111")
    return waits[0]


# --- a copy


class _Copy(NamedTuple):
    mib_a_second: float
    cpu_ms_a_mib: float


def _copies(directory: str) -> Dict[str, List[_Copy]]:
    path, image = os.path.join(directory, "copy.img"), os.path.join(directory, "other.img")
    with open(path, "wb") as file:
        for _ in range(COPIED_MIB):
            file.write(os.urandom(MIB))
    found: Dict[str, List[_Copy]] = {}
    with Tgt(directory, [Export(1, os.path.abspath(path))]) as target:
        url = f"iscsi://127.0.0.1:{target.port}/{target.iqn}/1"
        works: Dict[str, Callable[[], None]] = {"ours, read": lambda: _ours(target, _read)}
        if _knows_iscsi(url):
            works["qemu-img, read"] = lambda: _qemu(url, image)
        works["ours, write"] = lambda: _ours(target, _write)
        if _knows_iscsi(url):
            works["qemu-img, write"] = lambda: _qemu(image, url)
        for _ in range(ROUNDS):
            for name, work in works.items():
                found.setdefault(name, []).append(_measured(work))
    return found


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
    data = [os.urandom(MIB) for _ in range(BATCH_MIB)]
    for batch in _batches():
        device.write([Chunk(MIB * number, part) for number, part in zip(batch, data)])
    device.flush()


def _batches() -> List[range]:
    return [range(first, first + BATCH_MIB) for first in range(0, COPIED_MIB, BATCH_MIB)]


def _knows_iscsi(url: str) -> bool:
    if shutil.which("qemu-img") is None:
        return False
    words = ["qemu-img", "info", "-f", "raw", url]
    asked = subprocess.run(words, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return asked.returncode == 0


def _qemu(source: str, goal: str) -> None:
    """Through the page cache of neither side: only the target has one."""
    words = [
        "qemu-img",
        "convert",
        "-f",
        "raw",
        "-O",
        "raw",
        "-n",
        "-S",
        "0",
        "-m",
        "16",
        "-W",
    ]  # 16 requests at a time, the most
    if not goal.startswith("iscsi:"):
        with open(goal, "wb") as file:
            file.truncate(COPIED_MIB * MIB)
    subprocess.run([*words, source, goal], check=True, stdout=subprocess.DEVNULL)
