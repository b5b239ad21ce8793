# SPDX-License-Identifier: LGPL-2.1-only
"""Never the original: any SR of the pool on the LUN's SCSIid ends the call, but for those that such calls make."""

import pytest
from driver_calls import SCSI_ID

from pool.database import Database
from relvmoiscsi.driver.codes import fault_of
from relvmoiscsi.driver.guards import verify_scsi_id_is_free
from relvmoiscsi.errors import Refused

OTHER_ID = SCSI_ID[:-1] + "1"


class Records:
    """The pool's records, and the call whose temporary SR is `sr`."""

    def __init__(self):
        self.db = Database()
        self.hosts = [self.db.create("host", name_label=name) for name in ("xs1", "xs2")]
        self.sr = self.add("relvmoiscsi", SCSI_ID)

    def add(self, type_, scsi_id, attached=False, name="an SR", **fields):
        sr = self.db.create("SR", type=type_, name_label=name, shared=True, **fields)
        for host in self.hosts if scsi_id is not None else ():
            config = {"target": "10.0.0.5", "SCSIid": scsi_id} if scsi_id else {}
            self.db.create("PBD", SR=sr, host=host, device_config=config, currently_attached=attached)
        return sr

    def verify(self):
        verify_scsi_id_is_free(SCSI_ID, self.sr, self.db.records("PBD"), self.db.records("SR"))

    def refusal(self):
        with pytest.raises(Refused) as caught:
            self.verify()
        assert fault_of(caught.value).code == 202, "16 would lose the text"
        assert "Nothing was written." in str(caught.value)
        return str(caught.value)


@pytest.fixture
def records():
    return Records()


def test_the_call_s_own_records_are_no_obstacle(records):
    records.add("lvmoiscsi", OTHER_ID, attached=True)
    records.add("nfs", "", attached=True)
    records.add("udev", None)

    records.verify()


def test_records_without_what_a_guard_reads_are_no_obstacle():
    verify_scsi_id_is_free(SCSI_ID, "OpaqueRef:a", {"p": {}, "q": {"SR": "gone"}}, {"s": {}, "t": {"PBDs": ["p"]}})
    verify_scsi_id_is_free(SCSI_ID, "OpaqueRef:a", {}, {})


@pytest.mark.parametrize("attached", [True, False])
def test_the_original_is_refused(records, attached):
    sr = records.add("lvmoiscsi", SCSI_ID, attached, name="san \u65e5")
    text = records.refusal()

    assert records.db.get("SR", sr, "uuid") in text
    assert "san \u65e5" in text
    assert SCSI_ID in text
    assert ("attached" if attached else "detached") in text.split()


@pytest.mark.parametrize("type_", ["lvmoiscsi", "lvmohba", "iscsi", "ext", ""])
def test_whatever_its_type(records, type_):
    records.add(type_, SCSI_ID)

    records.refusal()


def test_a_pbd_whose_sr_is_gone_is_refused(records):
    records.db.destroy("SR", records.add("lvmoiscsi", SCSI_ID))

    assert "unknown" in records.refusal()


def test_one_pbd_of_another_host_is_enough(records):
    sr = records.add("lvmoiscsi", None)
    records.db.create("PBD", SR=sr, host=records.hosts[1], device_config={"SCSIid": SCSI_ID})

    records.refusal()


def test_another_call_for_the_same_lun_is_no_obstacle(records):
    """Two calls at once, or one that a caller has given up on: each has its records, and the lock orders them."""
    records.add("relvmoiscsi", SCSI_ID)

    records.verify()


def test_a_probe_has_no_sr(records):
    records.sr = ""

    records.verify()
    records.add("lvmoiscsi", SCSI_ID)
    records.refusal()


@pytest.mark.parametrize("serial", ["scsi-" + SCSI_ID, "scsi-{},scsi-{}".format(OTHER_ID, SCSI_ID)])
def test_an_sr_that_says_it_is_on_the_lun_is_refused(records, serial):
    records.add("lvmohba", "", sm_config={"devserial": serial}, name="by its serial")

    assert "by its serial" in records.refusal()


def test_a_serial_alone_or_another_one_is_no_obstacle(records):
    records.add("lvmohba", None, sm_config={"devserial": "scsi-" + SCSI_ID})
    records.add("lvmohba", "", sm_config={"devserial": "scsi-" + OTHER_ID})
    records.add("lvmohba", "", sm_config={"devserial": "scsi-" + SCSI_ID + "0"})

    records.verify()
