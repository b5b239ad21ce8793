# SPDX-License-Identifier: LGPL-2.1-only
"""What one version of the engine makes of many LUNs: a line of JSON for each LUN and operation.

`tools/differential.py` runs it with two versions. The same seed gives the same LUNs. A version cuts its own run. Of
a LUN with a random chain of images each version makes one VDI.
"""

import functools
import json
import random
import re
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from relvmoiscsi import engine
from relvmoiscsi.errors import RelvmoiscsiError

from . import cuts, lvmreader, reader
from .chains.random_chain import random_chain
from .chains.random_qcow2 import random_qcow2
from .live import STATES
from .outcome import run_on

CHAINS = {"chain of VHDs": random_chain, "chain of QCOW2 images": random_qcow2}
KINDS = ("as it is", "spoiled", "cut", "cut undo", "cut and used", "cut", *CHAINS)


def _call(lun: Any, one: Optional[engine.OneVdiRequest] = None) -> Any:
    """What the command and the driver do."""
    request = engine.ResignatureRequest(scsi_id=cuts.SCSI_ID, one=one)
    return run_on(lun, cuts.entropy(0), request)


def worker(seed: int, count: int, only: str = "") -> None:
    """A line of JSON for each state and operation; of a kind that has `only` in its name."""
    bases: Dict[str, Callable[[], Any]] = {name: functools.partial(cuts.image, name) for name in cuts.IMAGES}
    bases.update({f"live, {name}": functools.partial(_live, make) for name, make in STATES.items()})
    picker = random.Random(seed)
    names = sorted(bases)
    for number in range(count):
        name, kind = picker.choice(names), KINDS[number % len(KINDS)]
        draw = random.Random(picker.random())
        if only not in kind:
            continue
        if kind in CHAINS:
            for row in _of_chain(kind, number, draw):
                print(json.dumps(row), flush=True)
            continue
        disk = _state(bases[name]().copy(), kind, draw)
        if disk is None:
            continue
        for operation, outcome in _outcomes(disk):
            print(json.dumps([f"{number}: {name}, {kind}", kind, operation, outcome]), flush=True)


def _of_chain(kind: str, number: int, draw: random.Random) -> Iterator[Tuple[str, str, str, str]]:
    """One VDI of a random chain: what it costs, what an uncut run leaves, and what recovery makes of a cut one."""
    name, one = f"{number}: {kind}", engine.OneVdiRequest()
    try:
        disk = CHAINS[kind](draw.randrange(1 << 30)).disk
    except OSError:
        return  # chance has made a chain that does not fit into its volumes
    disk.physical_block_size = draw.choice((512, 4096))
    try:
        prepared = engine.prepare(
            disk.copy(), cuts.entropy(0), engine.ResignatureRequest(scsi_id=cuts.SCSI_ID, one=one)
        )
        yield name, kind, "cost", repr(prepared.cost)
    except RelvmoiscsiError as error:
        yield name, kind, "cost", _words(error)
        return
    yield name, kind, "resignature", _after(disk.copy(), functools.partial(_call, one=one))
    found = cuts.cut_before(disk.copy(), draw.randint(1, 6), run=functools.partial(_call, one=one), blocks=0)
    yield name, kind, "recover", _after(found, engine.recover)


@functools.lru_cache(maxsize=None)
def _live(make: Callable[[], Any]) -> Any:
    return make().built.disk


def _state(disk: Any, kind: str, draw: random.Random) -> Any:
    """The LUN in a state of that kind; None where its version refuses the run."""
    if kind == "as it is":
        return disk
    if kind == "spoiled":
        area = draw.choice([512, 4096, 4096 + 512, 1 << 20, 5 << 20, 9 << 20])
        for _ in range(draw.randint(1, 3)):
            disk.poke(area + draw.randrange(4096), bytes([draw.randrange(256)]))
        return disk
    flush, blocks = draw.randint(2, 6), draw.randint(0, 2)
    try:
        if kind == "cut undo":
            return cuts.cut_before(cuts.done(disk), flush, run=cuts.undo, blocks=blocks)
        found = cuts.cut_before(disk, flush, blocks=blocks)
    except RelvmoiscsiError:
        return None
    if kind == "cut and used":
        cuts.lvm_commit(found, cuts.with_new_volume)
    return found


def _outcomes(disk: Any) -> Iterator[Tuple[str, str]]:
    seen = engine.inspect(disk.copy())
    yield "inspect", f"{seen.state}: {_words(seen.problem)}" if seen.problem is not None else seen.state
    acts: List[Tuple[str, Callable[[Any], Any]]] = [
        ("resignature", _call),
        ("recover", engine.recover),
        ("undo", cuts.undo),
    ]
    for operation, act in acts:
        yield operation, _after(disk.copy(), act)


def _after(disk: Any, act: Callable[[Any], Any]) -> str:
    before = disk.copy()
    try:
        result = act(disk)
        said = getattr(getattr(result, "result", result), "state", "done already")
    except RelvmoiscsiError as error:
        said = f"{type(error).__name__}: {_words(error)}"
    if disk == before:
        return f"nothing is written: {said}"
    try:
        ring = [cuts.label_range(disk), *cuts.free_ring(disk)]
        content = [disk.digest_except(ring), repr(reader.essence(disk)), repr(lvmreader.vg_view(disk))]
    except (AssertionError, ValueError, KeyError, StopIteration) as problem:
        content = [type(problem).__name__]
    digest = random.Random("".join(content)).getrandbits(64)
    return f"written: {said}; {engine.inspect(disk).state}; {digest:016x}"


def _words(error: Any) -> str:
    return re.sub(r"\b[0-9]+\b", "N", str(error))


if __name__ == "__main__":
    worker(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
