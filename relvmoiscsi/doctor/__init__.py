# SPDX-License-Identifier: LGPL-2.1-only
"""Is a host ready for SR.create of our types? Each check looks at one thing and gives a Finding; no check changes it.

finding.py      a Finding; JSON from host to host
host_root.py    looking at a host
driver.py       the drivers as xapi finds, starts and understands them; the list of drivers that xapi accepts
toolstack.py    whether xapi runs, and has started since
needs.py        udev rules, room to write, settings, what killed calls have left on the host
pool.py         what xapi knows; the other hosts
"""

import os
import time
from typing import List, Optional, Tuple

from relvmoiscsi.doctor.driver import DriverInfo, examine_drivers, examine_whitelist
from relvmoiscsi.doctor.finding import OK, Finding, problem, unknown
from relvmoiscsi.doctor.needs import examine_room, examine_rules, examine_settings, examine_stale_resources
from relvmoiscsi.doctor.pool import examine_pool, no_pool, read_pool
from relvmoiscsi.doctor.toolstack import examine_restart, xapi_started
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host.this_host import Host

AGAIN_SECONDS = 0.5  #: between two looks at what calls at work change; each change takes milliseconds

#: of these every dom0 has one: the installer writes the first, the packages of xapi and sm bring the other two
SIGNS_OF_DOM0 = ("/etc/xensource-inventory", "/etc/xapi.conf", "/opt/xensource")


def examine(host: Host) -> List[Finding]:
    """All there is to say of this host, of xapi, of the pool's other hosts; causes before what follows from them."""
    if not _is_dom0(host):
        return [_no_dom0(host)]
    try:
        pool = read_pool(host)
    except (RelvmoiscsiError, OSError) as error:
        return [*examine_host(host), no_pool(error)]
    found, info = _examine_host(host)
    return found + examine_pool(host, pool, info)


def examine_host(host: Host) -> List[Finding]:
    """What there is to say of this host without XenAPI; the host plugin answers this."""
    return _examine_host(host)[0] if _is_dom0(host) else [_no_dom0(host)]


def _is_dom0(host: Host) -> bool:
    return any(os.path.exists(host.at(path)) for path in SIGNS_OF_DOM0)


def _no_dom0(host: Host) -> Finding:
    sentence = f"This is no dom0: there is no {', no '.join(SIGNS_OF_DOM0)}."
    advice = "Run doctor as root in dom0, on a host of the pool. The commands on a LUN need no dom0 and no doctor."
    return problem("dom0", sentence, advice)


def _examine_host(host: Host) -> Tuple[List[Finding], Optional[DriverInfo]]:
    found = []
    if not host.is_superuser:
        found = [unknown("user", "Some checks need root.", "Run `relvmoiscsi doctor` as root for a complete check.")]
    drivers, info, path = examine_drivers(host)
    started, runs = xapi_started(host)
    found += [*drivers, examine_whitelist(host), runs, examine_restart(host, started, path)]
    found += [examine_rules(host), examine_room(host), _examine_stale_resources(host), *examine_settings(host)]
    return found, info


def _examine_stale_resources(host: Host) -> Finding:
    """What killed calls have left. A call that ends, or begins, at the very moment of a look seems to be killed."""
    found = examine_stale_resources(host)
    if found.status == OK:
        return found
    time.sleep(AGAIN_SECONDS)
    return examine_stale_resources(host)
