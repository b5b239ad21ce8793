# SPDX-License-Identifier: LGPL-2.1-only
"""An export counts only as far as the pool's own records say the same: xapi writes keys of a map into it unescaped.

A vm-operator may write the keys of custom fields (`XenCenter.CustomFields.…`) of VMs, VDIs, SRs and networks.
"""

import re

import pytest

from kit.lun_world import World
from kit.pool import transfer
from kit.pool_lab import Image, lab_of_three
from relvmoiscsi.pool import records
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import checked_export, clone, inventory, save_vms
from relvmoiscsi.pool.vms.clone import FAILED, MADE
from unit.pool.vms.conftest import Day

CUSTOM = "XenCenter.CustomFields."
OBJECT = "<value><struct><member><name>class</name>"  #: begin of an object
END = "</data></array></value></member></struct></value>"  #: of the file


def as_operator(lab, method, *words):
    return as_role(lab, "vm-operator", method, *words)


def as_role(lab, role, method, *words):
    """A call of a user with this role; the simulated pool has xapi's table of roles."""
    api = lab.pool.api
    api.users["eve"] = ("x", role)
    session = api.call("session.login_with_password", ("eve", "x", "1.0", "eve"))
    return api.call(method, (session, *words))


def objects(document):
    """The objects of an export, each as text."""
    return [OBJECT + each.replace(END, "") for each in document.decode().split(OBJECT)[1:]]


def id_of(cls):
    """An id that no object of the export has."""
    return f"Ref:{int.from_bytes(cls.encode(), 'big')}"


def one_of(texts, cls, **fields):
    """The first object of a class with an id and a UUID of its own, and with these fields."""
    text = next(each for each in texts if f"<name>class</name><value>{cls}</value>" in each)
    text = re.sub("(<name>id</name><value>)[^<]*", rf"\g<1>{id_of(cls)}", text, count=1)
    for name, new in {"uuid": "forged " + cls, **fields}.items():
        member = f"<member><name>{name}</name>"
        old = re.compile(f"{member}(?:<value/>|<value>(?:[^<]|<boolean>[01]</boolean>)*</value>)")
        text, count = old.subn(member + (new if new.startswith("<") else f"<value>{new}</value>"), text, count=1)
        assert count == 1, (cls, name)
    return text


def key_with(lab, vm, table, ref, forged):
    """A key of a custom field that ends the record of its object, and adds what `forged` makes of the other objects.

    The end of the record becomes a network, which an import does not make.
    """
    db = lab.pool.db
    db.add_to(table, ref, "other_config", CUSTOM + "HERE", "")
    there = objects(transfer.export(db, vm, True))
    db.remove_from(table, ref, "other_config", CUSTOM + "HERE")
    (rest,) = (each.partition("HERE")[2] for each in there if "HERE" in each)
    network = "<value><struct><member><name>class</name><value>network</value></member>"
    network += "<member><name>id</name><value>Ref:9999</value></member><member><name>snapshot</name><value><struct>"
    network += "<member><name>other_config</name><value><struct><member><name>z"
    return CUSTOM + "a" + rest + forged(there) + network


def disk_of_payroll(there, uuid):
    """A disk of the VM at 7 that is the VDI with this UUID."""
    vdi = one_of(there, "VDI", uuid=uuid)
    return vdi + one_of(there, "VBD", VDI=id_of("VDI"), userdevice="7")


class Attack(Day):
    """ "payroll" has a disk of "Production" that "web" has not."""

    @staticmethod
    def make(lab):
        made = Day.make(lab)
        secret, record = lab.vdi("Production", "before")
        secret_uuid = record["uuid"]
        new = Day(lab, **made).new(secret)
        for vdi in (secret, new):
            lab.pool.db.set("VDI", vdi, "is_a_snapshot", False)
        key = key_with(lab, made["web"], "VDI", made["root"], lambda there: disk_of_payroll(there, secret_uuid))
        return {**made, "secret": secret, "payroll": lab.vm("payroll", secret), "key": key}

    def put_key(self):
        as_operator(self.lab, "VDI.add_to_other_config", self.root, self.key, "")

    def remove_key(self):
        as_operator(self.lab, "VDI.remove_from_other_config", self.root, self.key)

    def save(self):
        with connect(self.lab.where()) as calls:
            pool, found = records.read(calls), inventory.read(calls)
            return save_vms.save(calls, pool, found, records.find_sr(pool, "Production"), "2026-11-23T12:00:00Z")


@pytest.fixture(scope="session")
def image_of_attack(image_of_originals):
    with lab_of_three(World(), image_of_originals) as lab:
        return Image(lab, **Attack.make(lab))


