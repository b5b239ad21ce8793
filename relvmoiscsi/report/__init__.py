# SPDX-License-Identifier: LGPL-2.1-only
"""What people and programs are told: facts as JSON-ready dictionaries, and as text. Pure.

lun        what is on a LUN, as `show` and `check` tell it
ids        the map of a run, old ids to new; the result of a run
one_vdi    what making one VDI costs, and what is lost
plan       a plan, write by write
"""

from relvmoiscsi.report.ids import map_facts, map_text, result_facts, whole_map_lines
from relvmoiscsi.report.lun import (
    ASCII_BRANCHES,
    UNICODE_BRANCHES,
    Branches,
    comparison_facts,
    defect_facts,
    defects_text,
    inspection_facts,
    inspection_text,
    note_lines,
    one_vdi_facts,
    saved_vms_facts,
)
from relvmoiscsi.report.one_vdi import cost_facts, cost_text, dropped_facts, one_vdi_loss
from relvmoiscsi.report.plan import plan_facts, plan_text

__all__ = [
    "ASCII_BRANCHES", "UNICODE_BRANCHES", "Branches",
    "comparison_facts", "defect_facts", "defects_text", "inspection_facts", "inspection_text", "note_lines",
    "one_vdi_facts", "saved_vms_facts",
    "map_facts", "map_text", "result_facts", "whole_map_lines",
    "cost_facts", "cost_text", "dropped_facts", "one_vdi_loss",
    "plan_facts", "plan_text",
]  # fmt: skip
