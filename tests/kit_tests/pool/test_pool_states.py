# SPDX-License-Identifier: LGPL-2.1-only
"""What the simulated pool refuses in a state in which xapi refuses it, and how it exports and imports, xapi's traps
among that. Sources: beside each call in calls.tsv.
"""

import pytest

from kit.pool import transfer
from kit.pool.api import Api
from kit.pool.database import NULL, Database
from kit.pool.errors import XenError
from kit.pool.storage import Storage

MAC = "02:00:00:00:00:01"


class Office:
    """Two hosts; "web" runs with a disk on an SR that both have, a CD and a network, and has drivers."""

    def __init__(self):
        self.db = db = Database()
        self.hosts = [
            db.create("host", address=f"192.0.2.{n}", enabled=True, metrics=self.new_metrics()) for n in (1, 2)
        ]
        self.pool = db.create("pool", master=self.hosts[0])
        self.api = Api(db, Storage(db, None))
        self.storage, self.vms, self.transfer = self.api.storage, self.api.vms, self.api.transfer
        self.sr, self.isos = self.new_sr(*self.hosts), self.new_sr(*self.hosts, type="iso", content_type="iso")
        self.disk = db.create("VDI", SR=self.sr, location="here", virtual_size=4)
        self.iso = db.create("VDI", SR=self.isos, location="tools.iso")
        self.net = db.create("network", name_label="net", bridge="xenbr0")
        self.guest = db.create("VM_guest_metrics", PV_drivers_detected=True)
        self.web = db.create("VM", power_state="Running", guest_metrics=self.guest, other_config={"mac_seed": "s"})
        self.vbd = db.create("VBD", VM=self.web, VDI=self.disk, currently_attached=True)
        cd = {"userdevice": "3", "type": "CD", "mode": "RO", "currently_attached": True}
        self.cd = db.create("VBD", VM=self.web, VDI=self.iso, **cd)
        self.vif = db.create("VIF", VM=self.web, network=self.net, MAC=MAC, currently_attached=True)

    def new_metrics(self):
        return self.db.create("host_metrics")

    def new_sr(self, *hosts, type="lvmoiscsi", content_type="user"):
        sr = self.db.create("SR", type=type, content_type=content_type, shared=True)
        for host in hosts:
            self.db.create("PBD", SR=sr, host=host, currently_attached=True)
        return sr

    def vdi(self, *hosts, **fields):
        """Another VDI: on an SR of these hosts, or on the SR of both."""
        sr = self.new_sr(*hosts) if hosts else self.sr
        return self.db.create("VDI", **{"SR": sr, **fields})

    def away(self):
        """A VDI on an SR that no host has."""
        return self.vdi(SR=self.new_sr())

    def new_vbd(self, **fields):
        return self.do("VBD.create", {"VM": self.web, "VDI": self.disk, "userdevice": "1", "mode": "RW", **fields})

    def new_vif(self, **fields):
        return self.do("VIF.create", {"VM": self.web, "network": self.net, **fields})

    def plug(self, later=(), **fields):
        """Plug a VBD whose VDI has changed since it was made."""
        vbd = self.new_vbd(**fields)
        for name, value in dict(later).items():
            self.db.set("VDI", self.db.get("VBD", vbd, "VDI"), name, value)
        self.do("VBD.plug", vbd)

    def set(self, **fields):
        """Of the VM "web"."""
        for name, value in fields.items():
            self.db.set("VM", self.web, name, value)

    def halt(self, *vdis):
        """The VM, with these disks more; gives itself."""
        self.do("VM.hard_shutdown", self.web)
        for number, vdi in enumerate(vdis, 5):
            self.new_vbd(VDI=vdi, userdevice=str(number))
        return self

    def down(self, host):
        self.db.set("host_metrics", self.db.get("host", host, "metrics"), "live", False)

    def do(self, method, *parameters):
        return self.api._methods[method]("", *parameters)

    def as_root(self, method, *parameters):
        session = self.api.call("session.login_with_password", ("root", "root"), local=True)
        return self.api.call(method, (session, *parameters))

    def transferred(self, method, target, body=b""):
        """(HTTP status, what the task has heard)."""
        task = self.db.create("task")
        status, _ = self.transfer.answer(method, target, {"Cookie": f"task_id={task}"}, body, True)
        return status, self.db.get("task", task, "error_info") or self.db.get("task", task, "status")

    # -- what a row of a table below does first

    def no_host_is_up(self):
        self.halt()
        self.db.set("host", self.hosts[0], "enabled", False)
        self.down(self.hosts[1])

    def without_room(self):
        self.halt()
        self.vms.free_memory_bytes = 1 << 20

    def has_bytes(self):
        self.vms.read_vdi = lambda _: b"abcd"

    def suspended(self):
        self.set(power_state="Suspended", suspend_VDI=self.away())

    def protected(self):
        self.db.set("pool", self.pool, "ha_enabled", True)
        self.do("VM.set_ha_restart_priority", self.web, "restart")

    def busy_for_long(self):
        self.set(current_operations={"task": "snapshot"})
        self.transfer.waits = False

    def ejected(self):
        self.do("VBD.eject", self.cd)

    def wired(self):
        self.halt().db.create("PIF", network=self.net)

    def other_vm(self):
        return self.db.create("VM", power_state="Running", guest_metrics=self.guest)

    def introduce(self, uuid=""):
        return self.do("SR.introduce", uuid, "a", "b", "strange", "user", True)

    def unknown_sr(self):
        return self.db.create("PBD", SR=self.introduce(), host=self.hosts[0])


