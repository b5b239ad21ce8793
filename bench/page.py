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


def update() -> str:
    """Write the page anew, unless this run lacks a table of the page. The answer says what was done."""
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    try:
        page = with_tables(page, PRINTED)
    except KeyError as error:
        return f"{PAGE} stays as it is: this run has not printed the table {error}"
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(page)
    return f"{PAGE} has the tables of this run"
