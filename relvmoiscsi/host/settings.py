# SPDX-License-Identifier: LGPL-2.1-only
"""The [driver] section of /etc/relvmoiscsi.conf.

    [driver]
    deadline = 50

deadline: seconds that a call of xapi may take until it begins to write; what it has begun goes on to its end. The
callers' own time-outs are longer: 60 seconds for CloudStack.
"""

import logging
import math

from relvmoiscsi.errors import Refused
from relvmoiscsi.host.config_file import read_config, settings_of
from relvmoiscsi.host.deadline import DEFAULT_SECONDS
from relvmoiscsi.host.this_host import THIS_HOST

log = logging.getLogger(__name__)

SECTION = "driver"
SHORTEST_SECONDS, LONGEST_SECONDS = 5.0, 3600.0


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
