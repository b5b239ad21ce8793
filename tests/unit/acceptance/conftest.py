# SPDX-License-Identifier: LGPL-2.1-only
"""Somebody at a terminal."""

import io
import sys

import pytest


class Terminal(io.StringIO):
    """Somebody sits at stdin and types this."""

    def isatty(self):
        return True


@pytest.fixture
def type_in(monkeypatch):
    """Puts somebody at a terminal, who types a text and then no more."""
    return lambda text: monkeypatch.setattr(sys, "stdin", Terminal(text))
