# SPDX-License-Identifier: LGPL-2.1-only
"""From clones on Fibre Channel to attached copies: the master's plugin lists, relvmohba resignatures."""

import pytest

from kit.lun_world import FABRIC
from relvmoiscsi.errors import Refused
from relvmoiscsi.pool import attach, luns, records
from relvmoiscsi.pool.attach import ALREADY, DONE, PARTIAL
from relvmoiscsi.pool.connection import connect


@pytest.fixture
def fabric(lab, world):
    lab.original("Fabric", target=FABRIC)
    lab.pool.api.host_plugins.functions["relvmoiscsi"] = world.plugin
    return lab


def attach_all(lab, *scsi_ids):
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        found = luns.find_on_master(calls, pool)
        chosen = attach.choose(found, scsi_ids, [], not scsi_ids)
        attach.verify_none_left(found, chosen)
        return attach.attach(calls, pool, chosen, attach.AttachRequest(date="2026-11-22", run="a run", jobs=2))


def test_a_clone_becomes_an_sr_of_type_lvmohba_on_every_host(fabric, world):
    clone = fabric.clone("Fabric")
    (done,) = attach_all(fabric, clone)

    assert (done.status, set(done.hosts.values())) == (DONE, {"plugged"})
    _, sr = fabric.sr(done.sr_uuid)
    assert (sr["type"], sr["shared"], sr["other_config"]["relvmoiscsi:scsi-id"]) == ("lvmohba", True, clone)
    pbds = [fabric.pool.db.record("PBD", pbd) for pbd in sr["PBDs"]]
    assert [pbd["device_config"] for pbd in pbds] == [{"SCSIid": clone}] * 3
    assert [pair.name_label for pair in done.vdis] == ["base copy", "before", "data", "root disk"]
    assert [result.status for result in attach_all(fabric, clone)] == [ALREADY]


def test_all_are_resignatured_before_the_first_is_attached(fabric, world):
    """An adapter sees whatever is mapped to it, without a login."""
    fabric.clone("Fabric")
    fabric.clone("Fabric")
    world.log.clear()
    assert [result.status for result in attach_all(fabric)] == [DONE, DONE]

    commands = [command for command, _, _ in world.log]
    assert max(index for index, command in enumerate(commands) if command == "sr_create") < commands.index("sr_attach")


def test_a_clone_that_is_not_named_is_refused(fabric):
    first, second = fabric.clone("Fabric"), fabric.clone("Fabric")

    with pytest.raises(Refused, match=second):
        attach_all(fabric, first)


def test_a_host_to_which_it_is_not_mapped_yet_is_told_and_finished_later(fabric, world):
    """As docs/fibre-channel.rst advises: to the master alone at first."""
    clone = fabric.clone("Fabric")
    others = fabric.pool.hosts[1:]
    world.unmapped.update((host, clone) for host in others)
    (done,) = attach_all(fabric, clone)
    assert done.status == PARTIAL and done.hosts["xs1"] == "plugged"
    assert all("No adapter sees a LUN" in done.hosts[name] for name in ("xs2", "xs3"))

    world.unmapped.clear()
    (again,) = attach_all(fabric, clone)
    assert again.status == DONE and set(again.hosts.values()) == {"plugged"}