@pytest.fixture
def attack(lab, image_of_attack):
    return Attack(lab, **image_of_attack.put(lab))


@pytest.fixture
def around(monkeypatch):
    """Do `before` and `after` each export of the simulated pool; the result lists the exported VMs."""

    def around(before=lambda: None, after=lambda: None):
        real, exported = transfer.export, []

        def export(db, vm, *words):
            before()
            exported.append(vm)
            try:
                return real(db, vm, *words)
            finally:
                after()

        monkeypatch.setattr(transfer, "export", export)
        return exported

    return around


def fields_of(document):
    """The bytes of the fields of the first VM of an export, in order."""
    return re.findall("<name>(name_label|is_a_template|other_config|is_a_snapshot|platform)</name>", document)


def test_the_simulated_pool_writes_the_fields_in_the_order_of_the_datamodel(attack):
    (vm,) = (each for each in objects(transfer.export(attack.db, attack.web, False)) if "<value>VM</value>" in each)
    assert fields_of(vm) == ["name_label", "is_a_template", "platform", "other_config", "is_a_snapshot"]


# --- a key that adds objects


def test_no_key_gives_a_clone_a_disk_of_another_vm(attack):
    attack.put_key()
    done = attack.clone_one()
    assert (done.status, attack.copies()) == (FAILED, [])
    assert "The export of the VM 'web' does not say what the pool's records say" in done.error.message
    assert f"The VDI '{attack.uuid(attack.root)}' has the key '{CUSTOM}a</name>" in done.error.message
    remove = f"`xe vdi-param-remove uuid={attack.uuid(attack.root)} param-name=other-config param-key='{attack.key}'`"
    assert remove in done.error.advice
    attack.remove_key()
    assert attack.clone_one().status == MADE


def test_no_save_seals_what_a_key_has_added(attack):
    attack.put_key()
    saved, _, failed = attack.save()
    assert [vm.name_label for vm in saved.vms] == ["payroll"]
    ((name, why),) = failed.values()
    assert name == "web" and "does not say what the pool's records say" in why


@pytest.mark.parametrize("most", [1, 2])
def test_a_key_that_is_there_during_an_export_alone_adds_nothing(attack, around, most):
    """No look at the keys before and after an export finds this key."""
    put = iter([True] * most)
    taken = iter([True] * most)
    exported = around(lambda: next(put, False) and attack.put_key(), lambda: next(taken, False) and attack.remove_key())
    done = attack.clone_one()
    assert len(exported) == 2
    if most == 1:  # the second export decides
        assert attack.lab.disks_of(attack.ref_of(done)) == attack.expected(attack.web)
    else:
        assert (done.status, attack.copies()) == (FAILED, [])
        assert done.error.advice == "Repeat the command when nobody changes the VM."


@pytest.mark.parametrize("table", ["VM", "VDI", "SR", "network"])
def test_a_character_that_xml_forbids_in_a_custom_field_refuses_nothing(attack, table):
    """xapi 25.31 and later stores U+FFFF, and writes it into the export."""
    refs = {"VM": attack.web, "VDI": attack.root, "SR": attack.lab.originals["Production"][1], "network": attack.net}
    as_operator(attack.lab, f"{table}.add_to_other_config", refs[table], CUSTOM + "a\uffff", "x\uffff")
    done = attack.clone_one()
    if (table, attack.db.release) == ("VDI", "25.33"):  # the export is good, and the import reads no VDI
        assert done.status == FAILED and done.error.message.startswith("xapi could not import the copy of 'web'. ")
    else:
        assert (done.status, done.error) == (MADE, None)
    saved, _, failed = attack.save()
    assert ({vm.name_label for vm in saved.vms}, failed) == ({"web", "payroll"}, {})


def test_such_a_character_hides_no_key_that_adds_a_disk(attack):
    attack.key = attack.key.replace(CUSTOM + "a", CUSTOM + "a\uffff")
    attack.put_key()
    done = attack.clone_one()
    assert (done.status, attack.copies()) == (FAILED, [])
    assert "does not say what the pool's records say" in done.error.message


def forged_lock(there):
    """The VIF once more, without its lock: as a second object, or in the place of the real one."""
    return one_of(there, "VIF", locking_mode="unlocked")


