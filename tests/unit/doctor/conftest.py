# SPDX-License-Identifier: LGPL-2.1-only
"""What the tests of the doctor share."""

import shutil

import pytest

from kit.doctor_world import World


@pytest.fixture
def world():
    """A host in a directory, gone afterwards."""
    made = World()
    yield made
    shutil.rmtree(made.root)
