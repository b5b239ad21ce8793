# SPDX-License-Identifier: LGPL-2.1-only
"""SMlog: SM and its plugins write `SM: [pid] text` to syslog's local2. On a host without SM: the host's own syslog."""

import logging
import os
import re
import syslog
from typing import Iterable, List

from relvmoiscsi.wording import printable

#: while this file exists, SM writes no log
NO_LOG_FILE = "/etc/xensource/no_sm_log"
MASK = "********"
_OPAQUE_REF = re.compile(r"OpaqueRef:[0-9A-Za-z-]+")


class SmLogHandler(logging.Handler):
    """Writes each record as one line, without secrets and without references, which may be a session's."""

    def __init__(self, secrets: Iterable[str] = (), ident: str = "SM", facility: int = syslog.LOG_LOCAL2) -> None:
        super().__init__(logging.INFO)
        self._pid = os.getpid()  # the call's process: its children log with the same number
        self._secrets: List[str] = []
        for secret in secrets:
            self.hide(secret)
        syslog.openlog(ident, 0, facility)

    def hide(self, secret: str) -> None:
        """Mask the text of `secret` from now on."""
        for form in (secret, repr(secret)[1:-1]):
            if form and form not in self._secrets:
                self._secrets.append(form)
        self._secrets.sort(key=len, reverse=True)

    def masked(self, text: str) -> str:
        """Return the text without secrets and references."""
        text = _OPAQUE_REF.sub("OpaqueRef:" + MASK, text)
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if not os.path.exists(NO_LOG_FILE):
                is_info, is_error = record.levelno < logging.WARNING, record.levelno >= logging.ERROR
                priority = syslog.LOG_ERR if is_error else syslog.LOG_INFO if is_info else syslog.LOG_WARNING
                lines = self.masked(self.format(record)).splitlines()  # the format includes a traceback
                syslog.syslog(priority, f"[{self._pid}] relvmoiscsi: {printable(' | '.join(lines))}")
        except Exception:  # noqa: BLE001
            pass  # a failed log must not end a run, and must not print to stderr, which xapi passes on
