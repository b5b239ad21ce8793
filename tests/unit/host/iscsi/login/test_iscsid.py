# SPDX-License-Identifier: LGPL-2.1-only
"""The daemon is started where it does not listen; the name of this host."""

import os

import pytest

from kit.iscsi_world import (
    INITIATOR,
    IQN,
    PORTAL,
    put,
)
from relvmoiscsi.errors import CommandFailed, NotFound, Refused


def test_a_daemon_that_listens_is_left_alone(world, iscsi):
    iscsi.iscsiadm.ensure_daemon()

    assert world.calls == []


@pytest.mark.parametrize("systemd", [True, False])
def test_a_daemon_that_does_not_listen_is_started(world, iscsi, systemd):
    world.daemon(False)
    if not systemd:
        os.rmdir(os.path.join(world.root, "run/systemd/system"))
        world.task_of = lambda argv: ("start", "session list", lambda argv: world.daemon(True))

    iscsi.iscsiadm.ensure_daemon()

    expected = ("systemctl", "start", "iscsid.service") if systemd else ("service", "iscsid", "start")
    assert world.calls == [expected]


def test_a_daemon_that_cannot_be_started_is_an_error(world, iscsi):
    world.daemon(False)
    world.answers["start"] = CommandFailed(["systemctl"], 5, "Unit iscsid.service not found.")

    with pytest.raises(CommandFailed, match="not found") as caught:
        iscsi.login(PORTAL, IQN)
    assert caught.value.sm_key == "ISCSIDaemon"


def test_a_daemon_that_does_not_listen_after_its_start_is_an_error(world, iscsi, monkeypatch):
    monkeypatch.setattr("relvmoiscsi.host.iscsi.iscsiadm.LISTEN_SECONDS", 0.1)
    world.daemon(False)
    world.answers["start"] = lambda argv: (0, "", "")

    with pytest.raises(NotFound, match="does not listen after 0.1 seconds") as caught:
        iscsi.iscsiadm.ensure_daemon()
    assert caught.value.sm_key == "ISCSIDaemon"


def test_without_proc_no_daemon_is_seen(world, iscsi):
    os.unlink(os.path.join(world.root, "proc/net/unix"))

    assert iscsi.iscsiadm.daemon_listens() is False


def test_the_name_of_this_host_is_read(world, iscsi):
    assert iscsi.iscsiadm.initiator_name() == INITIATOR
    put(world.root, "etc/iscsi/initiatorname.iscsi", "#InitiatorName=x\nInitiatorName = iqn.y \nInitiatorAlias=h\n")
    assert iscsi.iscsiadm.initiator_name() == "iqn.y"
    put(world.root, "etc/iscsi/initiatorname.iscsi", "InitiatorName=\n")
    assert iscsi.iscsiadm.initiator_name() is None


def test_only_another_name_has_to_be_given_with_the_login(iscsi):
    assert iscsi.iscsiadm.check_initiator(None) is None
    assert iscsi.iscsiadm.check_initiator(INITIATOR) is None
    assert iscsi.iscsiadm.check_initiator("iqn.other") == "iqn.other"


@pytest.mark.parametrize("wanted, sm_key", [(None, "ConfigISCSIIQNMissing"), ("iqn.x", "ISCSIInitiator")])
def test_a_host_without_a_name_is_refused(world, iscsi, wanted, sm_key):
    os.unlink(os.path.join(world.root, "etc/iscsi/initiatorname.iscsi"))

    with pytest.raises(Refused, match="has no iSCSI initiator name") as caught:
        iscsi.iscsiadm.check_initiator(wanted)
    assert caught.value.sm_key == sm_key


def test_a_name_that_cannot_be_read_is_refused(world, iscsi):
    path = os.path.join(world.root, "etc/iscsi/initiatorname.iscsi")
    os.unlink(path)
    os.makedirs(path)

    with pytest.raises(Refused, match="cannot be read: Is a directory"):
        iscsi.iscsiadm.initiator_name()
