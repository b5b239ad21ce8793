# SPDX-License-Identifier: LGPL-2.1-only
"""Never the original: any user of the LUN in the pool ends the work, but for the SRs that calls to us make."""

import pytest

from kit.pool.database import Database
from relvmoiscsi.errors import Refused
from relvmoiscsi.host.xapi.lun_users import Pool, ids_named, users_of, verify_unused
from relvmoiscsi.sr_driver.codes import fault_of

SCSI_ID = "36001405993c87c37fa84d02b7fa62c40"
OTHER_ID = SCSI_ID[:-1] + "1"


class Records:
    """The pool's records, and the call whose temporary SR is `sr`."""

    def __init__(self):
        self.db = Database()
        self.hosts = [self.db.create("host", name_label=name) for name in ("xs1", "xs2")]
        self.links = {}
        self.sr = self.add("relvmoiscsi", SCSI_ID)

    def add(self, type_, scsi_id, attached=False, name="an SR", **fields):
        sr = self.db.create("SR", type=type_, name_label=name, shared=True, **fields)
        for host in self.hosts if scsi_id is not None else ():
            config = {"target": "10.0.0.5", "SCSIid": scsi_id} if scsi_id else {}
            self.db.create("PBD", SR=sr, host=host, device_config=config, currently_attached=attached)
        return sr

    @property
    def pool(self):
        return Pool(self.db.records("PBD"), self.db.records("SR"), self.db.records("VDI"))

    def verify(self):
        verify_unused(SCSI_ID, self.pool, self.sr, self.links.get)

    def users(self):
        return [user.sentence for user in users_of(SCSI_ID, self.pool, self.links.get) if not user.is_own]

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
    half = Pool({"p": {}, "q": {"SR": "gone"}}, {"s": {}, "t": {"PBDs": ["p"]}}, {"v": {}})

    verify_unused(SCSI_ID, half, "OpaqueRef:a")
    verify_unused(SCSI_ID, Pool({}, {}, {}), "OpaqueRef:a")


@pytest.mark.parametrize("attached", [True, False])
def test_the_original_is_refused(records, attached):
    sr = records.add("lvmoiscsi", SCSI_ID, attached, name="san \u65e5")
    text = records.refusal()

    assert records.db.get("SR", sr, "uuid") in text
    assert "san \u65e5" in text
    assert SCSI_ID in text
    assert ("attached" if attached else "detached") in text.split()


@pytest.mark.parametrize("type_", ["lvmohba", "iscsi", "ext", ""])
def test_whatever_its_type_and_by_one_pbd_of_another_host(records, type_):
    sr = records.add(type_, None)
    records.db.create("PBD", SR=sr, host=records.hosts[1], device_config={"SCSIid": SCSI_ID})

    records.refusal()


def test_a_pbd_whose_sr_is_gone_is_refused(records):
    records.db.destroy("SR", records.add("lvmoiscsi", SCSI_ID))

    assert "unknown" in records.refusal()


@pytest.mark.parametrize("type_", ["relvmoiscsi", "relvmohba"])
def test_another_call_for_the_same_lun_is_no_obstacle(records, type_):
    """Two calls at once, or one that a caller has given up on: each has its records, and the lock orders them."""
    records.add(type_, SCSI_ID)

    records.verify()


def test_a_probe_has_no_sr(records):
    records.sr = ""

    records.verify()
    records.add("lvmoiscsi", SCSI_ID)
    records.refusal()


@pytest.mark.parametrize(
    "sm_config",
    [
        {"devserial": "scsi-" + SCSI_ID},
        {"devserial": f"scsi-{OTHER_ID},scsi-{SCSI_ID}"},
        {"SCSIid": OTHER_ID + "," + SCSI_ID},
        {"scsi-" + SCSI_ID: "true"},
    ],
)
def test_an_sr_that_says_it_is_on_the_lun_is_refused(records, sm_config):
    records.add("netapp", "", sm_config=sm_config, name="another maker's")

    assert "another maker's" in records.refusal()


def test_so_is_one_that_no_host_is_connected_to(records):
    """An original in maintenance: its PBDs are destroyed, xapi keeps its VDIs, and the array gives the clone its id."""
    records.add("lvmohba", None, sm_config={"devserial": "scsi-" + SCSI_ID}, name="production")

    assert "('production') was made on this LUN, and no host is connected to it." in records.refusal()


def test_what_an_interrupted_attach_of_ours_leaves_is_no_obstacle(records):
    """The new SR is introduced, and has no PBD yet; so it was never attached and has no serial."""
    records.add("lvmoiscsi", None, sm_config={})
    records.add("relvmohba", None, sm_config={"devserial": "scsi-" + SCSI_ID})

    records.verify()


def test_another_serial_is_no_obstacle(records):
    records.add("lvmohba", "", sm_config={"devserial": "scsi-" + OTHER_ID})
    records.add("lvmohba", "", sm_config={"devserial": "scsi-" + SCSI_ID + "0"})

    records.verify()


# --- what else has it


ELSEWHERE = "/dev/disk/by-id/wwn-0x5000c500a1b2c3d4"