@pytest.fixture
def office():
    return Office()


def error(call, *arguments, **more):
    with pytest.raises(XenError) as caught:
        call(*arguments, **more)
    return caught.value.description


MIGRATES = {"current_operations": {"task": "migrate_send"}}

#: (what is done first, the call, its error and the first of the parameters of that)
REFUSED = [
    # a VM starts where one host, enabled and live, has every SR of its disks and memory
    (lambda o: o.halt(*map(o.vdi, o.hosts)), lambda o: o.do("VM.start", o.web), "NO_HOSTS_AVAILABLE"),
    (Office.no_host_is_up, lambda o: o.do("VM.start", o.web), "NO_HOSTS_AVAILABLE"),
    (Office.without_room, lambda o: o.do("VM.start", o.web), "NO_HOSTS_AVAILABLE"),
    (Office.without_room, lambda o: o.do("VDI.pool_migrate", o.disk, o.sr, {}), "NO_HOSTS_AVAILABLE"),
    (Office.suspended, lambda o: o.do("VM.resume", o.web), "NO_HOSTS_AVAILABLE"),
    (None, lambda o: o.do("VM.start", o.web), "VM_BAD_POWER_STATE"),
    (lambda o: o.set(is_a_snapshot=True), lambda o: o.do("VM.clean_shutdown", o.web), "VM_IS_SNAPSHOT"),
    (lambda o: o.set(is_a_template=True), lambda o: o.do("VM.clean_shutdown", o.web), "VM_IS_TEMPLATE"),
    (lambda o: o.set(guest_metrics="OpaqueRef:NULL"), lambda o: o.do("VM.clean_shutdown", o.web), "VM_LACKS_FEATURE"),
    (lambda o: o.vms.refuses_shutdown.add(o.web), lambda o: o.do("VM.clean_shutdown", o.web), "VM_SHUTDOWN_TIMEOUT"),
    (None, lambda o: o.do("VM.set_ha_restart_priority", o.web, "1"), "INVALID_VALUE"),
    # a VBD is made at a place that is free under any name, and of a VDI that is a disk
    (None, lambda o: o.new_vbd(userdevice="0"), "DEVICE_ALREADY_EXISTS 0"),
    (None, lambda o: o.new_vbd(userdevice="xvda"), "DEVICE_ALREADY_EXISTS xvda"),
    (None, lambda o: o.new_vbd(userdevice="zzz"), "INVALID_DEVICE zzz"),
    (None, lambda o: o.new_vbd(VDI=o.vdi(read_only=True)), "VDI_READONLY"),
    (None, lambda o: o.new_vbd(type="CD"), "VBD_CDS_MUST_BE_READONLY"),
    (None, lambda o: o.new_vbd(VDI=NULL), "HANDLE_INVALID VDI"),
    (None, lambda o: o.new_vbd(VDI=NULL, empty=True), "VBD_NOT_REMOVABLE_MEDIA"),
    (None, lambda o: o.new_vbd(VDI=o.vdi(type="redo_log")), "VDI_INCOMPATIBLE_TYPE"),
    (lambda o: o.set(domain_type="pv"), lambda o: o.new_vbd(type="Floppy"), "NOT_IMPLEMENTED"),
    (lambda o: o.set(domain_type="hvm"), lambda o: o.new_vbd(type="Floppy", userdevice="9999999"), "INVALID_DEVICE"),
    # that of a drive that was plugged stays, whatever the user calls it then
    (lambda o: o.db.set("VBD", o.cd, "device", "xvdb"), Office.new_vbd, "DEVICE_ALREADY_EXISTS"),
    (lambda o: o.set(**MIGRATES), Office.new_vbd, "OTHER_OPERATION_IN_PROGRESS"),
    # and is plugged where its SR is, by one writer, into a VM that runs and has drivers; and out where that allows it
    (None, lambda o: o.plug(VDI=o.vdi(managed=False)), "VDI_NOT_MANAGED"),
    (None, lambda o: o.plug(VDI=o.vdi(), later={"read_only": True}), "VDI_READONLY"),
    (None, lambda o: o.plug(VDI=o.away()), "INTERNAL_ERROR"),
    (None, lambda o: o.plug(VM=o.other_vm()), "VDI_IN_USE"),
    (lambda o: o.set(guest_metrics="OpaqueRef:NULL"), lambda o: o.plug(VDI=o.vdi()), "VM_MISSING_PV_DRIVERS"),
    (Office.halt, lambda o: o.plug(), "VM_BAD_POWER_STATE"),
    (lambda o: o.set(power_state="Paused"), lambda o: o.do("VBD.unplug", o.vbd), "VM_BAD_POWER_STATE"),
    (None, lambda o: o.do("VBD.destroy", o.vbd), "OPERATION_NOT_ALLOWED"),
    # a CD is put into an empty drive
    (None, lambda o: o.do("VBD.insert", o.cd, o.iso), "VBD_NOT_EMPTY"),
    (None, lambda o: o.do("VBD.insert", o.vbd, o.iso), "VBD_NOT_REMOVABLE_MEDIA"),
    (Office.ejected, lambda o: o.do("VBD.insert", o.cd, o.vdi(managed=False)), "VDI_NOT_MANAGED"),
    (Office.ejected, lambda o: o.do("VBD.insert", o.cd, o.away()), "INTERNAL_ERROR"),
    (lambda o: o.ejected() or o.suspended(), lambda o: o.do("VBD.insert", o.cd, o.iso), "VM_BAD_POWER_STATE"),
    # a VDI in use stays where it is
    (None, lambda o: o.do("VDI.forget", o.disk), "VDI_IN_USE"),
    (None, lambda o: o.do("VDI.destroy", o.disk), "VDI_IN_USE"),
    (None, lambda o: o.do("VDI.destroy", o.vdi(managed=False)), "VDI_NOT_MANAGED"),
    (None, lambda o: o.do("VDI.destroy", o.away()), "SR_HAS_NO_PBDS"),
    (None, lambda o: o.do("VDI.set_name_label", o.away(), "a"), "SR_HAS_NO_PBDS"),
    # a move of a disk is an operation of its VM
    (None, lambda o: o.do("VDI.pool_migrate", o.vdi(), o.sr, {}), "VDI_NEEDS_VM_FOR_MIGRATE"),
    (lambda o: o.set(**MIGRATES), lambda o: o.do("VDI.pool_migrate", o.disk, o.sr, {}), "OTHER_OPERATION_IN_PROGRESS"),
    (lambda o: o.db.set("VDI", o.disk, "cbt_enabled", True),
     lambda o: o.do("VDI.pool_migrate", o.disk, o.sr, {}), "VDI_CBT_ENABLED"),
    (Office.halt, lambda o: o.do("VDI.pool_migrate", o.disk, o.new_sr(), {}), "NO_HOSTS_AVAILABLE"),
    # a VIF has a number and a MAC; it and its network stay while a VM has them
    (None, lambda o: o.new_vif(device="0"), "DEVICE_ALREADY_EXISTS"),
    (None, lambda o: o.new_vif(device="a"), "INVALID_DEVICE a"),
    (None, lambda o: o.new_vif(device="1", MAC="zz"), "MAC_INVALID zz"),
    (lambda o: o.set(other_config={}), lambda o: o.new_vif(device="1"), "MAC_INVALID"),
    # no map has an empty key
    (None, lambda o: o.as_root("VM.add_to_other_config", o.web, "", "1"), "INTERNAL_ERROR Db_exn.Empty_key_in_map"),
    (None, lambda o: o.do("VIF.destroy", o.vif), "OPERATION_NOT_ALLOWED"),
    (None, lambda o: o.do("network.destroy", o.net), "NETWORK_CONTAINS_VIF"),
    (Office.wired, lambda o: o.do("network.destroy", o.net), "NETWORK_CONTAINS_PIF"),
    # SRs and PBDs
    (None, lambda o: o.introduce(o.db.get("SR", o.sr, "uuid")), "SR_UUID_EXISTS"),
    (None, lambda o: o.do("PBD.create", {"SR": o.sr, "host": o.hosts[0], "device_config": {}}), "PBD_EXISTS"),
    (None, lambda o: o.do("SR.forget", o.sr), "SR_HAS_PBD"),
    (None, lambda o: o.do("PBD.destroy", o.db.refs("PBD")[0]), "OPERATION_NOT_ALLOWED"),
    (None, lambda o: o.do("PBD.plug", o.unknown_sr()), "SR_UNKNOWN_DRIVER strange"),
    (Office.protected, lambda o: o.do("PBD.unplug", o.db.refs("PBD")[1]), "HA_CONSTRAINT_VIOLATION_SR_NOT_SHARED"),
    (lambda o: o.set(resident_on=o.hosts[1]), lambda o: o.do("PBD.unplug", o.db.refs("PBD")[1]), "VDI_IN_USE"),
    # a host that does not answer, which xapi has noticed or not
    (lambda o: o.storage.offline.add(o.hosts[1]),
     lambda o: o.as_root("host.get_servertime", o.hosts[1]), "CANNOT_CONTACT_HOST"),
    (lambda o: [o.storage.offline.add(o.hosts[1]), o.down(o.hosts[1])],
     lambda o: o.as_root("host.get_servertime", o.hosts[1]), "HOST_OFFLINE"),
    (None, lambda o: o.as_root("host.get_servertime", "OpaqueRef:none"), "HANDLE_INVALID host"),
]  # fmt: skip


