# SPDX-License-Identifier: LGPL-2.1-only
"""The lock of a LUN among ordinary users: a name that the kernel keeps, for one process of a machine."""

import os

import pytest

from relvmoiscsi.errors import Refused
from relvmoiscsi.host.locks.user_lock import user_lock

NAMED = f"3600test{os.getpid():08d}"


@pytest.mark.processes
def test_the_lock_is_had_once_its_holder_is_named_and_it_ends_with_the_process():
    for _ in range(2):
        with user_lock(NAMED + "1", timeout=0), user_lock("3" + "x" * 254, timeout=0), user_lock(NAMED, timeout=0):
            taken = pytest.raises(Refused, user_lock(NAMED, timeout=0).__enter__)
        assert "this very process" in str(taken.value) and "of the user" not in str(taken.value)
    child = os.fork()
    if not child:
        user_lock(NAMED, timeout=0).__enter__()
        os._exit(0)
    os.waitpid(child, 0)

    with user_lock(NAMED, timeout=0):
        pass
