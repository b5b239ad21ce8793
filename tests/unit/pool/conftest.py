# SPDX-License-Identifier: LGPL-2.1-only
"""A pool of three hosts with the originals "Production" and "Testing"."""

import pytest

from kit.lun_world import World
from kit.pool_lab import Lab


@pytest.fixture
def world():
    return World()


@pytest.fixture
def lab(world):
    with world.pool(hosts=("xs1", "xs2", "xs3")) as pool:
        made = Lab(world, pool)
        made.original("Production")
        made.original("Testing")
        yield made
