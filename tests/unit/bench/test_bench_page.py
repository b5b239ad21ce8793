# SPDX-License-Identifier: LGPL-2.1-only
"""The tables of the bench: counted as a queue takes operations, and on the page only from one run."""

import pytest

from bench import page as page_of_costs
from bench.devices import QueueDevice
from kit.sparse import SparseDisk
from relvmoiscsi.device import Chunk, Range


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
