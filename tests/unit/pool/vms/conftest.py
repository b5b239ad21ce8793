# SPDX-License-Identifier: LGPL-2.1-only
"""A VM in use, and an attached copy of the SR that has its disks."""

import pytest

from relvmoiscsi.formats.identity import derived_uuid


class Day:
    """The VM "web" in use, with two disks of "Production", and an attached copy of that SR."""

    def __init__(self, lab):
        self.lab, self.db = lab, lab.pool.db
        self.net = lab.network("office")
        self.root, self.data = (lab.vdi("Production", label)[0] for label in ("root disk", "data"))
        self.web = lab.vm("web", self.root, self.data, networks=[self.net], state="Running", other_config={"a": "b"})
        (self.copy,) = lab.attach(lab.clone("Production"))
        self.sr = self.db.by_uuid("SR", self.copy.sr_uuid)

    def clone(self, *names, **more):
        return self.lab.clone_vms(self.copy.sr_uuid, *names, **more)

    def vm(self, uuid):
        return self.db.record("VM", self.db.by_uuid("VM", uuid))

    def new(self, vdi):
        """Reference of the VDI of the copy that one of the original became."""
        return self.db.by_uuid("VDI", derived_uuid(self.copy.sr_uuid, self.db.get("VDI", vdi, "uuid")))

    def expected(self, vm):
        """The disks that a copy of a VM must have."""
        old = self.lab.disks_of(vm)
        return {device: (self.sr, derived_uuid(self.copy.sr_uuid, uuid)) for device, (_, uuid) in old.items()}

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


@pytest.fixture
def day(lab):
    return Day(lab)
