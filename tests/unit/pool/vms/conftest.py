# SPDX-License-Identifier: LGPL-2.1-only
"""A VM in use, and an attached copy of the SR that has its disks."""

from contextlib import contextmanager

import pytest

from kit.lun_world import World
from kit.pool.api import GoneAway
from kit.pool_lab import Image, Lab, only_reads
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.formats.identity import derived_uuid


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
        web = lab.vm("web", root, data, networks=[net], state="Running", other_config={"a": "b"})
        (copy,) = lab.attach(lab.clone("Production"))
        return {"net": net, "root": root, "data": data, "web": web, "copy": copy, "sr": lab.sr(copy.sr_uuid)[0]}

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

    def copies(self):
        """The copies of "web" that there are: name, disks, networks, whether they are done."""
        found = []
        for ref, vm in self.db.records("VM").items():
            if "relvmoiscsi:clone-of" in vm["other_config"]:
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


class Death:
    """Of a client, at the call of this number, counted from 0: before the call, or when it is done and nobody hears of
    its answer. `calls` is how many there were, of those that do more than read.
    """

    def __init__(self, api, number, answer_lost):
        self.api, self.number, self.answer_lost, self.calls = api, number, answer_lost, 0

    def wrap(self, function):
        def call(*words):
            is_counted = not only_reads(str(words[0]))
            mine, self.calls = self.calls, self.calls + is_counted
            if mine < self.number or mine == self.number and not is_counted:
                return function(*words)
            try:
                if mine == self.number and self.answer_lost:
                    function(*words)
            finally:
                raise GoneAway()

        return call

    @property
    def came(self):
        return self.calls > self.number


@pytest.fixture(params=[False, True], ids=["before the call", "after the call"])
def dies(request, lab):
    """`dies(work, number)`: work is done by a client that dies at that call; gives the Death."""

    @contextmanager
    def dying(number):
        api = lab.pool.api
        death = Death(api, number, request.param)
        api.call, api.transferred = death.wrap(api.call), death.wrap(api.transferred)
        try:
            yield death
        finally:
            del api.call, api.transferred

    def die(work, number):
        with dying(number) as death:
            try:
                work()
            except RelvmoiscsiError:
                pass
        lab.later()
        return death

    return die


@contextmanager
def new_lab():
    world = World()
    with world.pool(hosts=("xs1", "xs2", "xs3")) as pool:
        yield Lab(world, pool)


@pytest.fixture(scope="session")
def image_of_originals():
    with new_lab() as lab:
        lab.original("Production")
        lab.original("Testing")
        return Image(lab)


@pytest.fixture(scope="session")
def image_of_day(image_of_originals):
    with new_lab() as lab:
        image_of_originals.put(lab)
        return Image(lab, **Day.make(lab))


@pytest.fixture
def lab(image_of_originals):
    with new_lab() as made:
        image_of_originals.put(made)
        yield made


@pytest.fixture
def day(lab, image_of_day):
    return Day(lab, **image_of_day.put(lab))
