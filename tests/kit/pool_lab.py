# SPDX-License-Identifier: LGPL-2.1-only
"""A pool with originals in use and clones behind one target, and the client on it: a real XenAPI session over HTTP, our
engine behind SR.create.
"""

import pickle
import re
from contextlib import contextmanager

from kit.builder import SMALL_BAT, build_sr, raw, vhd
from kit.pool.api import GoneAway
from kit.pool.errors import XenError
from relvmoiscsi.errors import NotFound
from relvmoiscsi.pool import attach, lock, lock_keys, lun_search, records
from relvmoiscsi.pool.connection import Where, connect
from relvmoiscsi.pool.vms import choice, clone, discard, forget, inventory, owners

TARGET, IQN = "10.0.0.5", "iqn.2026-01.test:array"

_READS = re.compile(r"\.(get_|from$)|^session\.")


def only_reads(method):
    """Whether a call changes nothing: a client that dies there leaves what it had left at the last that does."""
    return bool(_READS.search(method))


_built = {}


def sr_disk(seed, *more):
    """An SR with a chain, a snapshot, a raw VDI and `more` volumes; small, and another one for each seed."""
    key = (seed, *(volume.key for volume in more))
    if key not in _built:
        _built[key] = build_sr([*VOLUMES, *more], seed=seed).disk
        _built[key].freeze()
    return _built[key].copy()


#: of each
VOLUMES = [
    vhd("base", hidden=True, blocks=0, bat_entries=SMALL_BAT),
    vhd("disk", parent="base", label="root disk", blocks=0, bat_entries=SMALL_BAT),
    vhd("snap", parent="base", label="before", snapshot_of="disk", blocks=0, bat_entries=SMALL_BAT),
    raw("data", label="data", extents=1),
]


def locks(lab):
    """The keys of the locks that clients have in the pool."""
    return [key for key in lab.pool.db.get("pool", lab.pool.pool, "other_config") if key.startswith(lock_keys.KEY)]


