# SPDX-License-Identifier: LGPL-2.1-only
"""Facts as JSON-ready dictionaries, and as text for people. Pure.

lun        content of a LUN, and cost of one VDI, for `show` and `check`.
ids        map of a run, old ids to new ids; result of a run.
loss       volumes that a run drops.
plan       a plan, write by write.
"""

from relvmoiscsi.report.ids import map_facts, map_text, result_facts, whole_map_lines
from relvmoiscsi.report.loss import dropped_facts, loss_of
from relvmoiscsi.report.lun import (
    ASCII_BRANCHES,
    UNICODE_BRANCHES,
    Branches,
    comparison_facts,
    contradictions_text,
    cost_facts,
    cost_text,
    defect_facts,
    defects_text,
    inspection_facts,
    inspection_text,
    note_lines,
    one_vdi_facts,
    saved_vms_facts,
)
from relvmoiscsi.report.plan import plan_facts, plan_text

__all__ = [
    "ASCII_BRANCHES", "UNICODE_BRANCHES", "Branches",
    "comparison_facts", "contradictions_text", "defect_facts", "defects_text", "inspection_facts", "inspection_text",
    "note_lines", "one_vdi_facts", "saved_vms_facts",
    "map_facts", "map_text", "result_facts", "whole_map_lines",
    "cost_facts", "cost_text", "dropped_facts", "loss_of",
    "plan_facts", "plan_text",
]  # fmt: skip
