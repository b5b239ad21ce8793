# SPDX-License-Identifier: LGPL-2.1-only
"""What a call does to leave the host as it was."""

import logging
from typing import Callable

from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host import terminated

log = logging.getLogger(__name__)


def quietly(what: str, action: Callable[[], object]) -> None:
    """Cleanup: goes on after a failure, and says so. Not even a bug in it makes a failure of what was written.

    A SIGTERM counts behind it, where the call goes on.
    """
    try:
        with terminated.put_off():
            action()
    except (RelvmoiscsiError, OSError) as error:
        log.error("%s failed: %s", what, error)
    except Exception:
        log.exception("%s failed, by a bug", what)
