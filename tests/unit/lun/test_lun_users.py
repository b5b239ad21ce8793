# SPDX-License-Identifier: LGPL-2.1-only
"""Never the original: any user of the LUN in the pool ends the work, but for the SRs that calls to us make."""

import pytest

from kit.pool.database import Database
from relvmoiscsi.errors import Refused
from relvmoiscsi.lun.pool_records import PoolRecords, ids_named, users_of
from relvmoiscsi.lun.users import Question, objection, verify_unused
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
        return PoolRecords(self.db.records("PBD"), self.db.records("SR"), self.db.records("VDI"))

    def verify(self):
        self.ask()

    def ask(self, **more):
        verify_unused(Question(SCSI_ID, own_sr=self.sr, look=self.links.get, **more), self.db)

    def users(self):
        return [user.sentence for user in users_of(SCSI_ID, self.pool, self.links.get) if not user.is_own]

    def refusal(self):
        with pytest.raises(Refused) as caught:
            self.verify()
        assert fault_of(caught.value).faultCode == 202, "16 would lose the text"
        assert "Nothing was written." in str(caught.value)
        return str(caught.value)


@pytest.fixture
def records():
    return Records()


def test_records_without_what_a_guard_reads_are_no_obstacle():
    half = PoolRecords({"p": {}, "q": {"SR": "gone"}}, {"s": {}, "t": {"PBDs": ["p"]}}, {"v": {}})

    for pool in (half, PoolRecords({}, {}, {})):
        assert objection(Question(SCSI_ID, ["some SR"], own_sr="OpaqueRef:a"), pool, dict) is None


class Config(dict):
    """The configuration of a record, which counts how often it is read."""

    reads = 0

    def items(self):
        Config.reads += 1
        return super().items()

    def values(self):
        Config.reads += 1
        return super().values()


def test_the_records_are_read_as_often_for_the_users_of_many_luns_as_for_those_of_one():
    """A scan of adapters may bring thousands of LUNs into a pool with thousands of SRs and VDIs."""
    ids = [f"36001405{number:025x}" for number in range(40)]
    pool = PoolRecords(
        {f"p{one}": {"SR": f"s{one}", "device_config": Config(SCSIid=one)} for one in ids[:20]},
        {f"s{one}": {"sm_config": Config(devserial=f"scsi-{one}")} for one in ids[:20]},
        {f"v{one}": {"SR": "s", "sm_config": Config(vdi_type="vhd", note="/dev/disk/by-id/x")} for one in ids},
    )

    def reads(wanted):
        Config.reads = 0
        assert [len(users_of(one, pool)) for one in wanted] == [1 if one in ids[:20] else 0 for one in wanted]
        return Config.reads

    first = reads(ids[30:31])
    assert first > 0 == reads(ids[30:])


@pytest.mark.parametrize("attached", [True, False])
def test_the_original_is_refused(records, attached):
    sr = records.add("lvmoiscsi", SCSI_ID, attached, name="san \u65e5")
    text = records.refusal()

    assert all(word in text for word in (records.db.get("SR", sr, "uuid"), "san \u65e5", SCSI_ID))
    assert ("attached" if attached else "detached") in text.split()


def test_an_sr_that_is_forgotten_between_two_answers_of_xapi_is_no_user(records):
    """A call on the same LUN ends: xapi destroys its SR and the PBDs while this call reads."""
    other, read = records.add("relvmoiscsi", SCSI_ID), records.db.records

    def ended_meanwhile(class_):
        if class_ == "SR" and records.db.exists("SR", other):
            for pbd in [ref for ref, pbd in read("PBD").items() if pbd["SR"] == other]:
                records.db.destroy("PBD", pbd)
            records.db.destroy("SR", other)
        return read(class_)

    records.db.records = ended_meanwhile
    records.verify()
    assert not records.db.exists("SR", other)


def test_a_pbd_whose_sr_is_gone_is_refused(records):
    records.db.destroy("SR", records.add("lvmoiscsi", SCSI_ID))

    assert "unknown" in records.refusal()


def test_a_probe_has_no_sr(records):
    records.sr = ""

    records.verify()
    records.add("lvmoiscsi", SCSI_ID)
    records.refusal()


