# SPDX-License-Identifier: LGPL-2.1-only
"""Is a host ready for SR.create of our types? Each check looks at one thing and gives a Finding; none changes any.

finding.py      a Finding; JSON from host to host
inside.py       looking at a host, or at its files in a directory
driver.py       the driver as xapi finds, starts and understands it; the list of drivers that xapi accepts
hba.py          the second driver, for Fibre Channel
toolstack.py    whether xapi runs, and has started since
pool.py         what xapi knows; the other hosts
programs.py     the host's name, multipath, udev rules, room to write, the log; what killed calls have left
settings.py     what is set for calls of the driver
"""

import time
from typing import List, Optional, Tuple

from relvmoiscsi.doctor.driver import (
    DriverInfo,
    ask_driver,
    examine_package,
    examine_python,
    examine_whitelist,
    find_driver,
)
from relvmoiscsi.doctor.finding import OK, Finding, unknown
from relvmoiscsi.doctor.hba import examine_hba, examine_scans
from relvmoiscsi.doctor.pool import examine_pool, no_pool, read_pool
from relvmoiscsi.doctor.programs import (
    examine_directories,
    examine_initiator,
    examine_maps,
    examine_multipath,
    examine_smlog,
    examine_switches,
    examine_udev,
)
from relvmoiscsi.doctor.settings import examine_vdis
from relvmoiscsi.doctor.toolstack import examine_restart, xapi_started
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host.this_host import Host

AGAIN_SECONDS = 0.5  #: between two looks at what calls at work change; each change takes milliseconds


def examine(host: Host) -> List[Finding]:
    """All there is to say of this host, of xapi, of the pool's other hosts; causes before what follows from them."""
    try:
        pool = read_pool(host)
    except (RelvmoiscsiError, OSError) as error:
        return [*examine_host(host), no_pool(error)]
    found, info = _examine_host(host, pool.is_registered_here)
    return found + examine_pool(host, pool, info)


def examine_host(host: Host) -> List[Finding]:
    """What there is to say of this host without XenAPI; the host plugin answers this."""
    return _examine_host(host, None)[0]


def _examine_host(host: Host, is_registered: Optional[bool]) -> Tuple[List[Finding], Optional[DriverInfo]]:
    found, info = _examine_user(host), None
    driver, executable = find_driver(host)
    found.append(executable)
    if driver is not None and executable.status == OK:
        info, answer = ask_driver(host, driver)
        found += [examine_python(host, driver), answer, examine_package(host, driver)]
    started, runs = xapi_started(host)
    found += [examine_whitelist(host), examine_hba(host), runs, examine_restart(host, started, driver, is_registered)]
    found += [examine_initiator(host), examine_multipath(host), *examine_udev(host)]
    found += [examine_directories(host), examine_smlog(host), *_examine_left_overs(host)]
    found.append(examine_vdis(host))
    return found, info


def _examine_left_overs(host: Host) -> List[Finding]:
    """What killed calls have left. One that ends, or begins, at the very moment of a look seems to be such a call."""

    def look() -> List[Finding]:
        return [examine_maps(host), examine_switches(host), *examine_scans(host)]

    found = look()
    if all(finding.status == OK for finding in found):
        return found
    time.sleep(AGAIN_SECONDS)
    return look()


def _examine_user(host: Host) -> List[Finding]:
    if host.is_superuser:
        return []
    sentence = "Who is not root cannot look at everything."
    return [unknown("user", sentence, "Run `relvmoiscsi doctor` as root.")]
