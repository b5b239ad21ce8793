# SPDX-License-Identifier: LGPL-2.1-only
"""What the tests of packages share: the packages, which take seconds to build."""

import pytest

from kit.rpm_tools import Packages


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    return Packages(tmp_path_factory.mktemp("packages"))
