# SPDX-License-Identifier: LGPL-2.1-only
"""The program `playground` of the shell of `make playground`: the pool obeys its words, as a plugin of the master."""

import sys

from kit.pool.client import connected
from kit.xe import named_pool

if __name__ == "__main__":
    with connected(named_pool()) as session:
        (pool,) = session.xenapi.pool.get_all_records().values()
        words = {"words": " ".join(sys.argv[1:])}
        answer = session.xenapi.host.call_plugin(pool["master"], "playground", "obey", words)
    status, _, said = answer.partition("\n")
    print(said)
    sys.exit(int(status))
