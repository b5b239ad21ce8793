# SPDX-License-Identifier: LGPL-2.1-only
"""The driver on a host in a directory."""

import inspect

import pytest

from relvmoiscsi.host.disk import cleanup_journal, hiding, holders, multipath, paths, scsi_id, udev
from relvmoiscsi.host.hba import adapters
from relvmoiscsi.host.hba import scan as scan_module
from relvmoiscsi.host.locks import lun_lock, sm_locks
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.lun import call
from relvmoiscsi.sr_driver.hba import discovery, lun, missing, other_luns

MODULES = (cleanup_journal, adapters, hiding, udev, sm_locks, lun_lock, scan_module, multipath, holders, scsi_id)


@pytest.fixture
def on_host(monkeypatch):
    """`on_host(host)`: from now on the driver is on this host, where a wait is one look."""
    functions = [inspect.unwrap(one) for module in MODULES for one in vars(module).values() if callable(one)]

    def move(host):
        for function in filter(inspect.isfunction, functions):
            defaults = [host if isinstance(one, Host) else one for one in function.__defaults__ or ()]
            monkeypatch.setattr(function, "__defaults__", tuple(defaults))
        for module in (call, discovery, lun, missing, other_luns):
            monkeypatch.setattr(module, "THIS_HOST", host._replace(wait_for=lambda condition, _: condition()))

    return move


@pytest.fixture
def driver_on(monkeypatch, on_host):
    """`driver_on(mapped host)`: the same, where the array of a MappedHost answers a scan."""
    monkeypatch.setattr(scan_module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(scan_module, "run_parallel", lambda works, *_: [work() for work in works])

    def move(mapped):
        on_host(mapped.host)
        monkeypatch.setattr(scsi_id, "look_for_luns", mapped.scan)
        monkeypatch.setattr(scsi_id, "remove_lun", mapped.remove)
        monkeypatch.setattr(paths, "look", mapped.look)
        monkeypatch.setattr(holders, "users_of_each", lambda disks, *_: {})
        return mapped

    return move