@pytest.mark.parametrize(
    "forged",
    [
        forged_lock,
        lambda there: one_of(there, "VM"),
        lambda there: one_of(there, "VM", is_a_snapshot="<value><boolean>1</boolean></value>"),
        lambda there: one_of(there, "SR"),
        lambda there: one_of(there, "VM_metrics"),
        lambda there: one_of(there, "network").replace("network</value>", "PVS_proxy</value>", 1),
        lambda there: one_of(there, "network").replace("network</value>", "VGPU</value>", 1),
        lambda there: one_of(there, "network").replace("network</value>", "VTPM</value>", 1),
        lambda there: one_of(there, "network").replace("network</value>", "host</value>", 1),
    ],
)
def test_no_key_adds_an_object(attack, forged):
    key = key_with(attack.lab, attack.web, "VDI", attack.root, forged)
    as_operator(attack.lab, "VDI.add_to_other_config", attack.root, key, "")
    done = attack.clone_one()
    assert (done.status, attack.copies()) == (FAILED, []), done
    assert "does not say what the pool's records say" in done.error.message


def two_keys(attack, forge):
    """A key of "web" and a key of its network: what lies between them is hidden in an object of a class that no import
    knows, and comes again as `forge` makes of it.
    """
    db = attack.db
    places = {("VM", attack.web): "ONE", ("network", attack.net): "TWO"}
    for (table, ref), word in places.items():
        db.add_to(table, ref, "other_config", CUSTOM + word, "")
    text = "".join(objects(transfer.export(db, attack.web, False)))
    for (table, ref), word in places.items():
        db.remove_from(table, ref, "other_config", CUSTOM + word)
    before, rest = text.split("ONE")
    end = rest.index(OBJECT)
    hidden, after = rest[end:].split("TWO")
    after = after.partition(OBJECT)[0]
    opens = f"{OBJECT}<value>x</value></member><member><name>id</name><value>Ref:9999</value></member>"
    opens += "<member><name>snapshot</name><value><struct><member><name>in</name><value><array><data>"
    inner = (
        "<value><struct><member><name>snapshot</name><value><struct><member><name>other_config</name><value><struct>"
    )
    closes = "</data></array></value></member></struct></value></member></struct></value>"
    one = CUSTOM + "a" + rest[:end] + opens + inner + "<member><name>z"
    return one, CUSTOM + "b" + after + closes + forge(hidden) + "b"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("<value>locked</value>", "<value>unlocked</value>", "has another locking_mode"),
        ("<value>10.0.0.1</value>", "<value>10.9.9.9</value>", "has another ipv4_allowed"),
        (
            "<name>userdevice</name><value>0</value>",
            "<name>userdevice</name><value>8</value>",
            "has another userdevice",
        ),
        ("", "", ""),
    ],
)
def test_no_keys_change_a_value_of_another_object(attack, around, old, new, says):
    """The export has all objects of the VM, each once, and no key is in the pool before or after the export."""
    (vif,) = attack.db.refs("VIF", VM=attack.web)
    attack.db.set("VIF", vif, "locking_mode", "locked")
    attack.db.set("VIF", vif, "ipv4_allowed", ["10.0.0.1"])
    keys = two_keys(attack, lambda hidden: hidden.replace(old, new, 1) if old else hidden)

    def put():
        as_operator(attack.lab, "VM.remove_from_other_config", attack.web, CUSTOM + "a")
        as_operator(attack.lab, "VM.add_to_other_config", attack.web, keys[0], "")
        as_operator(attack.lab, "network.add_to_other_config", attack.net, keys[1], "")

    def remove():
        as_operator(attack.lab, "VM.remove_from_other_config", attack.web, keys[0])
        as_operator(attack.lab, "network.remove_from_other_config", attack.net, keys[1])
        as_operator(attack.lab, "VM.add_to_other_config", attack.web, CUSTOM + "a", "")

    exported = around(put, remove)
    done = attack.clone_one()
    if says:
        assert (done.status, attack.copies(), len(exported)) == (FAILED, [], 2)
        assert says in done.error.message
    else:  # what says the same counts
        assert done.status == MADE and "it has no x" in done.notes


# --- a key that nobody can read


@pytest.mark.parametrize("key", ["R&D", "a<b", "x]]>"])
@pytest.mark.parametrize("table", ["VM", "VDI", "SR", "network"])
def test_a_key_that_breaks_the_export_is_named_with_the_command_that_removes_the_key(attack, table, key):
    ref = {"VM": attack.web, "VDI": attack.root, "SR": attack.lab.originals["Production"][1], "network": attack.net}
    uuid = attack.db.get(table, ref[table], "uuid")
    as_operator(attack.lab, f"{table}.add_to_other_config", ref[table], CUSTOM + key, "")
    done = attack.clone_one()
    assert done.error.message.startswith("The records of the VM cannot be read: ")
    assert f"The {table} '{uuid}' has the key '{CUSTOM}{key}' in other_config" in done.error.message
    (remove,) = done.error.commands
    assert remove == (f"xe {table.lower()}-param-remove uuid={uuid} param-name=other-config param-key='{CUSTOM}{key}'")
    as_operator(attack.lab, f"{table}.remove_from_other_config", ref[table], CUSTOM + key)
    assert attack.clone_one().status == MADE


