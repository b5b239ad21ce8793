# SPDX-License-Identifier: LGPL-2.1-only
"""A whole call on a golden LUN: its disk is a file, and the process that writes is a real one."""

import os
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from kit import cuts, golden
from kit.clock import Clock
from kit.driver_calls import SCSI_ID
from kit.forged_record import forge_record
from kit.pool.database import Database
from kit.sr_states import SAME, STATES, name_of
from relvmoiscsi import engine
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import RelvmoiscsiError, UsageError
from relvmoiscsi.host.disk import exclusive, paths
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.host.xapi import stale_volumes
from relvmoiscsi.host.xapi.other_hosts import Use
from relvmoiscsi.lun import call, guard, users
from relvmoiscsi.lun.pool_records import PoolRecords, read_pool
from relvmoiscsi.lun.users import Hosts
from relvmoiscsi.sr_driver import create
from relvmoiscsi.sr_driver.hba.config import HbaConfig
from relvmoiscsi.sr_driver.hba.lun import HbaLun
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.transport import Transport
from relvmoiscsi.sr_types import HBA_SR

pytestmark = pytest.mark.processes

NAME = (SCSI_ID, "serial")
NOBODY = PoolRecords({}, {}, {})
USED = PoolRecords(
    {"p": {"SR": "s", "host": "other", "device_config": {"SCSIid": SCSI_ID}, "currently_attached": True}},
    {"s": {"uuid": "u", "type": "lvmohba", "name_label": "in use", "sm_config": {}}},
    {},
)


class World:
    """`events` are called in order, each when the call reads the pool."""

    def __init__(self, monkeypatch, path):
        self.path, self.held, self.pools, self.hosts = path, [], [NOBODY], {}
        golden.load("one").disk.to_file(path)
        self.before = self.content()

        @contextmanager
        def lock(name):
            self.held.append(name)
            try:
                yield
            finally:
                self.held.remove(name)

        @contextmanager
        def session(_lun, to_write):
            yield [self.path]

        monkeypatch.setattr(guard.sm_locks, "lvm_lock", lambda *_, **__: lock("SM"))
        monkeypatch.setattr(guard, "lvm_locks", lambda *_, **__: lock("LVM"))
        monkeypatch.setattr(HbaLun, "device_session", session)
        monkeypatch.setattr(call, "THIS_HOST", Host(os.path.dirname(path)))  # the lock of the LUN is of this test alone
        monkeypatch.setattr(exclusive, "LEASE_SECONDS", 60)  # another run may look up the file just then
        monkeypatch.setattr(paths.scsi, "live_scsi_id", lambda _path: NAME[0])
        monkeypatch.setattr(paths.scsi, "live_serial", lambda _path: NAME[1])
        monkeypatch.setattr(paths.scsi, "live_size", lambda disk: os.path.getsize(disk.descriptor))
        monkeypatch.setattr(users, "read_pool", lambda _xapi: self.pool())
        monkeypatch.setattr(users, "Hosts", lambda _xapi: self.hosts)
        monkeypatch.setattr(stale_volumes, "use_of_lun", lambda _scsi_id, _host: Use((), ()))

    def content(self):
        with open(self.path, "rb") as file:
            return file.read(1 << 20)

    def pool(self):
        """The records at one reading; the last stay."""
        self.asked_under = list(self.held)
        return self.pools.pop(0) if len(self.pools) > 1 else self.pools[0]

    def call(self, **more):
        config = HbaConfig({"SCSIid": SCSI_ID, "resign": "true", "SRmaster": "true", **more})
        deadline = Deadline(50, Clock())
        found = SimpleNamespace(scsi_id=SCSI_ID, deadline=deadline, is_new=False, name=NAME, has_sm_lock=False)
        transport = Transport(HBA_SR, HbaConfig, lambda *_: HbaLun(found, False, 0.0, None))
        return create.sr_create(Call("sr_create", {}), config, None, None, deadline, transport)

    def state(self):
        with open_device(self.path, writable=False) as device:
            return engine.inspect(device).state


@pytest.fixture
def world(monkeypatch, tmp_path):
    return World(monkeypatch, os.path.join(str(tmp_path), "sdb"))


def test_the_pool_is_asked_again_under_the_locks_of_lvm(world):
    world.call()

    assert (world.state(), world.asked_under, world.held) == ("resignatured", ["SM", "LVM"], [])


def test_an_sr_that_is_attached_while_the_call_waits_is_refused(world):
    """t0 the call reads the pool, t1 it waits for a lock, t2 an administrator makes an SR on the LUN."""
    world.pools = [NOBODY, USED]

    with pytest.raises(RelvmoiscsiError, match="in use in this pool.*in use.*Nothing was written"):
        world.call()

    assert (world.content() == world.before, world.held) == (True, [])


@pytest.mark.states("state", few=4)
@pytest.mark.parametrize("state", STATES, ids=name_of)
def test_the_original_under_a_new_scsi_id_is_refused_though_it_is_meant(world, state):
    """The child process has read the LUN; the call asks the pool under its locks."""
    uuid, db = engine.inspect(golden.load("one").disk).lun.sr_uuid, Database()
    hosts = [db.create("host", metrics=db.create("host_metrics", live=True)) for _ in range(2)]
    state.put(db, hosts, uuid, SCSI_ID)
    world.pools = [read_pool(db)]
    world.hosts = Hosts(db)
    if state.is_written:
        world.call()
        assert world.state() == "resignatured"
        return
    with pytest.raises(RelvmoiscsiError, match="Nothing was written"):
        world.call()
    assert (world.content() == world.before, world.held) == (True, [])
    if state.lun != SAME:
        world.call(**{"clone-of": uuid})
        assert world.state() == "resignatured"


@pytest.mark.states("state", few=4)
@pytest.mark.parametrize("state", [state for state in STATES if state.lun != SAME], ids=name_of)
def test_a_label_that_says_resignatured_is_no_success_where_the_pool_has_its_sr_elsewhere(world, state):
    """The child process has read the LUN; its parent asks the pool."""
    with open_device(world.path, writable=True) as device:
        uuid, db = cuts.resignature(device, scsi_id="another").ids.new_sr, Database()
        forge_record(device, SCSI_ID)
    hosts = [db.create("host", metrics=db.create("host_metrics", live=True)) for _ in range(2)]
    state.put(db, hosts, uuid, SCSI_ID)
    world.pools, world.hosts = [read_pool(db)], Hosts(db)
    before = world.content()

    if state.is_believed:
        assert world.call() == uuid
    else:
        with pytest.raises(RelvmoiscsiError, match="says that the LUN was resignatured.*Nothing was written"):
            world.call()

    assert (world.content() == before, world.held) == (True, [])


@pytest.mark.parametrize("whose", ["The pool has that SR, 'san'", "The pool has no such SR", "holds no SR that can be"])
def test_without_resign_true_nothing_is_written_and_the_sr_of_the_lun_is_named(world, whose):
    """An adapter sees whatever is mapped to it, originals as well."""
    if "no SR" in whose:
        os.truncate(world.path, 0)
        os.truncate(world.path, 1 << 20)
        world.before = world.content()
    elif "that SR" in whose:
        uuid = engine.inspect(golden.load("one").disk).lun.sr_uuid
        world.pools = [PoolRecords({}, {"s": {"uuid": uuid, "name_label": "san"}}, {})]

    with pytest.raises(UsageError, match=whose + ".*device-config:resign=true.*Nothing was written"):
        world.call(resign="")

    assert world.content() == world.before
