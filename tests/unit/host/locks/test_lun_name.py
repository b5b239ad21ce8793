# SPDX-License-Identifier: LGPL-2.1-only
"""The lock of a LUN by a name that the kernel keeps: one process of a machine, whatever its user."""

import os

import pytest

from relvmoiscsi.errors import Refused
from relvmoiscsi.host.locks.lun_name import lun_name

SCSI_ID = f"3600test{os.getpid():08d}"


def test_the_name_of_a_lun_is_had_once_and_its_holder_is_named():
    with lun_name(SCSI_ID, 0), pytest.raises(Refused, match="this very process"), lun_name(SCSI_ID, 0):
        raise AssertionError("both have it")


def test_the_name_is_free_afterwards_and_other_luns_have_other_names():
    for _ in range(2):
        with lun_name(SCSI_ID, 0), lun_name(SCSI_ID + "1", 0), lun_name("3" + "x" * 254, 0):
            pass


@pytest.mark.processes
def test_the_name_of_a_process_that_has_ended_is_free():
    child = os.fork()
    if not child:
        lun_name(SCSI_ID, 0).__enter__()
        os._exit(0)
    os.waitpid(child, 0)

    with lun_name(SCSI_ID, 0):
        pass
