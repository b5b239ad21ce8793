# SPDX-License-Identifier: LGPL-2.1-only
"""How many examples hypothesis looks at. What differs is data, not code: Python 3.6 takes a fourth, as of states.

The newer one takes all of them in the same `make test`.
"""

import platform

IS_36 = platform.python_version().startswith("3.6.")


def examples(count: int) -> int:
    """So many of `count` examples does this Python take."""
    return max(1, count // 4) if IS_36 else count