@pytest.mark.parametrize("given, call, wanted", REFUSED, ids=[f"{n}-{row[2]}" for n, row in enumerate(REFUSED)])
def test_what_is_refused(office, given, call, wanted):
    if given:
        given(office)
    code, *parameters = wanted.split()
    assert error(call, office)[: 1 + len(parameters)] == [code, *parameters]


@pytest.mark.parametrize("given, call", [
    (lambda o: o.halt(o.vdi(o.hosts[0]), o.vdi(*o.hosts)), lambda o: o.do("VM.start", o.web)),
    (lambda o: o.db.set("VDI", o.disk, "sharable", True), Office.plug),
    (lambda o: o.set(power_state="Suspended"), lambda o: o.plug(VM=o.other_vm())),  # who sleeps is no user
    (lambda o: o.set(**MIGRATES), lambda o: o.do("VM.clean_shutdown", o.web)),
    (lambda o: o.set(current_operations={"task": "snapshot"}), lambda o: o.do("VM.hard_shutdown", o.web)),
    (Office.halt, lambda o: [o.do("VIF.destroy", o.vif), o.do("VDI.forget", o.disk), o.do("VDI.destroy", o.vdi())]),
    (None, lambda o: o.as_root("host.get_servertime", o.hosts[0])),
])  # fmt: skip
def test_what_is_not_refused(office, given, call):
    if given:
        given(office)
    call(office)


