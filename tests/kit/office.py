# SPDX-License-Identifier: LGPL-2.1-only
"""A pool with the VMs of an office and a copy, for the commands on VMs."""

from contextlib import contextmanager

from kit.lun_world import World
from kit.pool.errors import XenError
from kit.pool_lab import Lab

CLONE_ALL = ("clone", "copy", "--all", "--isolated", "lab", "--yes")
RESTORE = ("restore", "copy", "web", "--yes")


class Office(Lab):
    """The VMs "web" and "db" on "Production", and a copy of that SR with the name "copy"."""

    def make(self):
        """Gives what the attributes of an Office are."""
        self.original("Production")
        self.original("Testing")
        net, db = self.network("office"), self.pool.db
        root, data = (self.vdi("Production", label)[0] for label in ("root disk", "data"))
        web = self.vm("web", root, networks=[net], state="Running", ha_always_run=True)
        db_vm = self.vm("db", data, networks=[net])
        (copy,) = self.attach(self.clone("Production"))
        db.set("SR", db.by_uuid("SR", copy.sr_uuid), "name_label", "copy")
        return {"net": net, "web": web, "db_vm": db_vm, "copy": copy}

    def state(self):
        """All records but tasks and sessions."""
        tables = ("VM", "VBD", "VIF", "VDI", "SR", "network")
        return {table: self.pool.db.records(table) for table in tables}

    def on_copy(self, label):
        return self.pool.db.refs("VDI", SR=self.pool.db.by_uuid("SR", self.copy.sr_uuid), name_label=label)[0]

    def helper(self, state="Running", domain_type="pv_in_pvh"):
        return self.vm("helper", self.vdi("Testing", "data")[0], state=state, domain_type=domain_type)

    def move_home(self):
        """By another tool."""
        (vbd,) = self.pool.db.refs("VBD", VM=self.web)
        disk, home = self.pool.db.get("VBD", vbd, "VDI"), self.originals["Production"][1]
        self.pool.api.vms.vdi_pool_migrate("", disk, home, {})


@contextmanager
def new_office():
    world = World()
    with world.pool(hosts=("xs1", "xs2")) as simulated:
        yield Office(world, simulated)


def fail():
    raise XenError("SR_BACKEND_FAILURE_46", "", "The VDI is not available", "")


def made(office):
    rows = office.pool.db.records("VM")
    return [ref for ref, vm in rows.items() if "relvmoiscsi:clone-of" in vm["other_config"] and not vm["is_a_snapshot"]]


def one_cannot_be(office, _run):
    office.vm("mixed", office.vdi("Production", "data")[0], office.vdi("Testing", "data")[0])
