# SPDX-License-Identifier: LGPL-2.1-only
"""Time-outs that a test can wait for."""

import pytest

from relvmoiscsi.iscsi import link, target_sessions


@pytest.fixture
def short_waits(monkeypatch):
    monkeypatch.setattr(link, "PING_SECONDS", 0.3)
    monkeypatch.setattr(link, "SILENCE_SECONDS", 2.0)
    monkeypatch.setattr(link, "NO_STEP_SECONDS", 3.0)
    monkeypatch.setattr(link, "LOGOUT_SECONDS", 0.3)
    monkeypatch.setattr(target_sessions, "_TRY_SECONDS", 0.05)
