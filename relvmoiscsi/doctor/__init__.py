# SPDX-License-Identifier: LGPL-2.1-only
"""Is a host ready for SR.create type=relvmoiscsi? Each check looks at one thing and gives a Finding; none changes any.

finding.py      a Finding; JSON from host to host
system.py       the host that is looked at
driver.py       the driver as xapi finds, starts and understands it; the list of drivers that xapi accepts
toolstack.py    whether xapi runs, and has started since
pool.py         what xapi knows; the other hosts
programs.py     iscsiadm, multipath, udev rules, room to write, the log; what killed calls have left
"""

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
from relvmoiscsi.doctor.pool import examine_pool, no_pool, read_pool
from relvmoiscsi.doctor.programs import (
    examine_directories,
    examine_initiator,
    examine_iscsiadm,
    examine_multipath,
    examine_notes,
    examine_smlog,
    examine_switches,
    examine_udev,
)
from relvmoiscsi.doctor.system import System
from relvmoiscsi.doctor.toolstack import examine_restart, xapi_started
from relvmoiscsi.errors import RelvmoiscsiError


def examine(system: System) -> List[Finding]:
    """All there is to say of this host, of xapi, of the pool's other hosts; causes before what follows from them."""
    try:
        pool = read_pool(system)
    except (RelvmoiscsiError, OSError) as error:
        return [*examine_host(system), no_pool(error)]
    found, info = _examine_host(system, pool.is_registered_here)
    return found + examine_pool(system, pool, info)


def examine_host(system: System) -> List[Finding]:
    """What there is to say of this host without XenAPI; the host plugin answers this."""
    return _examine_host(system, None)[0]


def _examine_host(system: System, is_registered: Optional[bool]) -> Tuple[List[Finding], Optional[DriverInfo]]:
    found, info = _examine_user(system), None
    driver, executable = find_driver(system)
    found.append(executable)
    if driver is not None and executable.status == OK:
        info, answer = ask_driver(system, driver)
        found += [examine_python(system, driver), answer, examine_package(system, driver)]
    started, runs = xapi_started(system)
    found += [examine_whitelist(system), runs, examine_restart(system, started, driver, is_registered)]
    found += [examine_iscsiadm(system), examine_initiator(system), examine_multipath(system), *examine_udev(system)]
    found += [examine_directories(system), examine_smlog(system), examine_notes(system), examine_switches(system)]
    return found, info


def _examine_user(system: System) -> List[Finding]:
    if system.is_superuser:
        return []
    sentence = "Who is not root cannot look at everything."
    return [unknown("user", sentence, "Run `relvmoiscsi doctor` as root.")]
