# SPDX-License-Identifier: LGPL-2.1-only
"""What the simulated pool refuses in a state in which xapi refuses it. Sources: beside each call in calls.tsv."""

import pytest

from kit.pool.api import Api
from kit.pool.database import Database
from kit.pool.errors import XenError
from kit.pool.storage import Storage
from kit.pool.transfer import Transfer
from kit.pool.vms import Vms

NO_COOKIE = {}


class Office:
    """Two hosts; "web" runs with a disk on an SR that both have, and has drivers."""

    def __init__(self):
        self.db = db = Database()
        self.hosts = [
            db.create("host", address=f"192.0.2.{number}", enabled=True, metrics=db.create("host_metrics"))
            for number in (1, 2)
        ]
        db.create("pool", master=self.hosts[0])
        self.storage = Storage(db, None)
        self.vms = Vms(db, self.storage)
        self.transfer = Transfer(db, self.vms, lambda *_: None)
        self.sr = self.new_sr(*self.hosts)
        self.disk = db.create("VDI", SR=self.sr, virtual_size=4)
        guest = db.create("VM_guest_metrics", PV_drivers_detected=True)
        seed = {"mac_seed": "s"}
        self.web = db.create("VM", power_state="Running", guest_metrics=guest, other_config=seed)
        self.vbd = db.create("VBD", VM=self.web, VDI=self.disk, userdevice="0", currently_attached=True)

    def new_sr(self, *hosts):
        sr = self.db.create("SR", type="lvmoiscsi", shared=True)
        for host in hosts:
            self.db.create("PBD", SR=sr, host=host, currently_attached=True)
        return sr

    def halt(self):
        self.vms.vm_hard_shutdown("", self.web)

    def new_vbd(self, **fields):
        record = {"VM": self.web, "VDI": self.disk, "userdevice": "1", "mode": "RW", **fields}
        return self.vms.vbd_create("", record)


@pytest.fixture
def office():
    return Office()


def error(call, *arguments):
    with pytest.raises(XenError) as caught:
        call(*arguments)
    return caught.value.description


def test_a_vm_starts_where_a_host_has_every_sr_of_its_disks(office):
    office.halt()
    here, there = (office.new_sr(host) for host in office.hosts)
    for number, sr in enumerate((here, there), 1):
        office.new_vbd(VDI=office.db.create("VDI", SR=sr), userdevice=str(number))
    assert error(office.vms.vm_start, "", office.web) == ["NO_HOSTS_AVAILABLE"]

    office.db.create("PBD", SR=there, host=office.hosts[0], currently_attached=True)
    office.vms.vm_start("", office.web)


def test_a_vm_starts_on_no_host_that_is_down_or_disabled(office):
    office.halt()
    office.db.set("host", office.hosts[0], "enabled", False)
    office.db.set("host_metrics", office.db.get("host", office.hosts[1], "metrics"), "live", False)
    assert error(office.vms.vm_start, "", office.web) == ["NO_HOSTS_AVAILABLE"]


def test_a_suspended_vm_needs_the_sr_of_its_memory(office):
    memory = office.db.create("VDI", SR=office.new_sr())
    office.db.set("VM", office.web, "suspend_VDI", memory)
    office.db.set("VM", office.web, "power_state", "Suspended")
    assert error(office.vms.methods()["VM.resume"], "", office.web, False, False) == ["NO_HOSTS_AVAILABLE"]


def test_a_vm_that_ha_restarts_is_protected_while_it_runs(office):
    set_priority = office.vms.vm_set_ha_restart_priority
    assert error(set_priority, "", office.web, "1") == ["INVALID_VALUE", "ha_restart_priority", "1"]
    seen = []
    for step in (
        lambda: set_priority("", office.web, "restart"),
        office.halt,
        lambda: office.vms.vm_start("", office.web),
        lambda: set_priority("", office.web, ""),
    ):
        step()
        seen.append(office.db.get("VM", office.web, "ha_always_run"))
    assert seen == [True, False, True, False]


