# SPDX-License-Identifier: LGPL-2.1-only
"""What to do about volumes that the storage manager has activated on a clone; and when nothing may be deactivated."""

import pytest

from relvmoiscsi.host.xapi.stale_volumes import is_attached, way_out

SR = "5d0d2b3a-7777-4a4a-9b9b-0123456789ab"
OTHER = "11111111-7777-4a4a-9b9b-0123456789ab"
HERE, ELSEWHERE = "OpaqueRef:here", "OpaqueRef:elsewhere"


def volume(name, sr_uuid=SR):
    return "VG_XenStorage--{}-{}".format(sr_uuid.replace("-", "--"), name)


def attachments(here=False, elsewhere=True, host_ref=HERE, **sr):
    pbds = {"p1": (HERE, here), "p2": (ELSEWHERE, elsewhere)}
    records = {ref: {"SR": "s", "host": host, "currently_attached": on} for ref, (host, on) in pbds.items()}
    return lambda uuid: is_attached(uuid, records, {"s": {"uuid": SR, **sr}, "t": {"uuid": OTHER}}, host_ref)


def test_the_volume_group_of_an_sr_that_is_not_attached_here_is_named_with_the_command():
    said = way_out(SR, [volume("MGT"), volume("VHD--1")], attachments())

    assert f"`vgchange -an VG_XenStorage-{SR}` on this host, resignature the clone, then plug the original." in said
    unknown = way_out(OTHER, [volume("MGT", OTHER)], lambda uuid: is_attached(uuid, {}, {}, HERE))
    assert f"vgchange -an VG_XenStorage-{OTHER}`" in unknown, "the pool does not know it: it is attached nowhere"


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (attachments(here=True), "has that SR attached: this LUN may be the original in use"),
        (attachments(current_operations={"task": "plug"}), "is unknown"),
        (attachments(host_ref=""), "is unknown"),
        (lambda _uuid: None, f"Run `xe pbd-list sr-uuid={SR}` when xapi answers"),
    ],
    ids=["attached", "a plug is under way", "which host is this", "xapi is mute"],
)
def test_nothing_is_to_be_deactivated_where_it_may_be_the_original_in_use(there, said):
    found = way_out(SR, [volume("MGT")], there)

    assert said in found and "vgchange" not in found


@pytest.mark.parametrize(
    "stacked",
    [[], ["crypt"], [volume("MGT", OTHER)], [volume("MGT"), "crypt"], [volume("MGT"), volume("MGT", OTHER)]],
    ids=["nothing", "no volume of an SR", "of another SR", "and something else", "and another SR"],
)
def test_of_other_things_on_the_lun_nothing_is_said(stacked):
    assert way_out(SR, stacked, attachments()) == ""
