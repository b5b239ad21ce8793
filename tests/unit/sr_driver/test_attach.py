# SPDX-License-Identifier: LGPL-2.1-only
"""What is undone after the work on a LUN does not change how that ended; all else of it is tested in the VM."""

import pytest

from relvmoiscsi.errors import Refused
from relvmoiscsi.sr_driver.attach import _quietly


@pytest.mark.parametrize(
    "failure, said",
    [
        (Refused("The session stays."), "the logout failed: The session stays."),
        (RuntimeError("KeyError('flowers')"), "the logout failed, by a bug"),
    ],
    ids=["a failure", "a bug in a process of its own"],
)
def test_a_cleanup_that_fails_is_logged_and_the_next_one_follows(caplog, failure, said):
    def fail():
        raise failure

    _quietly("the logout", fail)

    assert said in caplog.text
