# SPDX-License-Identifier: LGPL-2.1-only
"""python3 -m relvmoiscsi"""

import sys

from relvmoiscsi.cli import main

sys.exit(main())