class Lab:
    """Two originals in use, "Production" and "Testing", and as many clones of each as a test wants."""

    def __init__(self, world, pool):
        self.world, self.pool = world, pool
        self.originals = {}

    def original(self, name, target=TARGET, iqn=IQN, volumes=(), **options):
        """A LUN with an SR in use; `volumes` are there beside VOLUMES."""
        scsi_id = self.world.add(target, iqn, sr_disk(name, *volumes), **options)
        self.world.recipes[scsi_id] = [*VOLUMES, *volumes], name
        self.originals[name] = (scsi_id, self.world.attach_original(self.pool, scsi_id, name))
        return scsi_id

    def clone(self, name, **options):
        return self.world.clone(self.originals[name][0], **options)

    def vdi(self, name, label):
        """(reference, record) of a VDI of an original."""
        found = self.pool.db.records("VDI", SR=self.originals[name][1], name_label=label)
        (pair,) = found.items()
        return pair

    def network(self, name, wire=True):
        """A network of the pool; `wire`: it has a physical interface."""
        db = self.pool.db
        ref = db.create("network", name_label=name, bridge="xenbr-" + name)
        if wire:
            db.create("PIF", network=ref, host=self.pool.master, device="eth0")
        return ref

    def vm(self, name, *disks, networks=(), state="Halted", tools=True, **fields):
        """A VM with these VDIs (references), as an administrator has it; gives its reference. `tools`: its guest has
        PV drivers and obeys.
        """
        db = self.pool.db
        if tools:
            drivers = {"major": "9", "minor": "3", "micro": "2", "build": "1"}
            fields = {"guest_metrics": db.create("VM_guest_metrics", PV_drivers_version=drivers), **fields}
        fields.setdefault("domain_type", "hvm")
        attached = state == "Running"
        vm = db.create(
            "VM", name_label=name, power_state=state, NVRAM={"EFI-variables": "QUJD"},
            platform={"secureboot": "true"}, HVM_boot_policy="BIOS order", generation_id="a generation",
            metrics=db.create("VM_metrics"), **fields
        )  # fmt: skip
        for number, vdi in enumerate(disks):
            device = number + (number > 2)  # the CD drive is 3
            db.create("VBD", VM=vm, VDI=vdi, userdevice=str(device), bootable=not number, currently_attached=attached)
        for number, network in enumerate(networks):
            mac = f"02:00:00:00:{len(db.refs('VIF')):02x}:{number:02x}"
            db.create("VIF", VM=vm, network=network, device=str(number), MAC=mac, currently_attached=attached)
        self.pool.api.vms.update_allowed(vm)
        return vm

    def snapshot(self, vm, name, *disks):
        """A snapshot of a VM, which has these VDIs."""
        db = self.pool.db
        parent = db.get("VM", vm, "parent")
        ref = db.create(
            "VM", name_label=name, is_a_snapshot=True, is_a_template=True, snapshot_of=vm, parent=parent
        )  # fmt: skip
        db.set("VM", vm, "parent", ref)
        for number, vdi in enumerate(disks):
            db.create("VBD", VM=ref, VDI=vdi, userdevice=str(number))
        for vif in db.records("VIF", VM=vm).values():
            db.create("VIF", VM=ref, network=vif["network"], device=vif["device"], MAC=vif["MAC"])
        return ref

    def disks_of(self, vm):
        """{userdevice: (SR reference, VDI UUID)} of a VM's disks."""
        db = self.pool.db
        found = {}
        for vbd in db.records("VBD", VM=vm, type="Disk").values():
            found[vbd["userdevice"]] = (db.get("VDI", vbd["VDI"], "SR"), db.get("VDI", vbd["VDI"], "uuid"))
        return found

    def clone_vms(self, sr_uuid, *names, everything=False, isolated=None, where=None, **wanted):
        """What `clone` gives for these VMs on the copy with this UUID."""
        with connect(where or self.where()) as calls:
            pool, found = records.read(calls), inventory.read(calls)
            copy = owners.copy_of(pool, found, pool.sr_by_uuid(sr_uuid))
            sources = choice.choose(pool, found, copy, names, everything)
            wanted = {"run": "a run", "jobs": 1, "patience": 0.01, "isolated_name": isolated or "", **wanted}
            return clone.clone(calls, pool, copy, sources, choice.CloneRequest(**wanted))

    def before(self, method, work, number=1):
        """Somebody does `work` just before the call of this method that has this number, and never again."""
        left = [number]

        def before(name, _params):
            left[0] -= name == method
            if name == method and not left[0]:
                self.pool.api.before = None
                work()

        self.pool.api.before = before

    @contextmanager
    def cut(self, method, number=1, error=None):
        """A block in which the calls of this method fail, from the one of this number on; as a connection that ends,
        unless an `error` is given.
        """
        left = [number]

        def before(name, _params):
            left[0] -= name == method
            if name == method and left[0] < 1:
                raise error or GoneAway()

        self.pool.api.before = before
        try:
            yield
        finally:
            self.pool.api.before = None

    def answer(self, method, function):
        """From now on the pool does this instead; gives what it did before."""
        methods = self.pool.api._methods
        methods[method], real = function, methods.get(method)
        return real

    def refuse(self, method, *error):
        """From now on the pool answers this call with this error."""

        def refuse(*_words):
            raise XenError(*error)

        return self.answer(method, refuse)

    def unplug(self, sr, *hosts):
        """These hosts, or all, have an SR (a reference) no longer."""
        for pbd, record in self.pool.db.records("PBD", SR=sr).items():
            if not hosts or record["host"] in hosts:
                self.pool.storage.pbd_unplug("", pbd)

    def later(self, minutes=31):
        """The locks of clients that were killed become stale."""
        now = self.pool.api.clock
        self.pool.api.clock = lambda: now() + 60 * minutes

    def where(self, **more):
        return Where(self.pool.url, self.pool.api.user, self.pool.api.password, **more)

    def attach(self, *scsi_ids, jobs_at_once=1, clones_of=(), everything=False, where=None, tell=lambda *_: None,
               are_clones=False, leave_others=False, are_unplugged=False):  # fmt: skip
        """What `attach` gives for these LUNs, all looked for behind the targets of the pool."""
        with connect(where or self.where()) as calls:
            pool = records.read(calls)
            found = lun_search.find(calls, pool, pool.portals(), jobs_at_once)
            of = [pool.srs[records.find_sr(pool, name)]["uuid"] for name in clones_of]
            found = attach.as_clones(found, scsi_ids, of) if are_unplugged else found
            chosen = attach.choose(found, scsi_ids, of, everything, are_clones)
            wanted = attach.AttachRequest(
                run="a run", jobs=jobs_at_once, leave_others=leave_others, are_unplugged=are_unplugged,
            )  # fmt: skip
            return attach.attach(calls, pool, chosen, wanted, tell, found)

    def look(self, *portals):
        """The LUNs that are found there, or behind all targets of the pool."""
        with connect(self.where()) as calls:
            pool = records.read(calls)
            return lun_search.find(calls, pool, portals or pool.portals(), 1)

    def lun(self, scsi_id, *portals):
        """What is found to have this SCSIid."""
        (found,) = [lun for lun in self.look(*portals) if lun.scsi_id == scsi_id]
        return found

    def detach(self, sr_uuid):
        with connect(self.where()) as calls:
            pool = records.read(calls)
            sr = pool.sr_by_uuid(sr_uuid)
            plan = discard.plan(calls, [sr], False, last_copies=True, forgets=False)
            with discard.carrying_out(calls, plan) as carry_out:
                carry_out(calls, sr, [])

    def discard(self, sr_uuid):
        with connect(self.where()) as calls:
            pool = records.read(calls)
            sr = pool.sr_by_uuid(sr_uuid)
            with lock.held(calls, [lock_keys.name_of(pool.srs[sr])], "discard") as held:
                forget.forget(calls, held, pool, sr, forget.read_uses(calls, [sr])[sr])

    def forget_original(self, name):
        self.unplug(self.originals[name][1])
        self.pool.storage.sr_forget("", self.originals[name][1])

    def fail(self, scsi_id, command="sr_create"):
        """From now on the driver has no luck with this LUN."""
        self.world.fail[command, scsi_id] = NotFound("The LUN did not appear.", "ISCSIDevice")

    def overwrite(self, scsi_id, name="Production"):
        """The array puts the data of this original onto a LUN."""
        lun, original = self.world.lun(scsi_id), self.world.lun(self.originals[name][0])
        self.world.luns[self.world.luns.index(lun)] = lun._replace(disk=original.disk.copy())

    def sr(self, uuid):
        """(reference, record) of an SR."""
        ref = self.pool.db.by_uuid("SR", uuid)
        return ref, self.pool.db.record("SR", ref)

    def summary(self):
        """What the pool has of copies, without references and the time of a run."""
        found = {}
        for sr in self.pool.db.records("SR").values():
            if "relvmoiscsi:original-sr" not in sr["other_config"] and sr["name_label"] in self.originals:
                continue
            pbds = [self.pool.db.record("PBD", ref) for ref in sr["PBDs"]]
            vdis = [self.pool.db.record("VDI", ref) for ref in sr["VDIs"]]
            found[sr["other_config"].get("relvmoiscsi:scsi-id", sr["uuid"])] = {
                "type": sr["type"],
                "shared": sr["shared"],
                "marks": sorted(sr["other_config"]),
                "pbds": sorted(
                    (pbd["host"], pbd["currently_attached"], pbd["device_config"]["SCSIid"]) for pbd in pbds
                ),
                "vdis": sorted(
                    (vdi["name_label"], vdi["other_config"].get("relvmoiscsi:old", ""), sorted(vdi["tags"]))
                    for vdi in vdis
                ),
            }
        return found