# --- a key of a VDI that no export has: xapi reads the records of all VDIs before an import


def unrelated(attack):
    """A VDI of another SR, as reference and UUID."""
    vdi = attack.elsewhere()
    return vdi, attack.uuid(vdi)


@pytest.mark.parametrize(
    ("method", "words", "says", "way"),
    [
        ("add_to_other_config", (CUSTOM + "R&D", ""), f"the key '{CUSTOM}R&D' in other_config", "Remove the key: `xe "),
        (
            "add_to_other_config",
            (CUSTOM + "a", "\uffff"),
            f"the key '{CUSTOM}a' in other_config",
            "Remove the key: `xe ",
        ),
        ("add_to_other_config", (CUSTOM + "\uffff", ""), "in other_config", "Remove the key: `xe "),
        ("set_tags", (["x\uffff"],), "in tags", "by VDI.remove_tags."),
        ("set_name_label", ("x\uffff",), "in name_label", "by VDI.set_name_label."),
    ],
)
def test_a_text_of_any_vdi_that_stops_the_import_is_named_with_the_way_to_remove_it(attack, method, words, says, way):
    vdi, uuid = unrelated(attack)
    as_role(attack.lab, "vm-admin", f"VDI.{method}", vdi, *words)
    with connect(attack.lab.where()) as calls:
        warning = clone.warning(inventory.read(calls))
    assert f"The VDI '{uuid}' has the " in warning and says in warning and way in warning
    done = attack.clone_one()
    if attack.db.release == "26.17":
        assert done.status == MADE
        return
    assert (done.status, attack.copies()) == (FAILED, []) and "Nothing was made." in str(done.error)
    assert f"The VDI '{uuid}' has the " in done.error.message and says in done.error.message
    assert way in done.error.advice and done.error.advice.endswith("Then repeat the command.")
    attack.db.destroy("VDI", vdi)
    assert attack.clone_one().status == MADE
    with connect(attack.lab.where()) as calls:
        assert clone.warning(inventory.read(calls)) == ""


def test_of_many_such_vdis_some_are_named(attack):
    sr = attack.db.get("VDI", attack.elsewhere(), "SR")
    for at in range(7):
        vdi = attack.db.create("VDI", SR=sr, location=str(at))
        as_operator(attack.lab, "VDI.add_to_other_config", vdi, CUSTOM + "R&D", "")
    with connect(attack.lab.where()) as calls:
        warning = clone.warning(inventory.read(calls))
    assert warning.count("has the key") == warning.count("`xe vdi-param-remove ") == 5
    assert ", and 2 more such texts are there" in warning


#: a map that a vm-admin or a pool-operator may write, and the map as xe calls it; "" where xe removes no key of it
MAPS = {
    ("VM", "HVM_boot_params"): "HVM-boot-params",
    ("VM", "xenstore_data"): "xenstore-data",
    ("VM", "platform"): "platform",
    ("VM", "NVRAM"): "NVRAM",
    ("VM_metrics", "other_config"): "",
    ("VM_guest_metrics", "other_config"): "",
    ("VBD", "other_config"): "other-config",
    ("VBD", "qos_algorithm_params"): "qos_algorithm_params",
    ("VIF", "other_config"): "other-config",
    ("VIF", "qos_algorithm_params"): "qos_algorithm_params",
    ("VDI", "sm_config"): "",
    ("VDI", "xenstore_data"): "",
    ("SR", "sm_config"): "",
}


@pytest.mark.parametrize("table, field", MAPS, ids=str)
def test_each_map_of_each_object_is_looked_at(attack, table, field):
    db, web = attack.db, attack.web
    refs = {"VM": web, "VDI": attack.root, "SR": db.get("VDI", attack.root, "SR")}
    refs.update(VM_metrics=db.get("VM", web, "metrics"), VM_guest_metrics=db.get("VM", web, "guest_metrics"))
    ref = refs.get(table) or db.refs(table, VM=web)[0]
    db.set(table, ref, field, {**db.get(table, ref, field), "a<b": "x"})
    uuid, error, of_xe = db.get(table, ref, "uuid"), attack.clone_one().error, MAPS[table, field]
    assert f"The {table} '{uuid}' has the key 'a<b' in {field}" in error.message
    command = f"xe {table.lower()}-param-remove uuid={uuid} param-name={of_xe} param-key='a<b'"
    assert error.commands == ([command] if of_xe else [])
    assert of_xe or f"with a client of XenAPI, by {table}.remove_from_{field}." in error.advice