def test_a_vbd_is_made_at_a_place_that_is_free_under_any_name(office):
    for name, code in (("0", "DEVICE_ALREADY_EXISTS"), ("xvda", "DEVICE_ALREADY_EXISTS"), ("front", "INVALID_DEVICE")):
        assert error(lambda name=name: office.new_vbd(userdevice=name)) == [code, name]


@pytest.mark.parametrize("type_", ["redo_log", "ha_statefile", "cbt_metadata"])
def test_no_vm_gets_a_vdi_of_xapi_itself(office, type_):
    vdi = office.db.create("VDI", SR=office.sr, type=type_)
    assert error(lambda: office.new_vbd(VDI=vdi)) == ["VDI_INCOMPATIBLE_TYPE", vdi, type_]


def test_a_vm_that_migrates_gets_no_vbd(office):
    office.db.set("VM", office.web, "current_operations", {"task": "migrate_send"})
    assert error(office.new_vbd)[0] == "OTHER_OPERATION_IN_PROGRESS"


@pytest.mark.parametrize("field, value, code", [
    ("managed", False, "VDI_NOT_MANAGED"),
    ("read_only", True, "VDI_READONLY"),
])  # fmt: skip
def test_a_vdi_that_is_no_disk_to_write_is_not_plugged(office, field, value, code):
    vdi = office.db.create("VDI", SR=office.sr)
    vbd = office.new_vbd(VDI=vdi)
    office.db.set("VDI", vdi, field, value)
    assert error(office.vms.vbd_plug, "", vbd)[0] == code


def test_a_disk_is_plugged_where_its_sr_is(office):
    vbd = office.new_vbd(VDI=office.db.create("VDI", SR=office.new_sr()))
    assert error(office.vms.vbd_plug, "", vbd)[0] == "INTERNAL_ERROR"


def test_who_counts_as_a_user_of_a_disk(office):
    other = office.db.create(
        "VM", power_state="Running", guest_metrics=office.db.get("VM", office.web, "guest_metrics")
    )
    vbd = office.new_vbd(VM=other)
    assert error(office.vms.vbd_plug, "", vbd) == ["VDI_IN_USE", office.disk]
    office.db.set("VM", office.web, "power_state", "Suspended")
    office.vms.vbd_plug("", vbd)


def test_a_sharable_disk_has_many_users(office):
    office.db.set("VDI", office.disk, "sharable", True)
    office.vms.vbd_plug("", office.new_vbd())


def test_a_vbd_is_unplugged_from_a_running_vm_that_allows_it(office):
    office.db.set("VBD", office.vbd, "unpluggable", False)
    assert error(office.vms.vbd_unplug, "", office.vbd) == ["VBD_NOT_UNPLUGGABLE", office.vbd]
    office.db.set("VBD", office.vbd, "unpluggable", True)
    office.db.set("VM", office.web, "power_state", "Paused")
    assert error(office.vms.vbd_unplug, "", office.vbd) == ["VM_BAD_POWER_STATE", office.web, "running", "paused"]


def test_a_drive_of_an_hvm_vm_is_never_plugged(office):
    iso = office.new_vbd(mode="RO", type="CD", userdevice="3")
    assert error(office.vms.vbd_plug, "", iso)[0] == "OPERATION_NOT_ALLOWED"


@pytest.mark.parametrize("operation", ["forget", "destroy"])
def test_a_vdi_in_use_is_neither_forgotten_nor_destroyed(office, operation):
    call = office.vms.methods()[f"VDI.{operation}"]
    assert error(call, "", office.disk) == ["VDI_IN_USE", office.disk, operation]
    office.halt()
    call("", office.disk)


@pytest.mark.parametrize("fields, code", [
    ({"device": "eth0", "MAC": "02:00:00:00:00:01"}, "INVALID_DEVICE"),
    ({"device": "0", "MAC": ""}, "MAC_INVALID"),
])  # fmt: skip
def test_a_vif_has_a_number_and_a_mac(office, fields, code):
    office.db.set("VM", office.web, "other_config", {})
    network = office.db.create("network")
    assert error(office.vms.vif_create, "", {"VM": office.web, "network": network, **fields})[0] == code


