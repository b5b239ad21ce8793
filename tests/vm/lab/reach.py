# SPDX-License-Identifier: LGPL-2.1-only
"""As a program: log in to a target, or log out, for the stand-in for lvmoiscsi.

reach.py login IQN PORTAL [USER PASSWORD]
reach.py logout IQN
"""

import os
import sys

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
sys.path[:0] = [os.path.dirname(sys.path[0])]

from lab import initiator  # noqa: E402
from lab.lio import Chap  # noqa: E402

if __name__ == "__main__":
    what, iqn, *rest = sys.argv[1:]
    if what == "login":
        initiator.login(iqn, rest[0], Chap(*rest[1:]) if rest[1:] else None)
    else:
        initiator.logout(iqn)
