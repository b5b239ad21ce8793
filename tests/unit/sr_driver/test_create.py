# SPDX-License-Identifier: LGPL-2.1-only
"""A clone on which volumes of its original are active is refused with what to do."""

import pytest

from kit.clock import Clock
from kit.driver_calls import DEVICE_CONFIG, SCSI_ID
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host.xapi.api import XapiFailure
from relvmoiscsi.host.xapi.lun_users import Pool
from relvmoiscsi.host.xapi.other_hosts import Use
from relvmoiscsi.sr_driver import create
from relvmoiscsi.sr_driver.iscsi.iscsi_config import parse_config
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.transport import Lun, Transport

NOBODY = Pool(pbds={}, srs={}, vdis={})


# --- volumes of the original on the clone

ORIGINAL = "5d0d2b3a-7777-4a4a-9b9b-0123456789ab"
MGT = "VG_XenStorage--{}-MGT".format(ORIGINAL.replace("-", "--"))
IN_USE = f"/dev/sdc is in use by device-mapper volume {MGT}."


class Asked:
    """xapi, which has a PBD of the original on each of two hosts."""

    def __init__(self, attached=(), is_mute=False):
        self.attached, self.is_mute = attached, is_mute

    def until(self, _deadline):
        return self

    def records(self, kind):
        if self.is_mute:
            raise XapiFailure("PBD.get_all_records", [], "no answer")
        pbds = {
            name: {"SR": "s", "host": name, "currently_attached": name in self.attached} for name in ("me", "other")
        }
        return pbds if kind == "PBD" else {"s": {"uuid": ORIGINAL, "current_operations": {}}}


def refusal(monkeypatch, xapi, use=None, reads=f"{ORIGINAL} the SR {ORIGINAL}", problem=IN_USE):
    """The text of a call whose clone cannot be opened for writing."""

    class InUse(Lun):
        def with_device(self, work, writable):
            raise Refused(problem).in_state("Nothing was written.")

    def held_on(path, _deadline):
        assert path == "/dev/sdc"
        if isinstance(reads, Exception):
            raise reads
        return reads

    use = use or Use(("sdc",), (MGT,))
    parts = (("read_pool", lambda _xapi: NOBODY), ("_held_on", held_on), ("use_of_lun", lambda _scsi_id: use))
    for name, value in parts:
        monkeypatch.setattr(create, name, value)
    deadline = Deadline(50, Clock())
    transport = Transport("relvmoiscsi", "lvmoiscsi", parse_config, lambda *_: InUse(SCSI_ID, deadline))
    call = Call("sr_create", DEVICE_CONFIG)._replace(host_ref="me")
    with pytest.raises(Refused) as caught:
        create.sr_create(call, parse_config(DEVICE_CONFIG), xapi, None, deadline, transport)
    return str(caught.value)


def test_a_clone_with_volumes_that_a_failed_plug_has_left_is_refused_with_the_way_out(monkeypatch):
    said = refusal(monkeypatch, Asked(attached=["other"]))

    assert said.startswith(IN_USE) and said.endswith("Nothing was written.")
    assert f"Run `vgchange -an VG_XenStorage-{ORIGINAL}` on this host, resignature the clone" in said


@pytest.mark.parametrize("xapi", [Asked(attached=["me"]), Asked(is_mute=True)], ids=["attached here", "xapi is mute"])
def test_what_may_be_the_original_in_use_is_never_to_be_deactivated(monkeypatch, xapi):
    said = refusal(monkeypatch, xapi)

    assert "may be the original in use" in said and "vgchange" not in said


@pytest.mark.parametrize(
    ("use", "reads"),
    [
        (Use(("sdc",), ()), ORIGINAL + " the SR"),
        (Use(("sdc",), (MGT,)), "- no SR that can be read"),
        (Use(("sdc",), (MGT,)), NotFound("sdc is gone.")),
    ],
    ids=["no volumes", "another content", "gone"],
)
def test_any_other_refusal_stands_as_it_was(monkeypatch, use, reads):
    assert refusal(monkeypatch, Asked(), use, reads) == IN_USE + " Nothing was written."