@pytest.mark.parametrize("is_running", [True, False])
def test_a_cd_that_is_put_into_a_drive_is_attached_where_the_vm_runs(office, is_running):
    office.do("VBD.eject", office.cd)
    if not is_running:
        office.halt()
    office.do("VBD.insert", office.cd, office.iso)
    drive = office.db.record("VBD", office.cd)
    assert (drive["VDI"], drive["empty"], drive["currently_attached"]) == (office.iso, False, is_running)


def test_a_disk_of_another_name_is_at_another_place(office):
    """Of a number, xapi does not know which of two buses is meant. Of a name it knows."""
    for device in ("1", "sdb", "xvdc", "hdc", "28"):
        office.new_vbd(userdevice=device)
    for device in ("hdb", "xvdb", "2", "xvdac"):
        assert error(office.new_vbd, userdevice=device)[0] == "DEVICE_ALREADY_EXISTS"
    taken = office.db.get("VBD", office.new_vbd(userdevice="autodetect"), "userdevice")
    assert taken == "4"


@pytest.mark.parametrize(
    "device", ["0x1", "0b1", "0o1", "0u1", "+1", "0_1", "01", "d1", "d1p0", "xvdb", "hdb", "xvdb0"]
)
def test_a_number_and_a_name_may_have_many_forms(office, device):
    office.new_vbd(userdevice="1")
    assert error(office.new_vbd, userdevice=device)[0] == "DEVICE_ALREADY_EXISTS"


