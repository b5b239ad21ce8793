# SPDX-License-Identifier: LGPL-2.1-only
"""The tables of the bench: counted as a queue takes operations, and on the page only from one run."""

import os
from contextlib import contextmanager

import pytest

from bench import __main__ as bench
from bench import page as page_of_costs
from bench.devices import QueueDevice
from bench.table import Number
from kit.shell import TOP
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


def test_80_columns_show_the_numbers():
    page = (TOP / page_of_costs.PAGE).read_text(encoding="utf-8")
    table = page.split("and what was seen::\n\n")[1].split("\n\n")[0]
    assert len(table.splitlines()) == 2 * 8
    assert [line for line in table.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("writes_page", [False, True])
def test_a_run_prints_its_numbers_and_changes_the_page_only_for_a_release(monkeypatch, tmp_path, capsys, writes_page):
    """And a run that lacks a table of the page says so, and leaves the page as it is."""

    @contextmanager
    def nothing():
        yield

    monkeypatch.chdir(tmp_path)
    os.mkdir("docs")
    page = tmp_path / page_of_costs.PAGE
    page.write_text("What a run costs, the goal, and what was seen::\n\n  old\n\nAnother::\n\n  old\n")
    parts = ["over_iscsi.round_trips", "over_iscsi.copies"]
    parts += [f"{module}.numbers" for module in ("counts", "vm", "timing", "pool", "startup")]
    for part in parts:
        monkeypatch.setattr(f"bench.{part}", lambda part=part: [Number(part, "1", "2", False)])
    for part in ("one_vdi.print_bytes", "timing.print_all"):
        monkeypatch.setattr(f"bench.{part}", lambda: None)
    monkeypatch.setattr("bench.vm.measuring", nothing)

    if writes_page:
        with pytest.raises(SystemExit, match="has not printed the table 'Another'"):
            bench.main(writes_page)
    else:
        assert bench.main(writes_page) == 0
        assert "7 of 7 goals missed" in capsys.readouterr().out
    assert "old" in page.read_text() and "MISSED" not in page.read_text()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["costs.rst"]
