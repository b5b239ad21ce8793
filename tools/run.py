# SPDX-License-Identifier: LGPL-2.1-only
"""Run a module of this checkout from any directory: python3 -I tools/run.py relvmoiscsi show IMAGE

`python3 -m` imports from the working directory first, in which another user may be able to make files, as in /tmp.
"""

import runpy
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "tests")]
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
