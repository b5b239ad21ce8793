# SPDX-License-Identifier: LGPL-2.1-only
"""Which SR of the pool a person means: by UUID, by name, or by the SCSIid of the LUN of a copy."""

import pytest

from relvmoiscsi.errors import NotFound, UsageError
from relvmoiscsi.pool import records
from relvmoiscsi.pool.connection import connect


@pytest.fixture
def pool(lab):
    """Returns the records as they are now."""

    def read():
        with connect(lab.where()) as calls:
            return records.read(calls)

    return read


def test_an_sr_is_named_by_uuid_or_by_a_name_of_its_own(lab):
    with connect(lab.where()) as calls:
        pool = records.read(calls)
    ref = lab.originals["Production"][1]
    uuid = pool.srs[ref]["uuid"]
    assert records.find_sr(pool, "Production") == ref == records.find_sr(pool, uuid.upper())
    with pytest.raises(NotFound, match="There is no SR 'Prod'. Did you mean 'Production'\\? `xe sr-list "):
        records.find_sr(pool, "Prod")
    pool.srs[lab.originals["Testing"][1]]["name_label"] = "Production"
    with pytest.raises(UsageError, match="2 SRs have the name 'Production'"):
        records.find_sr(pool, "Production")
    gone = pool.srs[ref]["name_label"] = "5d0d2b3a-7777-4a4a-9b9b-0123456789ab"
    with pytest.raises(UsageError, match=f"no SR with the UUID {gone}. To use the SR with this name, give {uuid}"):
        records.find_sr(pool, gone)
    assert records.has_sr(pool, gone) and records.has_sr(pool, uuid) and not records.has_sr(pool, "Prod")


@pytest.mark.parametrize("form", ["{}", "scsi-{}", "naa.{digits}", " {} "])
def test_a_lun_is_named_as_attach_takes_it_and_one_that_is_not_attached_is_no_sr(lab, pool, form):
    """The array prints other forms than the pool has."""
    scsi_id = lab.clone("Production")
    text = form.format(scsi_id, digits=scsi_id[1:])

    with pytest.raises(NotFound) as caught:
        records.find_sr(pool(), text)

    assert caught.value.message == f"The LUN with the SCSIid {scsi_id} is not attached."
    assert caught.value.commands == [f"relvmoiscsi pool attach {scsi_id}"]
    assert f"`{caught.value.commands[0]}` attaches it" in caught.value.advice
    (attached,) = lab.attach(scsi_id)
    assert pool().srs[records.find_sr(pool(), text)]["uuid"] == attached.sr_uuid


def test_the_lun_of_an_sr_that_is_no_copy_is_not_said_to_be_detached(lab, pool):
    scsi_id, ref = lab.originals["Production"]
    uuid = pool().srs[ref]["uuid"]
    words = (
        f"The LUN with the SCSIid {scsi_id} is that of the SR 'Production', which is no copy. .* give its UUID, {uuid}."
    )
    with pytest.raises(NotFound, match=words):
        records.find_sr(pool(), scsi_id)


@pytest.mark.parametrize("text", ["6001405a-7777-4a4a-9b9b-0123456789ab", "Data", "5", "S3 backups"])
def test_what_may_be_another_name_is_no_scsi_id(pool, text):
    with pytest.raises(NotFound, match=f"There is no SR '{text}'"):
        records.find_sr(pool(), text)


@pytest.mark.parametrize("target", ["10.0.0.5", "san-1.example", "10.0.0.5,[fd00::1],fe80::1%eth0"])
def test_a_list_of_addresses_is_bare_in_a_sentence(target):
    assert records.ProbePortal(target, "iqn.a:b").named == f"{target} 'iqn.a:b'"


@pytest.mark.parametrize("target", ["10.0.0.5 is fine. next: rm x", "x\n", "\u05d0", ",", "a" * 100000])
def test_another_text_of_a_pbd_is_in_quotes_and_cut(target):
    place = records.ProbePortal(target).place
    assert place[0] == place[-1] == "'" and place.isprintable() and len(place) < 300
