# SPDX-License-Identifier: LGPL-2.1-only
"""The tables of docs/costs.rst: all of them are of one run.

A table of the page is a paragraph with the table's title and two colons, and the printed lines below it.
"""

import re
from typing import List, Mapping

from bench.table import PRINTED

PAGE = "docs/costs.rst"
_TABLE = re.compile(r"^(\S.*)::\n\n(?:  .*\n)+", re.MULTILINE)


def with_tables(page: str, printed: Mapping[str, List[str]]) -> str:
    """`page` with the lines of each of its tables as printed. Raises KeyError for the title of another table."""
    return _TABLE.sub(lambda table: "\n".join([f"{table.group(1)}::\n", *printed[table.group(1)], ""]), page)


def update() -> None:
    """Write the page anew. Raises KeyError, and leaves the page as it is, where this run lacks a table of the page."""
    with open(PAGE, encoding="utf-8") as file:
        page = with_tables(file.read(), PRINTED)
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(page)
