# SPDX-License-Identifier: LGPL-2.1-only
"""What `python3 -m observer DRIVER XML` does with a driver where nothing is traced: it runs it by runpy.

The file behind the driver's name must then be Python 3 source, whatever its first line says.
Source: xen-api python3/packages/observer.py, main.
"""

import os
import runpy
import sys
import traceback


def main():
    sys.argv = sys.argv[1:]
    sys.path[0] = os.getcwd()  # as `-m` has it; this directory would offer its modules to the driver
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        status = 0 if ended.code is None else ended.code
        if status:
            traceback.print_exc()
        return status
    except Exception:  # noqa: BLE001  as the observer does
        print("Exception in the traced script:", file=sys.stderr)
        traceback.print_exc()
        return 139
    return 0


if __name__ == "__main__":
    exit_status = main()
    if exit_status:
        sys.exit(exit_status)