@pytest.mark.parametrize(
    "device", ["", "x", "0x", "0b2", "-", "sdq", "fdd", "hdu", "xvda16", "sda16", "d1p16", "\u00b2"]
)
def test_a_name_that_is_no_device_is_refused(office, device):
    assert error(office.new_vbd, userdevice=device)[0] == "INVALID_DEVICE"


def test_a_number_beyond_all_disks_is_at_no_place(office):
    for _ in range(2):
        office.new_vbd(userdevice="1048576")


def test_a_floppy_drive_gets_a_device_of_its_own(office):
    office.set(domain_type="hvm")
    vbd = office.new_vbd(type="Floppy", userdevice="autodetect")
    assert office.db.get("VBD", vbd, "userdevice") == "fda"


@pytest.mark.parametrize("is_plugged", [True, False])
def test_a_move_takes_along_the_drives_of_one_vm_and_of_its_snapshots(office, is_plugged):
    db, disk = office.db, office.vdi()
    mine = office.new_vbd(VDI=disk)
    earlier = db.create("VBD", VM=db.create("VM", is_a_snapshot=True, snapshot_of=office.web), VDI=disk)
    other = db.create("VBD", VM=office.other_vm(), VDI=disk, mode="RO", currently_attached=is_plugged)
    if is_plugged:
        assert error(office.do, "VDI.pool_migrate", disk, office.sr, {})[0] == "VDI_IN_USE"
        assert db.get("VBD", other, "VDI") == disk
    else:
        office.do("VDI.pool_migrate", disk, office.sr, {})
        assert not db.exists("VBD", other)
    assert db.get("VBD", mine, "VDI") == db.get("VBD", earlier, "VDI") != disk


def test_a_vm_that_ha_restarts_is_protected_while_it_runs(office):
    seen = []
    for step in (
        lambda: office.do("VM.set_ha_restart_priority", office.web, "restart"),
        office.halt,
        lambda: office.do("VM.start", office.web),
        lambda: office.do("VM.set_ha_restart_priority", office.web, ""),
    ):
        step()
        seen.append(office.db.get("VM", office.web, "ha_always_run"))
    assert seen == [True, False, True, False]


def test_a_vm_that_is_made_has_a_seed_for_its_macs_and_a_network_goes_with_what_is_not_attached(office):
    vm = office.do("VM.create", {"other_config": {"a": "b"}})
    vif = office.new_vif(VM=vm, device="0", MAC="")
    assert office.db.get("VIF", vif, "MAC").startswith("02:") and office.db.get("VIF", vif, "MAC_autogenerated")
    office.halt()
    office.do("network.destroy", office.net)
    assert office.db.refs("VIF") == []


