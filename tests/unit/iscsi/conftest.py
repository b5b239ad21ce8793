# SPDX-License-Identifier: LGPL-2.1-only
"""Time that passes by itself where nobody has anything to do."""

import pytest

from kit.iscsi import idle_time


@pytest.fixture
def clock(monkeypatch):
    return idle_time.patched_in(monkeypatch)
