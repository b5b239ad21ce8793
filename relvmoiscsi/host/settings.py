# SPDX-License-Identifier: LGPL-2.1-only
"""The [driver] section of /etc/relvmoiscsi.conf.

    [driver]
    deadline = 50
    vdis = one
    copy = 1024

deadline: seconds that a call of xapi may take until it begins to write; what it has begun goes on to its end. The
callers' own time-outs are longer: 60 seconds for CloudStack.
vdis: `one` makes each LUN one with a single VDI, `all`, the default, keeps every VDI; a call may say otherwise.
copy: so many MiB of guest data may a call copy to make one VDI of several images. It has begun to write then.
"""

import logging
import math
from typing import Dict, NamedTuple, Optional

from relvmoiscsi.errors import NOTHING_WRITTEN, Refused
from relvmoiscsi.host.config_file import read_config, settings_of
from relvmoiscsi.host.deadline import DEFAULT_SECONDS
from relvmoiscsi.host.this_host import THIS_HOST

log = logging.getLogger(__name__)

SECTION = "driver"
SHORTEST_SECONDS, LONGEST_SECONDS = 5.0, 3600.0
ONE, ALL = "one", "all"
VDIS = (ONE, ALL)
DEFAULT_COPY_MIB = 1024


class OneVdiSetting(NamedTuple):
    """One VDI is wanted."""

    most_bytes: int  #: that a call may copy


def deadline_seconds(path: str = THIS_HOST.config) -> float:
    """The setting; the default where there is none, or one that cannot be meant, which is logged."""
    try:
        text = settings_of(read_config(path), SECTION).get("deadline", "")
        seconds = float(text) if text else DEFAULT_SECONDS
    except (Refused, ValueError) as error:
        log.warning("the deadline of %s is not used: %s", path, error)
        return DEFAULT_SECONDS
    if math.isnan(seconds) or not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        log.warning("the deadline %s of %s is not from %g to %g", text, path, SHORTEST_SECONDS, LONGEST_SECONDS)
        return DEFAULT_SECONDS
    return seconds


def one_vdi(asked: Optional[str] = None, path: str = THIS_HOST.config) -> Optional[OneVdiSetting]:
    """What is asked for, or what the host has; None where every VDI is to be kept.

    Raises Refused for a setting that does not read: a guess would give an SR that the caller cannot use.
    """
    settings = settings_of(read_config(path), SECTION)
    wanted = asked or settings.get("vdis", "") or ALL
    if wanted not in VDIS:
        raise _wrong(path, "vdis", wanted, "`one` or `all`")
    return OneVdiSetting(_copy_mib(settings, path) << 20) if wanted == ONE else None


def _copy_mib(settings: Dict[str, str], path: str) -> int:
    text = settings.get("copy", "") or str(DEFAULT_COPY_MIB)
    if not text.isdigit() or len(text) > 9:
        raise _wrong(path, "copy", text, "a number of MiB")
    return int(text)


def _wrong(path: str, key: str, found: str, expected: str) -> Refused:
    problem = f"The setting {key} in section [{SECTION}] of {path} is {found!r}, expected {expected}."
    return Refused(problem, "InvalidArg").in_state(NOTHING_WRITTEN)
