# SPDX-License-Identifier: LGPL-2.1-only
"""python3 -m relvmoiscsi"""

import sys

try:
    import gc

    # Searching for cycles takes a sixth of a run, and finds few hundred objects in a resignature of 1000 VDIs.
    gc.disable()

    from relvmoiscsi.cli import main
except KeyboardInterrupt:
    sys.stderr.write("relvmoiscsi: Interrupted. Nothing was written. Repeat the command.\n")
    sys.exit(130)

status = main()
from relvmoiscsi.host.terminated import leave  # noqa: E402 - `main` has to begin at once, and ignores signals at its end

leave(status)
