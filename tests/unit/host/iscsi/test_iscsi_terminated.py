# SPDX-License-Identifier: LGPL-2.1-only
"""SIGTERM at any line of a login, of what takes a failed one back, and of the logout: nothing stays of it."""

import os
import signal
import sys
from contextlib import ExitStack, suppress

import pytest

from kit.iscsi_world import IQN, PORTAL, World
from relvmoiscsi.errors import CommandFailed, RelvmoiscsiError
from relvmoiscsi.host import files, terminated
from relvmoiscsi.host.command import TIMED_OUT
from relvmoiscsi.host.iscsi import changes, iscsiadm, login, luns, notes, records
from relvmoiscsi.host.iscsi.login import OpenIscsi
from relvmoiscsi.host.iscsi.sessions import sessions
from relvmoiscsi.host.locks import sm_locks

CODE = {module.__file__ for module in (login, changes, records, notes, iscsiadm, luns, sm_locks, files)}
CODE |= {terminated.__file__, __file__}
OURS = "11111111-2222-3333-4444-555555555555"
STRIDE = 61  #: lines; each runs the whole call anew, and all of them were tried once


class Terminator:
    """SIGTERM at a line, the first of which is number 1."""

    def __init__(self, number):
        self.left = number

    def __call__(self, frame, event, _argument):
        if frame.f_code.co_filename not in CODE:
            return None
        if event == "line":
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGTERM)
        return self


def host_of(world):
    """Its programs are waited for: the signal ends one that has done nothing yet, or all it was to do."""

    def run(argv, **more):
        terminated.pause(0)
        completed = world.host.runner(argv, **more)
        terminated.pause(0)
        return completed

    return world.host._replace(runner=run, wait_for=lambda condition, _: condition())


def call(host):
    """What the driver does with a session."""
    with ExitStack() as stack, terminated.only_here(), suppress(RelvmoiscsiError):
        session = OpenIscsi(host, lock_seconds=1.0).login(PORTAL, IQN, user=OURS)
        stack.callback(OpenIscsi(host, lock_seconds=1.0).logout, session)
        terminated.pause(0)


def times_out(world):
    def log_in(argv):
        world.log_in(argv)
        raise CommandFailed(argv, TIMED_OUT, "it did not end")

    world.answers["login"] = log_in


def is_refused(world):
    world.answers["login"] = "chap wrong secret: login"


@pytest.mark.states
@pytest.mark.parametrize("prepare", [lambda world: None, times_out, is_refused], ids=["succeeds", "silent", "refused"])
def test_a_call_that_is_told_to_end_at_any_line_leaves_nothing(tmp_path, monkeypatch, prepare):
    for name in ("_RETURN_SECONDS", "_LOGOUT_TIMEOUT"):
        monkeypatch.setattr(login, name, 0.0)
    monkeypatch.setattr(sm_locks, "ALONE_SECONDS", 0.0)
    monkeypatch.setattr(luns, "LOOK_SECONDS", 0.0)
    number, left = 1, 0
    while left <= 0:
        world = World(tmp_path / str(number))
        prepare(world)
        before = world.tree()
        at = Terminator(number)
        with suppress(terminated.Terminated), terminated.heeded():
            sys.settrace(at)
            try:
                call(host_of(world))
            finally:
                sys.settrace(None)
        left = at.left
        assert (set(world.tree()) - set(before), sessions(world.host)) == (set(), []), number
        number += STRIDE