SERIAL = "scsi-" + SCSI_ID
ELSEWHERE = "/dev/disk/by-id/wwn-0x5000c500a1b2c3d4"
LINKED = "/dev/xapi/block/log"
BY_ID = "/dev/disk/by-id/"
UP = BY_ID + "../../"
#: type of an SR, its sm_config, the device_config of its PBD on another host, its VDI
USERS = [
    *((type_, {}, {"SCSIid": SCSI_ID}, None) for type_ in ("lvmohba", "iscsi", "ext", "")),
    ("netapp", {"devserial": SERIAL}, {}, None),
    ("netapp", {"devserial": f"scsi-{OTHER_ID},{SERIAL}"}, {}, None),
    ("netapp", {"SCSIid": OTHER_ID + "," + SCSI_ID}, {}, None),
    ("netapp", {SERIAL: "true"}, {}, None),
    *(("ext", {}, {"device": device}, None)
      for device in (
          BY_ID + SERIAL, f"{BY_ID}{SERIAL}-part3", f"/dev/sda3,{BY_ID}{SERIAL}", f"{BY_ID}dm-uuid-mpath-{SCSI_ID}",
          f"{BY_ID}wwn-0x{SCSI_ID[1:]}", f"/dev/disk/by-scsid/{SCSI_ID}/mapper",
          f"/dev/disk/by-scsibus/{SCSI_ID}-3:0:0:1", "/dev/disk/mpInuse/" + SCSI_ID, "/dev/mapper/" + SCSI_ID,
          "/dev/sda3, " + ELSEWHERE)),
    ("gfs2", {}, {"provider": "x", "ScsiId": SCSI_ID}, None),
    # a VDI that is the LUN, whether a VM has it or not, and one that was given to VMs as it is
    *((type_, {}, {}, {"sm_config": {"LUNid": "3", "SCSIid": SCSI_ID}})
      for type_ in ("iscsi", "hba", "rawhba", "vendor")),
    *(("udev", {}, {}, {"location": path}) for path in (LINKED, BY_ID + SERIAL)),
]  # fmt: skip
OTHERS = [
    ("lvmoiscsi", {}, {"SCSIid": OTHER_ID}, None),
    ("nfs", {}, {}, None),
    # two calls at once, or one that a caller has given up on: each has its records, and the lock orders them
    ("relvmoiscsi", {}, {"SCSIid": SCSI_ID}, None),
    ("relvmohba", {"devserial": SERIAL}, {"SCSIid": SCSI_ID}, None),
    ("lvmohba", {"devserial": "scsi-" + OTHER_ID}, {}, None),
    ("lvmohba", {"devserial": SERIAL + "0"}, {}, None),
    # /dev/sdb is another disk on another host
    *(("ext", {}, {"device": device}, None)
      for device in (
          BY_ID + "scsi-" + OTHER_ID, f"{BY_ID}{SERIAL}0", f"{BY_ID}scsi-0{SCSI_ID}", f"{BY_ID}wwn-0x{SCSI_ID}",
          "/dev/sdb", ELSEWHERE, BY_ID + "gone", "", UP + "x")),
    # a step up may lead to a file system that does not answer
    ("udev", {}, {}, {"location": "/dev/xapi/block/../../x"}),
    ("iscsi", {}, {}, {"sm_config": {"SCSIid": OTHER_ID}, "location": LINKED}),
    # a vm-admin can write this in a VDI that is a volume or a file
    *((type_, {}, {}, vdi)
      for type_ in ("lvmoiscsi", "lvmohba", "lvm", "ext", "nfs", "iso", "gfs2")
      for vdi in ({"sm_config": {"SCSIid": SCSI_ID}}, {"location": BY_ID + SERIAL})),
]  # fmt: skip


@pytest.mark.parametrize(
    "type_, sm_config, config, vdi, is_user",
    [*((*row, True) for row in USERS), *((*row, False) for row in OTHERS)],
)
def test_whoever_names_the_lun_is_refused_and_nobody_else(records, type_, sm_config, config, vdi, is_user):
    records.links.update({ELSEWHERE: SCSI_ID if is_user else OTHER_ID, "/dev/sdb": SCSI_ID})
    records.links.update(dict.fromkeys((UP + "x", "/dev/xapi/block/../../x"), SCSI_ID))
    records.links[LINKED] = records.links[ELSEWHERE]
    sr = records.add(type_, None, sm_config=sm_config, name="a user")
    if config:
        host = records.hosts[1]
        records.db.create("PBD", SR=sr, host=host, device_config=config, currently_attached=not is_user)
    made = records.db.create("VDI", SR=sr, name_label="lun 3", **vdi) if vdi else ""

    if not is_user:
        records.verify()
    elif vdi:
        uuid = records.db.get("VDI", made, "uuid")
        assert f"This LUN is the VDI {uuid} ('lun 3') of the SR " in records.refusal()
    elif config:
        assert "The detached SR {} ('a user')".format(records.db.get("SR", sr, "uuid")) in records.refusal()
    else:
        # An original in maintenance: its PBDs are destroyed, xapi keeps its VDIs, and the array gives the clone its id.
        assert "('a user') was made on this LUN, and no host is connected to it." in records.refusal()


@pytest.mark.parametrize("name", ["../../../../mnt/hangs", "..", ".", "", "./log", "log/../log", "/log"])
def test_no_path_that_a_vm_admin_wrote_is_followed(name):
    """A file system that does not answer may be behind the path, and the question has no deadline."""
    vdi, followed = {"SR": "udev", "location": "/dev/xapi/block/" + name}, []

    found = users_of(SCSI_ID, PoolRecords({}, {"udev": {"type": "udev"}}, {"vdi": vdi}), followed.append)

    assert not found and not followed


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

    records.ask(here=there)
    with pytest.raises(Refused, match="local"):
        records.ask(here=here)


def test_what_the_records_name_is_every_lun_of_theirs_but_of_calls_to_us(records):
    records.add("lvmohba", OTHER_ID)
    third = SCSI_ID[:-1] + "2"
    records.add("ext", None, sm_config={"devserial": "scsi-" + third})

    ids = ids_named(records.pool)

    assert {OTHER_ID, third} <= set(ids) and SCSI_ID not in ids


@pytest.mark.parametrize("key", ["chappassword", "incoming_chapuser", "password_secret", "username", "options"])
def test_a_password_is_no_name_of_a_lun(records, key):
    config = {"SCSIid": OTHER_ID, key: "name=admin,secret=Sesame" if key == "options" else "5esame"}
    records.db.create("PBD", SR=records.add("lvmoiscsi", None), host=records.hosts[0], device_config=config)

    ids = ids_named(records.pool)

    assert OTHER_ID in ids and not [one for one in ids if "esame" in one]
