# SPDX-License-Identifier: LGPL-2.1-only
"""SMlog: where SM and its plugins write, through syslog's local2, as `SM: [pid] text`; and syslog where SM is not."""

import logging
import os
import re
import syslog
from typing import Iterable, List

#: SM's own switch
NO_LOG_FILE = "/etc/xensource/no_sm_log"
MASK = "********"
#: what XML 1.0 cannot hold, however it is written. One set for all of it takes 20 times as long to compile
_NOT_XML = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f]|[\ud800-\udfff]|[\ufffe\uffff]")
_OPAQUE_REF = re.compile(r"OpaqueRef:[0-9A-Za-z-]+")


def xml_safe(text: str) -> str:
    """The text with a question mark for each character that would make an XML document unreadable."""
    return _NOT_XML.sub("?", text)


class SmLogHandler(logging.Handler):
    """Writes each record as one line; secrets, and references that could be a session's, never get there."""

    def __init__(self, secrets: Iterable[str] = (), ident: str = "SM", facility: int = syslog.LOG_LOCAL2) -> None:
        super().__init__(logging.INFO)
        self._pid = os.getpid()  # of the call, whichever of its processes says something
        self._secrets: List[str] = []
        for secret in secrets:
            self.hide(secret)
        syslog.openlog(ident, 0, facility)

    def hide(self, secret: str) -> None:
        """From now on the text of `secret` is masked."""
        for form in (secret, repr(secret)[1:-1]):
            if form and form not in self._secrets:
                self._secrets.append(form)
        self._secrets.sort(key=len, reverse=True)

    def masked(self, text: str) -> str:
        """The text without secrets."""
        text = _OPAQUE_REF.sub("OpaqueRef:" + MASK, text)
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

    def line_of(self, record: logging.LogRecord) -> str:
        lines = self.masked(self.format(record)).splitlines()  # with the traceback, if there is one
        return "[{}] relvmoiscsi: {}".format(self._pid, xml_safe(" | ".join(lines)))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if not os.path.exists(NO_LOG_FILE):
                syslog.syslog(_priority(record.levelno), self.line_of(record))
        except Exception:  # noqa: BLE001
            pass  # a log that cannot be written must not end a run; nor be told on stderr, which xapi hands on


def other_syslog() -> SmLogHandler:
    """The same lines for a host that has no SM, under our own name."""
    return SmLogHandler(ident="relvmoiscsi", facility=syslog.LOG_USER)


def _priority(level: int) -> int:
    if level >= logging.ERROR:
        return syslog.LOG_ERR
    return syslog.LOG_WARNING if level >= logging.WARNING else syslog.LOG_INFO
