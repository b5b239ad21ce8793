# SPDX-License-Identifier: LGPL-2.1-only
"""Cost of a reduction of a LUN to one VDI."""

from typing import Dict

from relvmoiscsi.engine import Cost
from relvmoiscsi.wording import human_size

#: for a VDI that is made of several images
IRREVERSIBLE = "Irreversible once committed."


def cost_facts(cost: Cost) -> Dict[str, int]:
    """Return the cost of one VDI for `resignature --vdis one --json`."""
    return dict(cost._asdict())


def cost_text(cost: Cost) -> str:
    """Return the cost as a sentence."""
    return "One VDI" + cost_words(cost)


def cost_words(cost: Cost) -> str:
    goes = {0: "nothing goes", 1: "1 volume goes"}.get(cost.dropped, f"{cost.dropped} volumes go")
    if cost.images == 1:
        return f", which is one image; {goes}. No data to copy."
    data = (
        f"{cost.copied} of {cost.blocks} blocks are copied, {cost.filled} are completed: {human_size(cost.data_bytes)}."
    )
    return (
        f" from {cost.images} images; {goes}. {data if cost.data_bytes else 'No data to copy.'} "
        f"The run needs {cost.fresh_extents} of {cost.free_extents} free extents."
    )
