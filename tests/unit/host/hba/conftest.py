# SPDX-License-Identifier: LGPL-2.1-only
"""The sysfs of a real host with two Fibre Channel fabrics."""

import pytest

from kit.hba_world import HbaWorld


@pytest.fixture
def world(tmp_path):
    return HbaWorld(tmp_path)
