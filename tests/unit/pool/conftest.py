# SPDX-License-Identifier: LGPL-2.1-only
"""A pool of three hosts with the originals "Production" and "Testing"."""

from contextlib import contextmanager

import pytest

from kit.lun_world import World
from kit.pool_lab import Image, Lab


@contextmanager
def new_lab(world):
    with world.pool(hosts=("xs1", "xs2", "xs3")) as pool:
        yield Lab(world, pool)


@pytest.fixture(scope="session")
def image_of_originals():
    with new_lab(World()) as lab:
        lab.original("Production")
        lab.original("Testing")
        return Image(lab)


@pytest.fixture
def world():
    return World()


@pytest.fixture
def lab(world, image_of_originals):
    with new_lab(world) as made:
        image_of_originals.put(made)
        yield made
