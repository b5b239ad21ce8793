# SPDX-License-Identifier: LGPL-2.1-only
"""Facts as JSON-ready dictionaries, and as text for people. Pure.

lun_report  content of a LUN, for `show` and `check`; cost of a reduction to one VDI.
run_report  map of a run, old ids to new ids; result of a run; volumes that a run drops; a plan, write by write.
"""

from relvmoiscsi.report.lun_report import (
    ASCII_TREE,
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
from relvmoiscsi.report.run_report import (
    chunks_facts,
    dropped_facts,
    loses,
    loss_of,
    map_facts,
    map_text,
    plan_facts,
    plan_text,
    result_facts,
    whole_map_lines,
)

__all__ = [
    "ASCII_TREE",
    "comparison_facts", "contradictions_text", "defect_facts", "defects_text", "inspection_facts", "inspection_text",
    "note_lines", "one_vdi_facts", "saved_vms_facts",
    "map_facts", "map_text", "result_facts", "whole_map_lines",
    "cost_facts", "cost_text", "dropped_facts", "loses", "loss_of",
    "chunks_facts", "plan_facts", "plan_text",
]  # fmt: skip
