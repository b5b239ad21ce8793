# SPDX-License-Identifier: LGPL-2.1-only
"""The roles, and the example of a fleet."""

import json

import pytest

from conftest import COLLECTION, PATH

FLEET = COLLECTION / "examples/fleet/dr_test.yml"


def everything(day):
    return day.lab.summary(), day.lab.disks_of(day.web), len(day.lab.pool.db.records("VM"))


@pytest.fixture
def alone(day):
    """No clone but that of Production is behind the target."""
    day.world.luns = [lun for lun in day.world.luns if lun.scsi_id != day.other]
    return day


def test_the_fleet_tests_its_recovery_and_leaves_nothing(alone):
    before = everything(alone)
    played = alone.play(FLEET)
    assert played.status == 0, played.out
    assert "Async.VM.start" in alone.lab.pool.api.calls
    assert everything(alone) == before


def test_checks_that_fail_leave_nothing_either(alone, tmp_path):
    before = everything(alone)
    checks = tmp_path / "checks.yml"
    checks.write_text(json.dumps([{"ansible.builtin.fail": {"msg": "No good."}}]))
    played = alone.play(FLEET, "-e", f"dr_test_checks={checks}")
    assert played.status != 0 and "No good." in played.out
    assert everything(alone) == before


def test_a_test_environment_is_made_once(alone, tmp_path):
    options = {"hostname": "{{ pool_url }}", "password": "{{ pool_password }}", "ca_path": "{{ pool_ca }}"}
    role = {"role": "relvmoiscsi.pool.test_environment", "vars": {"test_environment_of": "Production"}}
    play = {"hosts": "pools", "connection": "local", "gather_facts": False, "roles": [role]}
    path = tmp_path / "site.json"
    path.write_text(json.dumps([{**play, "module_defaults": {"group/relvmoiscsi.pool.pool": options}}]))
    first, second = alone.play(path), alone.play(path)
    assert (first.status, first.changed) == (0, 2), first.out
    assert (second.status, second.changed) == (0, 0), second.out


@pytest.fixture
def dom0(tmp_path):
    """A directory with programs in the place of dom0's, which write down how they were called."""
    programs = tmp_path / "programs"
    programs.mkdir()
    log, there = tmp_path / "log", tmp_path / "installed"
    texts = {
        "rpm": f"case $1 in -qa) cat {there} ;; *) echo relvmoiscsi-0.1.0-1.noarch >{there} ;; esac",
        "scp": ":",
        "xe-toolstack-restart": ":",
        "relvmoiscsi": ":",
    }
    for name, text in texts.items():
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@" >>{log}\n{text}\nexit 0\n')
        (programs / name).chmod(0o755)
    there.write_text("")
    return programs, log


def test_the_package_is_installed_once(stage, dom0, tmp_path):
    programs, log = dom0
    package = "/somewhere/relvmoiscsi-0.1.0-1.noarch.rpm"
    role = {"role": "relvmoiscsi.pool.install", "vars": {"install_packages": [package]}}
    path = tmp_path / "install.json"
    path.write_text(json.dumps([{"hosts": "pools", "connection": "local", "gather_facts": False, "roles": [role]}]))
    search = f"{programs}:{PATH}"
    first = stage.play(path, PATH=search)
    assert first.status == 0, first.out
    assert log.read_text().splitlines() == [
        "rpm -qa relvmoiscsi*",
        f"scp -q {package} root@site1:/tmp/",
        "rpm -U /tmp/relvmoiscsi-0.1.0-1.noarch.rpm",
        "xe-toolstack-restart",
        "relvmoiscsi doctor",
    ]
    log.write_text("")
    second = stage.play(path, PATH=search)
    assert (second.status, second.changed) == (0, 0), second.out
    assert log.read_text().splitlines() == ["rpm -qa relvmoiscsi*", "relvmoiscsi doctor"]
