# SPDX-License-Identifier: LGPL-2.1-only
"""Start threads. A user, a slice of systemd and a host have a limit of threads and processes, which count alike."""

import threading
from typing import Any, Callable

from relvmoiscsi.errors import Refused


def start_thread(work: Callable[..., None], *arguments: Any) -> threading.Thread:
    """Call `work` with these arguments in a thread that ends with this process, and return it. Raises Refused."""
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise no_room(error) from error
    return thread


def no_room(error: Exception) -> Refused:
    """Return the refusal for a thread or process that the kernel does not start."""
    reason = getattr(error, "strerror", None) or error
    return Refused(f"The kernel starts no thread or process for relvmoiscsi: {reason}.").advising(
        "End other programs of this user, or raise the limit: `ulimit -u` of the shell, `TasksMax` of the slice that "
        "`systemctl status` shows for the shell."
    )
