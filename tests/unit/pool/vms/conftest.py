# SPDX-License-Identifier: LGPL-2.1-only
"""A VM in use, and an attached copy of the SR that has its disks."""

import time
from contextlib import contextmanager

import pytest

from kit.examples import SEED, WHOLE, of_each_kind
from kit.lun_world import World
from kit.pool.api import GoneAway
from kit.pool_fakes import until
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


@pytest.fixture
def deaths(lab):
    """`for way in deaths(work, *ways)`: in the pool as it is now, the client of `work` dies at a call of each kind that
    changes something; `way` is what the test is to do then. A sample takes a way and a moment for each death: before
    the call, or when the call is done and nobody hears of its answer.
    """

    def of(work, *ways):
        image, api = Image(lab), lab.pool.api
        kinds = []
        with wrapped(api, lambda function, *words: (kinds.append(words[0]), function(*words))[1]):
            work()
        moments = [(way, is_lost) for way in ways or (None,) for is_lost in (False, True)]
        for turn, number in enumerate(of_each_kind(kinds, 40, "deaths"), SEED):
            for way, is_answer_lost in moments if WHOLE else [moments[turn % len(moments)]]:
                until(lambda: not under_way(lab))
                image.put(lab)
                api.clock = time.time
                with wrapped(api, Death(number, is_answer_lost)):
                    try:
                        work()
                    except RelvmoiscsiError:
                        pass
                yield way

    return of


class Death:
    """Of a client, at its call of this number that changes something: every later call of the client fails."""

    def __init__(self, number, is_answer_lost):
        self.number, self.is_answer_lost, self.calls = number, is_answer_lost, 0

    def __call__(self, function, *words):
        self.calls += 1
        if self.calls < self.number:
            return function(*words)
        if self.calls == self.number and self.is_answer_lost:
            function(*words)
        raise GoneAway()


@contextmanager
def wrapped(api, around):
    """A block in which `around` is called with the function of each call that changes something, and its arguments.
    Calls that only read fail once one of the others has failed.
    """
    gone = []

    def wrap(function):
        def call(*words):
            if only_reads(str(words[0])):
                if gone:
                    raise GoneAway()
                return function(*words)
            try:
                return around(function, *words)
            except GoneAway:
                gone.append(words[0])
                raise

        return call

    api.call, api.transferred = wrap(api.call), wrap(api.transferred)
    try:
        yield
    finally:
        del api.call, api.transferred


def under_way(lab):
    """Tasks that the pool ends by itself."""
    tasks = lab.pool.db.records("task", status="pending").values()
    return [task for task in tasks if task["name_label"].startswith("Async.")]


@pytest.fixture(scope="session")
def image_of_day(image_of_originals):
    world = World()
    with world.pool(hosts=("xs1", "xs2", "xs3")) as pool:
        lab = Lab(world, pool)
        image_of_originals.put(lab)
        return Image(lab, **Day.make(lab))


@pytest.fixture
def day(lab, image_of_day):
    return Day(lab, **image_of_day.put(lab))
