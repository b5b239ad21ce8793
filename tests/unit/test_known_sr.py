# SPDX-License-Identifier: LGPL-2.1-only
"""The LUNs that a PBD names: a pool-operator writes any text of any length into its device-config."""

import pytest

from relvmoiscsi.known_sr import luns_of_pbd

ID = "36001405993c87c37fa84d02b7fa62c40"


@pytest.mark.parametrize(
    "config, luns",
    [
        ({"SCSIid": ID}, [ID]),
        ({"ScsiId": f"{ID},36001405b"}, [ID, "36001405b"]),
        ({"SCSIid": "SCSIid"}, ["SCSIid"]),
        ({"device": f"/dev/disk/by-id/scsi-{ID},/dev/disk/by-scsid/{ID}/sdb"}, [ID]),
        ({f"scsi-{ID}": "/dev/sdb"}, [ID, "sdb"]),
        ({"target": "10.0.0.5"}, []),
    ],
)
def test_the_luns_that_a_device_config_names(config, luns):
    assert luns_of_pbd({"device_config": config}, lambda _pbd, path: path[len("/dev/") :]) == luns


def test_a_key_is_looked_at_once_whatever_its_value_has():
    class Key(str):
        looks = 0

        def __getitem__(self, at):
            Key.looks += 1
            return super().__getitem__(at)

        def lower(self):
            raise AssertionError("a long key takes long")

    assert luns_of_pbd({"device_config": {Key("\u00e9" * 100): "," * 100}}) == []
    assert Key.looks <= 2


@pytest.mark.parametrize("config", [{"device": "," * 70000 + f"scsi-{ID}"}, {"/" * 70000 + f"scsi-{ID}": ""}])
def test_of_a_text_that_no_program_writes_the_start_is_read(config):
    assert luns_of_pbd({"device_config": config}) == []