def test_a_vm_that_is_made_has_a_seed_for_its_macs(office):
    vm = office.vms.vm_create("", {"other_config": {"a": "b"}})
    vif = office.vms.vif_create("", {"VM": vm, "network": office.db.create("network"), "device": "0", "MAC": ""})
    assert office.db.get("VIF", vif, "MAC").startswith("02:") and office.db.get("VIF", vif, "MAC_autogenerated")


def test_a_move_of_a_disk_is_an_operation_of_its_vm(office):
    to, move = office.new_sr(*office.hosts), office.vms.vdi_pool_migrate
    office.db.set("VM", office.web, "blocked_operations", {"migrate_send": "why"})
    assert error(move, "", office.disk, to, {})[0] == "OPERATION_BLOCKED"
    office.db.set("VM", office.web, "blocked_operations", {})
    office.db.set("VM", office.web, "is_a_snapshot", True)
    assert error(move, "", office.disk, to, {})[0] == "VM_IS_SNAPSHOT"
    office.db.set("VM", office.web, "is_a_snapshot", False)
    office.db.set("VDI", office.disk, "cbt_enabled", True)
    assert error(move, "", office.disk, to, {}) == ["VDI_CBT_ENABLED", office.disk]


def test_a_disk_of_a_halted_vm_moves_where_one_host_has_both_srs(office):
    office.halt()
    assert error(office.vms.vdi_pool_migrate, "", office.disk, office.new_sr(), {}) == ["NO_HOSTS_AVAILABLE"]


def test_an_export_of_records_is_an_operation_of_the_vm(office):
    task = office.db.create("task")
    target, cookie = f"/export_metadata?ref={office.web}", {"Cookie": f"task_id={task}"}
    for field, value, code in (
        ("blocked_operations", {"metadata_export": "why"}, "OPERATION_BLOCKED"),
        ("current_operations", {"task": "snapshot"}, "OTHER_OPERATION_IN_PROGRESS"),
    ):
        office.db.set("VM", office.web, field, value)
        assert office.transfer.answer("GET", target, cookie, b"", True)[0] == 500
        assert office.db.get("task", task, "error_info")[0] == code
        office.db.set("VM", office.web, field, {})
    assert office.transfer.answer("GET", target, cookie, b"", True)[0] == 200


@pytest.mark.parametrize("method, path", [("GET", "/export_raw_vdi"), ("PUT", "/import_raw_vdi")])
def test_the_bytes_of_a_vdi_go_through_a_host_that_has_its_sr(office, method, path):
    vdi = office.db.create("VDI", SR=office.new_sr(office.hosts[1]), virtual_size=4)
    target = f"{path}?vdi={vdi}"
    answer = office.transfer.answer(method, target, NO_COOKIE, b"abcd", True)
    assert answer == (302, f"https://192.0.2.2{target}".encode())


def test_where_no_host_has_the_sr_only_an_import_ends_its_task(office):
    vdi = office.db.create("VDI", SR=office.new_sr())
    for method, path, status, ended in (
        ("GET", "/export_raw_vdi", 500, "pending"),
        ("PUT", "/import_raw_vdi", 400, "failure"),
    ):
        task = office.db.create("task")
        cookie = {"Cookie": f"task_id={task}"}
        assert office.transfer.answer(method, f"{path}?vdi={vdi}", cookie, b"", True)[0] == status
        assert office.db.get("task", task, "status") == ended


def test_the_bytes_of_a_disk_that_a_vm_writes_are_nobody_elses(office):
    task = office.db.create("task")
    target, cookie = f"/export_raw_vdi?vdi={office.disk}", {"Cookie": f"task_id={task}"}
    assert office.transfer.answer("GET", target, cookie, b"", True)[0] == 500
    assert office.db.get("task", task, "error_info") == ["VDI_IN_USE", office.disk]


