# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi pool` on real LUNs: the driver, the initiator and the target are real, xapi is simulated."""

from contextlib import ExitStack

from kit.lab.xapi import introduce
from kit.pool import client
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.pool import attach, luns, records
from relvmoiscsi.pool.connection import Where, connect
from relvmoiscsi.pool.records import Portal
from relvmoiscsi.pool.vms import forget


def test_clones_of_two_srs_in_use_are_found_attached_mapped_and_discarded(lab, make_pool, standin_sees):
    pool = make_pool(hosts=("xs1",))
    images = {"first": lab.image("one"), "second": lab.image("chain")}
    originals = {name: lab.lun(image) for name, image in images.items()}
    sources = {name: lab.target(lun) for name, lun in originals.items()}
    standin_sees(*sources.values())
    srs = {name: introduce(pool, sources[name], originals[name], images[name].sr.uuid, name) for name in images}
    old = {name: {vdi["uuid"] for vdi in pool.db.records("VDI", SR=sr).values()} for name, sr in srs.items()}
    copies = {name: lab.lun(image.clone(name + "-clone.img")) for name, image in images.items()}
    array = lab.target(*copies.values())
    standin_sees(*sources.values(), array)
    digests = {name: lab.digest(lun) for name, lun in originals.items()}
    where = Where(pool.url, pool.api.user, pool.api.password)

    with connect(where) as calls:
        found = {lun.scsi_id: lun for lun in luns.find(calls, records.read(calls), [Portal("127.0.0.1")])}
        assert {name: found[lun.scsi_id].kind for name, lun in originals.items()} == dict.fromkeys(images, "original")
        assert {found[lun.scsi_id].name: found[lun.scsi_id].kind for lun in copies.values()} == dict.fromkeys(
            images, "clone"
        )

        seen = records.read(calls)
        chosen = attach.choose(list(found.values()), [], [], everything=True)
        done = attach.attach(calls, seen, chosen, attach.Wanted(date="today", run="vm", jobs=2))
        assert [result.error for result in done] == [None, None]
        by_name = {result.name: result for result in done}
        assert set(by_name) == {"first today", "second today"}
        for name in images:
            result = by_name[name + " today"]
            assert (result.status, result.hosts) == ("attached", {"xs1": "plugged"})
            assert {pair.new for pair in result.vdis} == {derived_uuid(result.sr_uuid, uuid) for uuid in old[name]}
            assert {pair.old for pair in result.vdis} == old[name]

        again = attach.attach(
            calls, records.read(calls), luns.find(calls, records.read(calls), [Portal("127.0.0.1", array.iqn)]),
            attach.Wanted(date="today", run="vm"),
        )  # fmt: skip
        assert [result.status for result in again] == ["already attached"] * 2

        seen = records.read(calls)
        for ref, _ in list(seen.copies()):
            forget.verify_unused(seen, forget.read_uses(calls, [ref]))
            forget.discard(calls, seen, ref)
        assert {sr["name_label"] for sr in pool.db.records("SR").values()} == {"first", "second"}

    with ExitStack() as stack:
        session = stack.enter_context(client.connected(pool))
        for pbd in pool.db.refs("PBD"):
            session.xenapi.PBD.unplug(pbd)
    assert {name: lab.digest(lun) for name, lun in originals.items()} == digests
