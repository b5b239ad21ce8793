# SPDX-License-Identifier: LGPL-2.1-only
"""What more than one room of tests needs."""

import logging
import syslog

import pytest


@pytest.fixture
def smlog(monkeypatch):
    """The lines that went to SMlog: [(priority, text)]; nothing goes to this machine's."""
    lines = []
    monkeypatch.setattr(syslog, "syslog", lambda priority, text: lines.append((priority, text)))
    logger = logging.getLogger("relvmoiscsi")
    handlers, level = list(logger.handlers), logger.level
    yield lines
    logger.handlers[:] = handlers
    logger.setLevel(level)
