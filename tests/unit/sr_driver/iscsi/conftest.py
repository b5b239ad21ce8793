# SPDX-License-Identifier: LGPL-2.1-only
"""The real driver in this process: a simulated xapi, a target on loopback, a host whose files are in a directory."""

import pytest

from kit import golden
from kit.driver_calls import call_of
from kit.iscsi import idle_time
from kit.iscsi.lun import Lun
from kit.pool.client import connected_locally
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.lun import call
from relvmoiscsi.sr_driver.iscsi import iscsi_lun, target_access


@pytest.fixture(scope="session")
def _chain():
    return golden.load("chain").disk


@pytest.fixture
def clone(_chain):
    """The LUN of a target, with the golden chain on it."""
    return Lun(7, disk=_chain.copy())


class Driver:
    """Calls as xapi makes them; `pool` is what they ask, `root` the directory of the host."""

    def __init__(self, answer, pool, session, root):
        self._answer, self.pool, self._session, self.root = answer, pool, session, root

    def __call__(self, command, at, scsi_id="", **config):
        """`at` is the target; "" for a key leaves it out."""
        named = {"SRmaster": "true", "target": "127.0.0.1", "port": str(at.port), "targetIQN": at.iqn}
        config = {**named, "SCSIid": scsi_id, **config}
        config = {key: value for key, value in config.items() if value}
        return self._answer(call_of(command, config, host_ref=self.pool.master, session_ref=self._session))

    def create(self, at, **config):
        return self("sr_create", at, at.luns[0].scsi_id if "SCSIid" not in config else "", **config)

    def probe(self, at, **config):
        return self("sr_probe", at, at.luns[0].scsi_id, **config)


@pytest.fixture
def clock(monkeypatch):
    return idle_time.patched_in(monkeypatch)


@pytest.fixture
def driver(answer, pool, tmp_path, clock, monkeypatch, request):
    host = Host(str(tmp_path / "host"))
    for module in (call, iscsi_lun, target_access):
        monkeypatch.setattr(module, "THIS_HOST", host)
    if request.node.get_closest_marker("processes") is None:  # no child: a test looks at what the work does
        monkeypatch.setattr(iscsi_lun, "run_in_child", lambda work, *_, **__: work(lambda: None))
    with connected_locally(pool) as session:
        defaults = Xapi.__init__.__defaults__
        monkeypatch.setattr(Xapi.__init__, "__defaults__", (pool.socket_path, *defaults[1:]))
        yield Driver(answer, pool, session.handle, tmp_path / "host")
