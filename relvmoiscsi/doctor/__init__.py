# SPDX-License-Identifier: LGPL-2.1-only
"""Check whether a host is ready for SR.create of relvmoiscsi's types. Each check returns Findings and changes nothing.

finding.py      a Finding; JSON from host to host.
host_root.py    read files and run programs of a host.
driver.py       the drivers as xapi finds, starts and understands the drivers; xapi's list of accepted drivers.
needs.py        whether xapi runs, and has started since the last change; udev rules, free space, settings, leftovers
                of killed calls.
pool.py         xapi's records; the other hosts.
"""

import os
import time
from typing import List

from relvmoiscsi.doctor.driver import examine_drivers, examine_whitelist
from relvmoiscsi.doctor.finding import OK, Finding, problem, unknown
from relvmoiscsi.doctor.needs import (
    examine_direct,
    examine_restart,
    examine_room,
    examine_rules,
    examine_settings,
    examine_stale_resources,
    xapi_started,
)
from relvmoiscsi.doctor.pool import examine_pool, no_pool, read_pool
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host.this_host import Host

AGAIN_SECONDS = 0.5  #: between two reads of data that active calls change; each change takes milliseconds

#: every dom0 has one of these: the installer writes the first, the packages of xapi and sm bring the others
SIGNS_OF_DOM0 = ("/etc/xensource-inventory", "/etc/xapi.conf", "/opt/xensource")


def examine(host: Host, asks_xapi: bool = True) -> List[Finding]:
    """Return the findings on this host, xapi and the other hosts of the pool; causes before their consequences.

    Without `asks_xapi`, return the findings on this host alone, for the host plugin.
    """
    if not any(os.path.exists(host.at(path)) for path in SIGNS_OF_DOM0):
        sentence = f"This machine is not a dom0: it has no {', no '.join(SIGNS_OF_DOM0)}."
        advice = "Run doctor as root in dom0, on a host of the pool. The commands on a LUN need no dom0 and no doctor."
        return [problem("dom0", sentence, advice)]
    found = []
    if not host.is_superuser:
        found = [unknown("user", "Some checks need root.", "Run `relvmoiscsi doctor` as root for a complete check.")]
    drivers, info, path = examine_drivers(host)
    started, runs = xapi_started(host)
    found += [*drivers, examine_whitelist(host), runs, examine_restart(host, started, path)]
    found += [examine_rules(host), *examine_direct(host), examine_room(host)]
    stale = examine_stale_resources(host)
    if stale.status != OK:  # a call that starts or ends during the first look seems killed
        time.sleep(AGAIN_SECONDS)
        stale = examine_stale_resources(host)
    found += [stale, *examine_settings(host)]
    if not asks_xapi:
        return found
    try:
        pool = read_pool(host)
    except (RelvmoiscsiError, OSError) as error:
        return [*found, no_pool(error)]
    return found + examine_pool(host, pool, info)