def test_a_task_that_has_not_ended_is_not_destroyed_and_one_that_is_gone_is_nobodys_own(office):
    """Only who may destroy any task hears that it is gone."""
    office.api.users = {"mary": ("m", "vm-admin"), "otto": ("o", "pool-operator")}
    for user, code in (("mary", "RBAC_PERMISSION_DENIED"), ("otto", "HANDLE_INVALID")):
        session = office.api.call("session.login_with_password", (user, user[0]))
        task = office.api.call("task.create", (session, "label", ""))
        office.api.call("task.destroy", (session, task))
        assert office.db.get("task", task, "status") == "pending"
        office.api.call("task.set_status", (session, task, "failure"))
        office.api.call("task.destroy", (session, task))
        assert error(office.api.call, "task.destroy", (session, task))[0] == code


# -- over HTTP


def export_of(office):
    return f"/export_metadata?ref={office.web}"


def raw(how, vdi):
    return f"/{how}_raw_vdi?vdi={vdi}"


@pytest.mark.parametrize("given, method, target, status, heard", [
    (None, "GET", export_of, 200, "success"),
    (lambda o: o.set(blocked_operations={"metadata_export": "why"}), "GET", export_of, 500, "OPERATION_BLOCKED"),
    (Office.busy_for_long, "GET", export_of, 500, "OTHER_OPERATION_IN_PROGRESS"),
    (lambda o: o.has_bytes(), "GET", lambda o: raw("export", o.disk), 200, "success"),  # a VM of this host writes it
    (lambda o: o.set(resident_on=o.hosts[1]), "GET", lambda o: raw("export", o.disk), 200, "SR_BACKEND_FAILURE_46"),
    (None, "GET", lambda o: raw("export", "OpaqueRef:gone"), 500, "pending"),
    (None, "PUT", lambda o: raw("import", "OpaqueRef:gone"), 500, "pending"),
    (None, "GET", lambda o: raw("export", o.vdi(o.hosts[1])), 302, "pending"),  # through a host that has its SR
    (None, "PUT", lambda o: raw("import", o.vdi(o.hosts[1])), 302, "pending"),
    (None, "GET", lambda o: raw("export", o.away()), 500, "pending"),  # only an import ends its task
    (None, "PUT", lambda o: raw("import", o.away()), 400, "NO_HOSTS_AVAILABLE"),
    (None, "GET", lambda o: "/elsewhere", 404, "pending"),
])  # fmt: skip
def test_what_http_answers_and_the_task_hears(office, given, method, target, status, heard):
    if given:
        given(office)
    found, told = office.transferred(method, target(office), b"abcd")
    assert (found, told if isinstance(told, str) else told[0]) == (status, heard)


def test_bytes_that_lie_elsewhere_are_asked_for_there(office):
    target = raw("export", office.vdi(office.hosts[1]))
    assert office.transfer.answer("GET", target, {}, b"", True) == (302, f"https://192.0.2.2{target}".encode())


@pytest.mark.parametrize("text, found", [
    ("session_id=a;task_id=b", {"session_id": "a", "task_id": "b"}),
    ("session_id=a; task_id=b", {"session_id": "a", " task_id": "b"}),  # as xapi reads it
    ("session_id=a&task_id=b", {"session_id": "a", "task_id": "b"}),
])  # fmt: skip
def test_cookies_are_read_as_xapi_reads_them(text, found):
    wanted = "/import_metadata", {"dry_run": "true"}, {"dry_run": "true", **found}
    assert transfer._request("/import_metadata?dry_run=true", {"Cookie": text}) == wanted


def exported(office):
    return transfer.untar(transfer.tar(transfer.export(office.db, office.web)))["objects"]


def imported(office, objects=None, **query):
    """The VM that was made, and its record."""
    made = transfer._Import(office.db, office.vms, objects or exported(office), query, None).run()
    return made[0], office.db.record("VM", made[0])


def disks(office, vm):
    return {vbd["userdevice"]: vbd["VDI"] for vbd in office.db.records("VBD", VM=vm).values()}


