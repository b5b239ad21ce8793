# SPDX-License-Identifier: LGPL-2.1-only
"""A program of ours ends at once, and what it has said is out before."""

import io
import sys

import pytest

from relvmoiscsi.host.leave import leave


class Full(io.StringIO):
    def flush(self):
        raise OSError(28, "No space left on device")


def test_what_was_said_is_out_before_the_end(monkeypatch):
    out, told = io.BytesIO(), []
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="ascii"))
    sys.stdout.write("done")

    leave(3, end=lambda status: told.append((status, out.getvalue())))

    assert told == [(3, b"done")]


def test_without_streams_it_ends_as_well(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)

    leave(0, end=told.append)

    assert told == [0]


def test_what_cannot_be_written_is_left_to_python(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "stdout", Full())

    with pytest.raises(SystemExit) as ended:
        leave(4, end=told.append)

    assert (ended.value.code, told) == (4, [])
