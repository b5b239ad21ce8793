# SPDX-License-Identifier: LGPL-2.1-only
"""What people read, to the letter: the golden LUNs as `show` draws them, the plan as a table, sizes, labels."""

import json
import os

import pytest

from kit import golden
from kit.chains.random_chain import random_chain
from kit.cuts import entropy
from relvmoiscsi import engine, report, wording
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.errors import Refused, Unfinished
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.resignature.planning.selection import Cost
from relvmoiscsi.resignature.protocol import steps

TREE = """\
/dev/sdc: SR 8d7e9748-54ea-475b-8999-0d688a40c914 'mix'
  state    clean
  LUN      512 MiB, 80 MiB of 496 MiB allocated in 10 volumes
  VG       wiquf6-npSd-eFfd-LfCf-6dcf-ry3y-yruRpR, generation 28
  PV       IdJLLi-vjox-QedG-lFZB-Q0M0-XpNj-v9dJMJ
  changed  2026-11-21 01:12 UTC on virtme-ng: the last change of the SR by LVM, not the time of a snapshot

VDI                                                size  on LUN  kind
    label
2199a5ad-3b1d-4986-a934-b64f65f16b16              8 MiB  12 MiB  vhd
    'base copy' [hidden]
└─ e18cd845-79d2-4011-8e36-ed0252fce752           8 MiB  12 MiB  vhd
    'base copy' [hidden]
   └─ c9e75c9d-c52e-4d1f-beae-55b0fdf46481        8 MiB  16 MiB  vhd
    'base copy' [hidden]
      └─ 3f3a48ad-452c-4abd-9cd6-b238ed335b24     8 MiB   8 MiB  vhd
    'base copy' [hidden]
         └─ e0672695-8b1c-43bf-b507-5bf218d8eb89  8 MiB   8 MiB  vhd
    'leaf' [CBT]
db9087e6-b5b6-4ba6-a9d5-5044b8e4edd8              4 MiB   4 MiB  raw
    'base copy' [hidden]
└─ 6c936f08-3c14-41f7-8136-e4597b31e47e           4 MiB   8 MiB  vhd
    'on a raw base' [CBT, snapshot of e0672695]

Other volumes: e0672695-8b1c-43bf-b507-5bf218d8eb89.cbtlog, 6c936f08-3c14-41f7-8136-e4597b31e47e.cbtlog, MGT"""


def shown(*more):
    return report.inspection_text("/dev/sdc", engine.inspect(golden.load("tree").disk), *more)


@pytest.fixture(scope="module")
def prepared():
    """The golden LUN "one", about to be resignatured."""
    return engine.prepare(golden.load("one").disk, os.urandom)


def test_a_golden_lun_is_drawn_like_this():
    """The golden LUN "chain" is in the documents."""
    assert shown() == TREE
    assert shown().translate(report.ASCII_TREE) == TREE.replace("├─ ", "|- ").replace("└─ ", "`- ")


@pytest.mark.parametrize(
    "size, text", [(1023, "1023 bytes"), (1024, "1 KiB"), (3 << 29, "1.5 GiB"), (3 << 60, "3072 PiB")]
)
def test_sizes_are_in_binary_units(size, text):
    assert wording.human_size(size) == text


@pytest.mark.parametrize(
    "text, safe",
    [
        ("Größe 漢字 \U0001f600", "Größe 漢字 \U0001f600"),
        ("\x9b2J\x7f\x1b", "\\x9b2J\\x7f\\x1b"),
        ("\u202eevil\u200b", "\\u202eevil\\u200b"),
        ("bad\udcff.img", "bad\\xff.img"),  # as in the command $'bad\xff.img'
        ("\udcc3\udca9", "\\xc3\\xa9"),
        ("\ud800", "\\ud800"),
    ],
)
def test_control_characters_are_shown_and_not_sent(text, safe):
    assert wording.printable(text) == safe


def test_whatever_stands_in_a_journal_or_a_problem_is_shown_and_not_sent(prepared):
    ids = IdMap("\x1b[31mold", {"\x1b[31mold": "\x1b[31mnew"}, {})
    cut = engine.Inspection(
        engine.UNFINISHED, run=prepared.plan.run._replace(ids=ids), problem=Unfinished("It was cut.")
    )
    text = report.inspection_text("/dev/sdc", cut)
    assert text.splitlines()[1] == "It was to become SR \\x1b[31mnew (it was \\x1b[31mold)."
    assert report.map_text(None, ids) == "  SR   \\x1b[31mold  became  \\x1b[31mnew"

    outlook = engine.OneVdiOutlook(engine.CANNOT_BE_ONE, problem=Refused("\x1b[2J is no parent."))
    line = "  one VDI  cannot be made: \\x1b[2J is no parent.\n"
    assert line in shown(outlook)


# --- one VDI


@pytest.fixture(scope="module")
def plan_of_one():
    """A plan with fills, copies and holes."""
    chain = random_chain(0, free=40)
    return engine.prepare(chain.disk, entropy(0), engine.ResignatureRequest(one=OneVdiRequest())).plan


def test_the_plan_of_one_vdi_has_what_is_alike_in_one_item_and_large_pieces_without_their_bytes(plan_of_one):
    rows = report.plan_facts(plan_of_one)

    assert all(list(row)[:5] == ["device_offset", "length", "structure", "old_bytes", "new_bytes"] for row in rows)
    left_out = [row for row in rows if row["new_bytes"] is None]
    assert {row["structure"] for row in left_out} == {"new image", "guest data, copied"}
    assert all(row["length"] > 64 << 10 or "device_offsets" in row for row in left_out)
    several = [row for row in rows if "device_offsets" in row]
    assert {row["structure"] for row in several} >= {"bitmap of a block that was filled", "bitmap of a free slot"}
    assert all(row["device_offset"] is None and len(row["new_bytes"] or 8192 * "0") == 8192 for row in several)
    assert len(json.dumps(rows)) < 200000


def test_the_plan_of_one_vdi_has_every_write(plan_of_one):
    planned = [write for step in steps.ALL_PARTS for write in plan_of_one.each_write(step)]

    rows = report.plan_facts(plan_of_one)

    told = [
        offset for row in rows for offset in row.get("device_offsets", [row["device_offset"]]) if offset is not None
    ]
    assert told == [write.offset for write in planned]
    copied = [row for row in rows if row["structure"] == "guest data, copied"]
    assert [row["length"] for row in copied] == [plan_of_one.unseen.copied_bytes]


COST = Cost(3, 4, 10, 8, 2, 2, 4 << 20, 3, 40)
COSTS = [
    (COST, "One VDI from 3 images; 4 volumes are deleted. 2 of 10 blocks are copied, 2 are completed: 4 MiB. "
           "The run needs 3 of 40 free extents."),
    (COST._replace(images=1, dropped=1), "One VDI, which is one image; 1 volume is deleted. No data to copy."),
]  # fmt: skip


@pytest.mark.parametrize("cost, text", COSTS)
def test_what_one_vdi_costs_is_told_in_short_sentences(cost, text):
    assert report.cost_text(cost) == text
