# SPDX-License-Identifier: LGPL-2.1-only
"""A VM in use, and an attached copy of the SR that has its disks."""

from functools import lru_cache

import pytest

from kit.lun_world import World
from kit.pool_lab import Image, lab_of_three
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.pool.calls import PoolGone


class Day:
    """The VM "web" in use, with two disks of "Production", and an attached copy of that SR."""

    def __init__(self, lab, **made):
        """`made`: what `make` has made in this lab's pool."""
        self.lab, self.db = lab, lab.pool.db
        self.__dict__.update(made)

    @staticmethod
    def make(lab):
        net = lab.network("office")
        root, data = (lab.vdi("Production", label)[0] for label in ("root disk", "data"))
        web = lab.vm("web", root, data, networks=[net], state="Running", other_config={"folder": "/b"})
        (copy,) = lab.attach(lab.clone("Production"))
        return {"net": net, "root": root, "data": data, "web": web, "copy": copy, "sr": lab.sr(copy.sr_uuid)[0]}

    def clone(self, *names, **more):
        return self.lab.clone_vms(self.copy.sr_uuid, *names, **more)

    def clone_one(self, vm="web", **more):
        (done,) = self.clone(vm, **more)
        return done

    def ref_of(self, done):
        """Reference of the VM that `clone` has made."""
        return self.db.by_uuid("VM", done.uuid)

    def start(self, vm=None):
        self.lab.pool.api.vms.vm_start("", vm or self.web)

    def shut_down(self, vm=None):
        self.lab.pool.api.vms.vm_hard_shutdown("", vm or self.web)

    def uuid(self, vdi):
        return self.db.get("VDI", vdi, "uuid")

    def vm(self, uuid):
        return self.db.record("VM", self.db.by_uuid("VM", uuid))

    def vbd(self, device):
        """Reference of the VBD of "web" at this device."""
        return self.db.refs("VBD", VM=self.web, userdevice=device)[0]

    def hang(self, device, vdi):
        """A person gives "web" this VDI at this device, in the place of what is there."""
        for vbd in self.db.refs("VBD", VM=self.web, userdevice=device):
            self.db.destroy("VBD", vbd)
        self.db.create("VBD", VM=self.web, VDI=vdi, userdevice=device)

    def elsewhere(self):
        """Reference of a VDI of "Testing"."""
        return self.lab.vdi("Testing", "data")[0]

    def vdi_on_copy(self, location, **fields):
        """Reference of a VDI that somebody has made on the copy."""
        return self.db.create("VDI", SR=self.sr, location=location, managed=True, **fields)

    def snapshot(self):
        """Of "web", with a disk of "Production"."""
        return self.lab.snapshot(self.web, "before the update", self.lab.vdi("Production", "before")[0])

    def names(self):
        """Of the disks that "web" has at first."""
        return [self.db.get("VDI", vdi, "name_label") for vdi in (self.root, self.data)]

    def srs(self):
        """References of the SRs of the disks of "web"."""
        return {sr for sr, _ in self.lab.disks_of(self.web).values()}

    def journal(self):
        """The keys that restore, undo, home and keep have left in the VM."""
        return [key for key in self.db.get("VM", self.web, "other_config") if key.startswith("relvmoiscsi:restore")]

    def set_journal(self, change):
        """Somebody makes of the other_config of "web" what `change` gives of it."""
        self.db.set("VM", self.web, "other_config", change(self.db.get("VM", self.web, "other_config")))

    def rows(self):
        """All that the pool has, but tasks, sessions and Secrets."""
        tables = ("VM", "VBD", "VIF", "VDI", "SR", "PBD", "network", "pool")
        return {table: self.db.records(table) for table in tables}

    def refuses(self, work, said, error=Refused):
        """The text of the error with which `work` ends, having changed nothing; `said` is a regular expression."""
        before = self.rows()
        with pytest.raises(error, match=said) as refused:
            work(self)
        assert self.rows() == before
        return str(refused.value)

    def cut(self, work, method, number=1):
        """The client of `work` is cut off at the call of this method that has this number."""
        with self.lab.cut(method, number), pytest.raises(PoolGone):
            work(self)

    def new(self, vdi):
        """Reference of the VDI of the copy that one of the original became."""
        return self.db.by_uuid("VDI", derived_uuid(self.copy.sr_uuid, self.uuid(vdi)))

    def expected(self, vm):
        """The disks that a copy of a VM must have."""
        old = self.lab.disks_of(vm)
        return {device: (self.sr, derived_uuid(self.copy.sr_uuid, uuid)) for device, (_, uuid) in old.items()}

    def copies(self):
        """The copies of "web" that there are: name, disks, MACs, whether they are done."""
        found = []
        for ref, vm in self.db.records("VM").items():
            if "relvmoiscsi:clone-of" in vm["other_config"] and not vm["is_a_snapshot"]:
                macs = [vif["MAC"] for vif in self.db.records("VIF", VM=ref).values()]
                disks = sorted(self.lab.disks_of(ref).items())
                found.append((vm["name_label"], disks, macs, "relvmoiscsi:done" in vm["other_config"]))
        return found

    def originals(self):
        """All of the VMs that no run has made, and what hangs on them."""
        ours = [ref for ref, vm in self.db.records("VM").items() if "relvmoiscsi:clone-of" in vm["other_config"]]
        rows = {table: self.db.records(table) for table in ("VM", "VBD", "VIF", "VTPM", "VDI", "network")}
        for table in ("VBD", "VIF", "VTPM"):
            rows[table] = {ref: row for ref, row in rows[table].items() if row["VM"] not in ours}
        for row in [*rows["VDI"].values(), *rows["network"].values()]:
            row.pop("VBDs", None), row.pop("VIFs", None)
        rows["VM"] = {ref: row for ref, row in rows["VM"].items() if ref not in ours}
        return rows


@pytest.fixture(scope="session")
def image_of_day(image_of_originals):
    with lab_of_three(World(), image_of_originals) as lab:
        return Image(lab, **Day.make(lab))


@pytest.fixture
def day(lab, image_of_day):
    return Day(lab, **image_of_day.put(lab))


@pytest.fixture
def halted(day):
    """ "web" is halted."""
    day.shut_down()
    return day


@pytest.fixture(scope="session")
def images_after(image_of_day):
    """What `day_after` has made once."""

    @lru_cache(maxsize=None)
    def image_after(work):
        with lab_of_three(World()) as lab:
            day = Day(lab, **image_of_day.put(lab))
            day.shut_down()
            work(day)
            return Image(lab, **{name: value for name, value in vars(day).items() if name not in ("lab", "db")})

    return image_after


@pytest.fixture
def day_after(lab, images_after):
    """`day_after(work)`: the day, when "web" was halted and `work` has been done, which takes the day."""
    return lambda work: Day(lab, **images_after(work).put(lab))