class Image:
    """The pool and the LUNs of a lab as they are at this moment, and `more`, values of a test: `put` gives other labs
    the same. That takes a tenth of the time of making them.
    """

    def __init__(self, lab, **more):
        world, pool, db = lab.world, lab.pool, lab.pool.db
        before = [lun.disk.content() for lun in world.luns]
        for lun in world.luns:
            lun.disk.freeze()
        self._luns = [lun._replace(disk=lun.disk.copy()) for lun in world.luns]
        frozen = dict(zip(before, (lun.disk.content() for lun in world.luns)))
        self._known = {(what, frozen[at]): found for (what, at), found in world._known.items() if at in frozen}
        rows = db._rows, db._created, db._touched, db.generation, pool.hosts, pool.master, pool.pool
        self._state = pickle.dumps((rows, world.sessions, world.recipes, world.deleted, lab.originals, more))

    def put(self, lab):
        """Gives `more`."""
        world, pool, db = lab.world, lab.pool, lab.pool.db
        rows, world.sessions, world.recipes, world.deleted, lab.originals, more = pickle.loads(self._state)
        db._rows, db._created, db._touched, db.generation, pool.hosts, pool.master, pool.pool = rows
        db.forget_what_was_read()
        disks = {lun.scsi_id: lun.disk.copy() for lun in self._luns}
        world.luns = [lun._replace(disk=disks[lun.scsi_id]) for lun in self._luns]
        world._known = dict(self._known)
        return more


@contextmanager
def lab_of_three(world, image=None):
    """A lab of three hosts; with what `image` has, if one is given."""
    with world.pool(hosts=("xs1", "xs2", "xs3")) as pool:
        lab = Lab(world, pool)
        if image:
            image.put(lab)
        yield lab
