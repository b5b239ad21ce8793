# SPDX-License-Identifier: LGPL-2.1-only
"""Which LUN is opened, where more than one could be meant."""

import pytest

from kit.iscsi.hostile import HostileTarget
from kit.iscsi.lun import Lun
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.iscsi import Initiator, Portal, open_lun

pytestmark = pytest.mark.usefixtures("clock")

ME = Initiator("iqn.2026-01.test:me", "0a0b0c0d-0000-4000-8000-000000000001")


def test_a_lun_whose_scsi_id_another_one_has_too_is_only_read_and_by_its_number():
    """Some arrays give a clone the SCSIid of its original."""
    luns = [
        Lun(3, naa="6001405000000001"),
        Lun(5, naa="6001405000000001"),
    ]
    with HostileTarget(luns, ignore=("isid kept",)) as target:
        where, me = [Portal("127.0.0.1", target.port)], ME
        with open_lun(where, target.iqn, me, 5, False, Deadline(50)) as device:
            assert device.info.number == 5
        for scsi_id in (None, luns[0].scsi_id):
            with pytest.raises(Refused, match="The LUNs 3, 5 behind .* have one SCSIid"), open_lun(
                where, target.iqn, me, 5, True, Deadline(50), scsi_id=scsi_id
            ):
                pass
        with pytest.raises(Refused, match="The LUNs 3, 5 behind .* have one SCSIid"), open_lun(
            where, target.iqn, me, luns[0].scsi_id, True, Deadline(50)
        ):
            pass


@pytest.mark.parametrize("kind, what", [(0x0C, "the controller of an array"), (0x1B, "a device of type 0x1b")])
def test_a_lun_that_is_no_disk_is_called_what_it_is(kind, what):
    """As LUN 0 of many arrays is."""

    class Other(Lun):
        def inquiry(self):
            return bytes([kind]) + super().inquiry()[1:]

    with HostileTarget([Other(0), Lun(1)]) as target, pytest.raises(
        NotFound, match=f"LUN 0 behind .* is no disk: it is {what}"
    ), open_lun([Portal("127.0.0.1", target.port)], target.iqn, ME, 0, False, Deadline(50)):
        pass


def test_another_lun_under_the_number_is_refused():
    with HostileTarget([Lun(0)]) as target, pytest.raises(Refused, match="it is another LUN now"), open_lun(
        [Portal("127.0.0.1", target.port)], target.iqn, ME, 0, True, Deadline(50), scsi_id="3other"
    ):
        pass