@pytest.mark.parametrize(
    "config",
    [
        {"device": "/dev/disk/by-id/scsi-" + SCSI_ID},
        {"device": "/dev/disk/by-id/scsi-" + SCSI_ID + "-part3"},
        {"device": "/dev/sda3,/dev/disk/by-id/scsi-" + SCSI_ID},
        {"device": "/dev/disk/by-id/dm-uuid-mpath-" + SCSI_ID},
        {"device": "/dev/disk/by-id/wwn-0x" + SCSI_ID[1:]},
        {"device": "/dev/disk/by-scsid/" + SCSI_ID + "/mapper"},
        {"device": "/dev/disk/by-scsibus/" + SCSI_ID + "-3:0:0:1"},
        {"device": "/dev/disk/mpInuse/" + SCSI_ID},
        {"device": "/dev/mapper/" + SCSI_ID},
        {"device": "/dev/sda3, " + ELSEWHERE},
        {"provider": "x", "ScsiId": SCSI_ID},
    ],
    ids=lambda config: config.get("device", "gfs2"),
)
def test_a_pbd_that_names_the_device_is_refused(records, config):
    records.links[ELSEWHERE] = SCSI_ID
    sr = records.add("ext", None, name="by its path")
    records.db.create("PBD", SR=sr, host=records.hosts[1], device_config=config)

    assert "The detached SR {} ('by its path')".format(records.db.get("SR", sr, "uuid")) in records.refusal()


@pytest.mark.parametrize(
    "device",
    [
        "/dev/disk/by-id/scsi-" + OTHER_ID,
        "/dev/disk/by-id/scsi-" + SCSI_ID + "0",
        "/dev/disk/by-id/scsi-0" + SCSI_ID,
        "/dev/disk/by-id/wwn-0x" + SCSI_ID,
        "/dev/sdb",
        ELSEWHERE,
        "/dev/disk/by-id/gone",
        "",
    ],
)
def test_a_pbd_with_another_device_is_no_obstacle(records, device):
    """/dev/sdb is another disk on another host."""
    records.links.update({ELSEWHERE: OTHER_ID, "/dev/sdb": SCSI_ID})
    sr = records.add("ext", None)
    records.db.create("PBD", SR=sr, host=records.hosts[1], device_config={"device": device}, currently_attached=True)

    records.verify()


@pytest.mark.parametrize("type_", ["iscsi", "hba", "rawhba"])
def test_a_vdi_that_is_the_lun_is_refused_whether_a_vm_has_it_or_not(records, type_):
    sr = records.add(type_, "", name="luns")
    vdi = records.db.create("VDI", SR=sr, name_label="lun 3", sm_config={"LUNid": "3", "SCSIid": SCSI_ID})

    text = records.refusal()

    assert "This LUN is the VDI {} ('lun 3') of the SR ".format(records.db.get("VDI", vdi, "uuid")) in text
    assert "('luns')" in text


def test_a_vdi_of_another_lun_is_no_obstacle(records):
    sr = records.add("iscsi", "")
    records.db.create("VDI", SR=sr, sm_config={"SCSIid": OTHER_ID}, location="/dev/xapi/block/log")
    records.links["/dev/xapi/block/log"] = OTHER_ID

    records.verify()


def test_a_lun_that_was_given_to_vms_as_it_is_is_refused(records):
    sr = records.add("udev", None, name="Removable storage")
    records.db.create("VDI", SR=sr, name_label="log", location="/dev/xapi/block/log")
    records.links["/dev/xapi/block/log"] = SCSI_ID

    assert "('log') of the SR" in records.refusal()


def test_each_user_is_told_once_and_all_of_them_are(records):
    sr = records.add("lvmoiscsi", SCSI_ID, name="on both hosts", sm_config={"devserial": "scsi-" + SCSI_ID})
    records.db.set("PBD", records.db.get("SR", sr, "PBDs")[1], "currently_attached", True)
    records.add("lvmohba", SCSI_ID, name="another")
    records.db.create("VDI", SR=records.add("iscsi", ""), name_label="a VDI", sm_config={"SCSIid": SCSI_ID})

    users = records.users()

    assert len(users) == 3
    assert users[0].startswith("The attached SR ") and "on both hosts" in users[0]
    assert users[1].startswith("The detached SR ") and "another" in users[1]
    assert "a VDI" in users[2]
    assert [user for user in users if user not in records.refusal()] == []


# --- the host that looks, and the second type


def test_a_device_of_this_host_s_own_pbd_is_followed_whatever_its_name(records):
    sr = records.add("lvm", None, name="local")
    here, there = records.hosts
    records.db.create("PBD", SR=sr, host=here, device_config={"device": "/dev/sdb3"}, currently_attached=True)
    records.links["/dev/sdb3"] = SCSI_ID

    verify_unused(SCSI_ID, records.pool, records.sr, records.links.get, here=there)
    with pytest.raises(Refused, match="local"):
        verify_unused(SCSI_ID, records.pool, records.sr, records.links.get, here=here)


def test_what_the_records_name_is_every_lun_of_theirs_but_of_calls_to_us(records):
    records.add("lvmohba", OTHER_ID)
    third, fourth = SCSI_ID[:-1] + "2", SCSI_ID[:-1] + "3"
    records.add("ext", None, sm_config={"devserial": "scsi-" + third})
    records.db.create("VDI", SR=records.sr, sm_config={"SCSIid": fourth}, location="x")

    ids = ids_named(records.pool)

    assert {OTHER_ID, third, fourth} <= set(ids) and SCSI_ID not in ids


@pytest.mark.parametrize("key", ["chappassword", "incoming_chapuser", "password_secret", "username", "options"])
def test_a_password_is_no_name_of_a_lun(records, key):
    config = {"SCSIid": OTHER_ID, key: "name=admin,secret=Sesame" if key == "options" else "5esame"}
    records.db.create("PBD", SR=records.add("lvmoiscsi", None), host=records.hosts[0], device_config=config)

    ids = ids_named(records.pool)

    assert OTHER_ID in ids and not [one for one in ids if "esame" in one]
