# SPDX-License-Identifier: LGPL-2.1-only
"""Lines in Cinder's log. No other module of this package logs, and a test looks for that.

Drivers, targets, os-brick and the users of volumes write into the texts that are logged, also into those of exceptions.
Here each line is one record of printable characters: nobody else starts a line, or moves the cursor of a reader.
"""

import traceback

from oslo_log import log as logging

from relvmoiscsi.wording import printable

_LOG = logging.getLogger(__name__)


def info(line: str) -> None:
    """Log what is done."""
    _LOG.info("%s", printable(line))


def error(line: str, problem: BaseException) -> None:
    """Log a failure, and the traceback of its cause, a record for each line."""
    for text in [line, *"".join(traceback.format_exception(problem)).splitlines()]:
        _LOG.error("%s", printable(text))
