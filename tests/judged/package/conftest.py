# SPDX-License-Identifier: LGPL-2.1-only
"""What the tests of packages share: the packages and a release, which take seconds to build."""

import pytest

from kit.rpm_tools import Packages, make_release


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    return Packages(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="session")
def release(tmp_path_factory):
    return make_release(tmp_path_factory.mktemp("release") / "unsigned")