@pytest.mark.parametrize("is_a_template", [False, True])
def test_an_import_is_a_new_vm_on_the_very_same_disk_and_leaves_something_behind(office, is_a_template):
    office.set(ha_always_run=True, ha_restart_priority="restart", blocked_operations={"start": ""})
    office.set(is_a_template=is_a_template)
    new, record = imported(office)

    assert disks(office, new) == disks(office, office.web)
    assert record["power_state"] == "Halted" and (new in office.vms.that_ha_would_start()) == (not is_a_template)
    assert record["blocked_operations"] == {} and record["other_config"]["mac_seed"] != "s"
    assert "import_task" in record["other_config"] and record["is_a_template"] == is_a_template
    assert ("device-model" in record["platform"]) == (not is_a_template)
    assert all(vbd["currently_attached"] for vbd in office.db.records("VBD", VM=new).values()), "though it is halted"
    (vif,) = office.db.records("VIF", VM=new).values()
    assert vif["MAC"] != MAC and vif["network"] == office.net and not vif["currently_attached"]


def test_an_import_makes_no_empty_floppy_drive_and_no_two_drives_at_one_place(office):
    office.set(domain_type="hvm")
    before = office.db.refs("VM")
    vbd = office.new_vbd(type="Floppy", userdevice="fda")
    office.db.set("VBD", vbd, "VDI", NULL), office.db.set("VBD", vbd, "empty", True)
    assert error(imported, office)[0] == "VBD_NOT_REMOVABLE_MEDIA"
    office.db.set("VBD", vbd, "VDI", office.disk), office.db.set("VBD", vbd, "empty", False)
    office.db.set("VBD", vbd, "userdevice", "xvda")
    assert error(imported, office)[0] == "DEVICE_ALREADY_EXISTS"
    assert office.db.refs("VM") == before


def test_a_disk_that_is_not_found_fails_an_import_and_nothing_is_left(office):
    office.db.set("VBD", office.vbd, "currently_attached", False)
    objects = exported(office)
    office.db.set("VDI", office.disk, "location", "elsewhere")
    before = office.db.refs("VM")
    assert error(imported, office, objects)[0] == "VDI_LOCATION_MISSING"
    forced, _ = imported(office, objects, force="true")
    assert disks(office, forced) == {"3": office.iso}
    office.do("VM.destroy", forced)
    office.db.destroy("SR", office.sr)
    assert error(imported, office, objects)[0] == "VDI_CONTENT_ID_MISSING"
    assert office.db.refs("VM") == before


def test_a_network_is_the_first_of_its_name_or_of_its_bridge_or_made(office):
    objects = exported(office)

    def networks():
        new, _ = imported(office, objects)
        return [vif["network"] for vif in office.db.records("VIF", VM=new).values()]

    office.db.set("network", office.net, "name_label", "renamed")
    assert networks() == [office.net]
    other = office.db.create("network", name_label="net")
    assert networks() == [other]
    for network in (other, office.net):
        office.db.destroy("network", network)
    assert [office.db.get("network", each, "bridge") for each in networks()] == ["xenbr0"]


@pytest.mark.parametrize("name", ["metrics", "guest_metrics"])
def test_a_vm_with_an_sr_as_its_metrics_is_neither_imported_whole_nor_destroyed(office, name):
    """A real xapi also ends at its next start, as long as the SR is there."""
    objects = exported(office)
    srs = [each["id"] for each in objects if each["class"] == "SR"]
    for vm in [each for each in objects if each["class"] == "VM"]:
        vm["snapshot"][name] = srs[0]
    before = office.db.refs("VM")

    assert error(imported, office, objects)[:2] == ["HANDLE_INVALID", f"VM_{name}"]

    (left,) = set(office.db.refs("VM")) - set(before)
    assert error(office.do, "VM.destroy", left)[0] == "HANDLE_INVALID"
    office.db.destroy("SR", office.db.get("VM", left, name))
    office.do("VM.destroy", left)


def test_an_object_with_the_id_of_nothing_is_found_where_nothing_is_looked_for(office):
    objects = exported(office)
    of = {cls: [each for each in objects if each["class"] == cls] for cls in ("SR", "VDI", "VM")}
    lost = of["SR"][0]["id"]
    of["SR"][0]["id"] = NULL
    for vdi in [vdi["snapshot"] for vdi in of["VDI"] if vdi["snapshot"]["SR"] == lost]:
        vdi["SR"] = NULL
    for vm in of["VM"]:
        vm["snapshot"]["affinity"] = NULL
    _, record = imported(office, objects)
    assert office.db.exists("SR", record["affinity"])
