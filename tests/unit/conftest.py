# SPDX-License-Identifier: LGPL-2.1-only
"""What more than one room of tests needs."""

import logging
import syslog
from functools import lru_cache

import pytest

from relvmoiscsi.formats.lvm import text_format, vg
from relvmoiscsi.iscsi.link import Link


@pytest.fixture(autouse=True, scope="session")
def texts_are_parsed_once():
    """Many tests look at the same few LUNs again and again. A text gives one tree, which nobody changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vg, "parse", lru_cache(maxsize=64)(text_format.parse))
        yield


@pytest.fixture
def round_trips(monkeypatch):
    """What sessions over iSCSI have waited for, in order: each wait is a round trip."""
    waits, wait = [], Link.wait

    def counted(link, is_done, what):
        if not is_done():
            waits.append(what)
        wait(link, is_done, what)

    monkeypatch.setattr(Link, "wait", counted)
    return waits


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
