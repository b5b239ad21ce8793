# SPDX-License-Identifier: LGPL-2.1-only
"""A host whose iscsiadm answers from transcripts of the real one, and leaves what that left (iscsi_world.py)."""

import os

import pytest

from kit.clock import Clock
from kit.iscsi_world import (
    World,
)
from relvmoiscsi.host.deadline import Deadline
from relvmoiscsi.host.iscsi import iscsiadm
from relvmoiscsi.host.iscsi import login as iscsi_module
from relvmoiscsi.host.iscsi import luns as iscsi_luns
from relvmoiscsi.host.iscsi.login import OpenIscsi
from relvmoiscsi.host.iscsi.records import break_stale_lock


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch):
    monkeypatch.setattr(iscsi_module, "_DAEMON_PAUSE", 0)
    monkeypatch.setattr(iscsi_module, "_RETURN_SECONDS", 0)
    monkeypatch.setattr(iscsi_module, "_GOING_SECONDS", 0)
    monkeypatch.setattr(iscsi_module, "_COMING_SECONDS", 0)
    for module in (iscsi_module, iscsiadm):
        monkeypatch.setattr(module, "break_stale_lock", lambda host: break_stale_lock(host, 0.01))
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path)
    monkeypatch.setattr(iscsi_luns, "tell_kernel", world.scan)
    return world


@pytest.fixture
def iscsi(world):
    return OpenIscsi(world.host, lock_seconds=1.0)


@pytest.fixture
def quick(monkeypatch):
    """Waiting in vain takes no time."""
    monkeypatch.setattr(iscsi_module, "_LOGOUT_TIMEOUT", 0.0)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def hurried(world, clock):
    """open-iscsi with ten seconds."""
    return OpenIscsi(world.host, lock_seconds=1.0, deadline=Deadline(10, clock))


@pytest.fixture
def no_patience(monkeypatch):
    """Who is there at the first look is there for good."""
    monkeypatch.setattr(iscsi_luns, "LOOK_SECONDS", 0.0)
