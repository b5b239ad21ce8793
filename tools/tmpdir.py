# SPDX-License-Identifier: LGPL-2.1-only
"""Print the directory for temporary files: TMPDIR, or /tmp where another user can replace what is made in TMPDIR.

Such a TMPDIR is left by `su`: the directory belongs to the user before.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from relvmoiscsi.errors import Refused
from relvmoiscsi.host.own_path import NotOwn, own_way


def main() -> int:
    for path in dict.fromkeys((os.environ.get("TMPDIR") or "/tmp", "/tmp")):
        try:
            with own_way(path) as directory:
                print(directory.path)
                return 0
        except (NotOwn, OSError, Refused) as problem:
            print(f"Temporary files do not go to {path!r}: {problem}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