def test_an_sr_of_an_unknown_type_is_introduced_and_not_plugged(office):
    sr = office.storage.sr_introduce("", "", "a", "b", "strange", "user", True)
    pbd = office.db.create("PBD", SR=sr, host=office.hosts[0])
    assert error(office.storage.pbd_plug, "", pbd) == ["SR_UNKNOWN_DRIVER", "strange"]
    assert not office.db.get("PBD", pbd, "currently_attached")


def test_a_task_that_has_not_ended_is_not_destroyed(office):
    """Nobody takes it away then, and nobody ends it but its owner."""
    api = Api(office.db, office.storage)
    session = api.call("session.login_with_password", ("root", "root"), local=True)
    task = api.call("task.create", (session, "label", ""))
    api.call("task.destroy", (session, task))
    assert office.db.get("task", task, "status") == "pending"
    api.call("task.set_status", (session, task, "failure"))
    api.call("task.destroy", (session, task))
    assert not office.db.exists("task", task)


def test_a_task_that_is_gone_is_nobodys_own(office):
    """Only who may destroy any task hears that it is gone."""
    api = Api(office.db, office.storage)
    api.users = {"mary": ("m", "vm-admin"), "otto": ("o", "pool-operator")}
    for user, password, code in (("mary", "m", "RBAC_PERMISSION_DENIED"), ("otto", "o", "HANDLE_INVALID")):
        session = api.call("session.login_with_password", (user, password))
        task = api.call("task.create", (session, "label", ""))
        office.db.destroy("task", task)
        assert error(api.call, "task.destroy", (session, task))[0] == code


def test_a_vif_of_a_running_vm_is_not_destroyed(office):
    vif = office.db.create("VIF", VM=office.web, currently_attached=True)
    destroy = office.vms.methods()["VIF.destroy"]
    assert error(destroy, "", vif) == ["OPERATION_NOT_ALLOWED", "VIF currently attached to a running VM"]
    office.halt()
    destroy("", vif)


def test_a_network_goes_with_the_vifs_that_are_not_attached(office):
    network = office.db.create("network")
    vif = office.db.create("VIF", VM=office.web, network=network, currently_attached=True)
    assert error(office.vms.network_destroy, "", network) == ["NETWORK_CONTAINS_VIF", vif]
    office.halt()
    office.vms.network_destroy("", network)
    assert not office.db.exists("VIF", vif)


def test_the_network_of_the_hosts_themselves_is_not_destroyed(office):
    network = office.db.create("network", other_config={"is_host_internal_management_network": "true"})
    assert error(office.vms.network_destroy, "", network) == ["CANNOT_DESTROY_SYSTEM_NETWORK", network]


def test_two_networks_have_two_bridges(office):
    office.vms.network_create("", {"bridge": "xapi7"})
    assert error(office.vms.network_create, "", {"bridge": "xapi7"}) == ["BRIDGE_NAME_EXISTS", "xapi7"]


def test_the_time_is_that_of_a_host_that_answers(office):
    api = Api(office.db, office.storage)
    session = api.call("session.login_with_password", ("root", "root"), local=True)
    there = office.hosts[1]
    office.storage.offline.add(there)
    assert error(api.call, "host.get_servertime", (session, there)) == ["CANNOT_CONTACT_HOST", there]
    office.db.set("host_metrics", office.db.get("host", there, "metrics"), "live", False)
    assert error(api.call, "host.get_servertime", (session, there)) == ["HOST_OFFLINE", there]
    assert error(api.call, "host.get_servertime", (session, "OpaqueRef:none"))[0] == "HANDLE_INVALID"
    api.call("host.get_servertime", (session, office.hosts[0]))


def test_an_sr_of_a_vm_that_ha_protects_is_not_unplugged(office):
    office.db.set("pool", office.db.refs("pool")[0], "ha_enabled", True)
    office.vms.vm_set_ha_restart_priority("", office.web, "restart")
    (pbd,) = office.db.refs("PBD", host=office.hosts[1])
    assert error(office.storage.pbd_unplug, "", pbd) == ["HA_CONSTRAINT_VIOLATION_SR_NOT_SHARED", office.sr]