@pytest.mark.parametrize("keys", [("x\uffff", "x?"), ("x\r", "x\n")], ids=ascii)
def test_two_keys_that_an_export_has_as_one_are_named(attack, keys):
    for key in keys:
        as_operator(attack.lab, "VDI.add_to_other_config", attack.root, CUSTOM + key, "")
    error = attack.clone_one().error
    assert f"The VDI '{attack.uuid(attack.root)}' has the key" in error.message and len(error.commands) == 1


@pytest.mark.parametrize("table", ["VM", "VDI"])
def test_a_key_that_reads_as_another_key_is_named(attack, table):
    ref = {"VM": attack.web, "VDI": attack.root}[table]
    as_operator(attack.lab, f"{table}.add_to_other_config", ref, CUSTOM + "R&amp;D", "")
    error = attack.clone_one().error
    assert "has another other_config" in error.message and error.commands[0].endswith(f"param-key='{CUSTOM}R&amp;D'")


def test_a_command_has_no_key_of_any_length(attack):
    as_operator(attack.lab, "VM.add_to_other_config", attack.web, CUSTOM + "&" * (1 << 20), "")
    error = attack.clone_one().error
    assert len(str(error)) < 2000 and "Remove the key with a client of XenAPI" in error.advice and not error.commands


# --- a VM that changes


def clock(attack, *times):
    """Set the clock of "web" to the next of these times; xapi notes such a change in the VM."""
    left = iter(times)

    def tick():
        for offset in [next(left, None)]:
            if offset is not None:
                attack.db.set("VM", attack.web, "platform", {"timeoffset": offset})

    return tick


@pytest.mark.parametrize(("times", "count"), [("1", 1), ("12", 2)])
def test_a_vm_that_has_changed_since_the_records_were_read_is_cloned_as_it_is(attack, around, times, count):
    """After a change before its export alone, the VM is exported once; with a second change during that, twice."""
    tick = clock(attack, *times)
    exported = around(before=tick, after=tick)
    done = attack.clone_one()
    assert (done.status, len(exported)) == (MADE, count)
    assert attack.vm(done.uuid)["platform"] == {"timeoffset": times[-1]}


def test_a_vm_that_changes_during_each_export_is_refused_alone(attack, around):
    tick = clock(attack, *map(str, range(100)))
    exported = around(before=tick, after=tick)
    saved, _, failed = attack.save()
    ((name, why),) = failed.values()
    assert ([vm.name_label for vm in saved.vms], name) == (["payroll"], "web")
    assert why.startswith("The export of the VM 'web' does not say what the pool's records say: the VM ")
    assert "has another platform. The export was not used." in why and exported.count(attack.web) == 2


def made_and_gone(attack):
    """All that may come and go while a VM is exported."""
    db, web = attack.db, attack.web
    lab = attack.lab
    return {
        "a disk": lambda: db.create("VBD", VM=web, VDI=attack.elsewhere(), userdevice="9"),
        "a VIF": lambda: db.create("VIF", VM=web, network=lab.network("new"), device="5", MAC="02:00:00:00:00:77"),
        "a snapshot": lambda: lab.snapshot(web, "new", lab.vdi("Production", "before")[0]),
        "a drive goes": lambda: db.destroy("VBD", db.refs("VBD", VM=web)[-1]),
        "suspended": lambda: [
            db.set("VM", web, *each) for each in (("power_state", "Suspended"), ("suspend_VDI", attack.secret))
        ],
    }


@pytest.mark.parametrize("what", ["a disk", "a VIF", "a snapshot", "a drive goes", "suspended"])
def test_what_comes_and_goes_before_the_export_is_in_the_export(attack, around, what):
    changes = [made_and_gone(attack)[what]]
    exported = around(before=lambda: changes and changes.pop()())
    with connect(attack.lab.where()) as calls:
        pool, found = records.read(calls), inventory.read(calls)
        document = checked_export.export(calls, pool, found, attack.web, snapshots=True)
    assert len(exported) == 1 and document


def test_an_export_that_agrees_takes_no_more_calls(attack, around):
    around()
    with connect(attack.lab.where()) as calls:
        pool, found = records.read(calls), inventory.read(calls)
        del attack.lab.pool.api.calls[:]
        checked_export.export(calls, pool, found, attack.web, snapshots=True)
        assert attack.lab.pool.api.calls == ["task.create", "GET /export_metadata", "event.from", "task.destroy"]
