# SPDX-License-Identifier: LGPL-2.1-only
"""The numbers of a run of the bench: beside those of the release before, and on the page."""

import pytest

from bench import page as page_of_costs
from bench import release
from bench.devices import QueueDevice
from bench.latency import LATENCIES
from bench.startup import BARE, HELP
from bench.timing import OURS, OURS_IN_PROCESS, VGIMPORTCLONE
from kit.sparse import SparseDisk
from relvmoiscsi.device import Chunk, Range

RESULTS = {
    "counts": [
        dict(zip(release.COUNTED, (13, 6, 8, 6, 6)), kind="VHD chains", vdis=1),
        dict(zip(release.COUNTED, (3012, 8, 2339, 6, 6)), kind="VHD chains", vdis=1000),
    ],
    "latency": [
        {"queue_depth": 32, "latency_seconds": LATENCIES[0], "vdis": 1000, "waits": 183},
        {"queue_depth": 32, "latency_seconds": LATENCIES[-1], "vdis": 1000, "waits": 183},
        {"queue_depth": 0, "latency_seconds": LATENCIES[0], "vdis": 1, "waits": 18},
    ],
    "cpu": {"VHD chains": {1: [0.008], 100: [0.060, 0.070], 1000: [0.600, 0.510]}},
    "processor_time": {"6": {OURS_IN_PROCESS: [0.01, 0.02], OURS: [0.08, 0.08], VGIMPORTCLONE: [0.04, 0.04]}},
    "memory": [{"kind": "VHD chains", "vdis": 1000, "python": "3.6.15", "bytes": 49 << 20}],
    "startup": [
        {"python": "3.13.0", "what": BARE, "seconds": [0.01, 0.01, 0.01]},
        {"python": "3.13.0", "what": HELP, "seconds": [0.03, 0.02, 0.025]},
    ],
    "driver": {"50": [{"bare_s": 1.0, "sr_create_s": 1.5}]},
}


def test_a_run_becomes_numbers_that_can_be_compared():
    assert release.numbers_of(RESULTS) == {
        "VHD chains, 1000 VDIs: reads": 3012,
        "VHD chains, 1000 VDIs: dependent reads": 8,
        "VHD chains, 1000 VDIs: writes": 2339,
        "VHD chains, 1000 VDIs: dependent writes": 6,
        "VHD chains, 1000 VDIs: flushes": 6,
        "queue depth 32, 1000 chained VDIs: waits": 183,
        "queue depth without limit, 1 chained VDIs: waits": 18,
        "VHD chains: CPU a VDI, ms": 0.5,
        "6 VDIs: relvmoiscsi, in process / vgimportclone, processor time": 0.375,
        "6 VDIs: relvmoiscsi, the command / vgimportclone, processor time": 2.0,
        "VHD chains, 1000 VDIs: peak MiB, Python 3.6": 49,
        "relvmoiscsi --help / bare interpreter, Python 3.13": 2.5,
        "50 VDIs: SR.create / bare login and logout, in the VM": 1.5,
    }


def test_a_batch_waits_as_often_as_the_queue_is_full():
    device = QueueDevice(SparseDisk(1 << 30), depth=4)

    device.read([Range(number << 20, 512) for number in range(9)])
    device.read([Range(0, 512), Range(512, 512)])
    device.write([Chunk(number << 20, bytes(512)) for number in range(4)])
    device.flush()

    assert (device.cost.reads, device.cost.writes, device.cost.waits) == (10, 4, 3 + 1 + 1 + 1)


def test_the_page_has_the_tables_of_one_run():
    page = "Text::\n\n  old\n  old\n\nMore, or none::\n\n  -\n\nThe end.\n"

    found = page_of_costs.with_tables(page, {"Text": ["  a  1", "  note"], "More, or none": ["  b"], "Third": ["  c"]})
    assert found == "Text::\n\n  a  1\n  note\n\nMore, or none::\n\n  b\n\nThe end.\n"
    with pytest.raises(KeyError, match="More, or none"):
        page_of_costs.with_tables(page, {"Text": ["  a  1"]})
