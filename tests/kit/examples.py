# SPDX-License-Identifier: LGPL-2.1-only
"""How many examples hypothesis looks at. What differs is data, not code: Python 3.6 takes a fourth, as of states.

The newer one takes all of them in the same `make test`.
"""

import platform

IS_36 = platform.python_version().startswith("3.6.")


def examples(count: int) -> int:
    """So many of `count` examples does this Python take."""
    return max(1, count // 4) if IS_36 else count


#: of a client or call that is killed at its first step, its second and so on this Python takes each so many'th
EVERY_DEATH = 5 if IS_36 else 1
#: the same where a test is run with deaths before and with deaths after a call: after one is before the next
EVERY_OTHER_DEATH = 6 if IS_36 else 2
