# SPDX-License-Identifier: LGPL-2.1-only
"""The target of the tests tells of each rule that an initiator breaks.

The initiator is the product's own, in whose PDUs a test changes a field on their way to the target.
"""

import re

import pytest

from kit.iscsi import idle_time
from kit.iscsi.hostile import HostileTarget
from kit.iscsi.options import Chap
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.device import Chunk
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.iscsi import Credentials, Initiator, Portal, discover, open_lun
from relvmoiscsi.iscsi.pdu import Wire

pytestmark = pytest.mark.usefixtures("clock")

ME = Initiator("iqn.2026-01.test:me", "0a0b0c0d-0000-4000-8000-000000000001")
USER = Chap("user", "secret of user")


@pytest.fixture
def clock(monkeypatch):
    return idle_time.patched_in(monkeypatch)


LOGIN, COMMAND, TEXT, LOGOUT = 0x43, 0x01, 0x04, 0x46


def where(target, me):
    credentials = Credentials(*USER, "target", "its secret") if target.options.chap else Credentials()
    return [Portal("127.0.0.1", target.port)], target.iqn, me, 0, True, Deadline(50), credentials


def refuse(*_):
    raise Refused("No session comes any more.")


def run(target, me=ME):
    """A write over a session, and a discovery."""
    portals, *_, credentials = where(target, me)
    with open_lun(*where(target, me)) as device:
        device.write([Chunk(0, bytes(2048))])
        device.flush()
    discover(portals, me, credentials, Deadline(50))


def word(number, by):
    """A change of one of the seven words, from byte 20 on."""
    name = f"word{20 + 4 * number}"
    return lambda header, data: (header._replace(**{name: (getattr(header, name) + by) & 0xFFFFFFFF}), data)


def field(**values):
    return lambda header, data: (header._replace(**values), data)


def text(old, new):
    return lambda header, data: (header, bytes(data).replace(old, new))


@pytest.mark.parametrize(
    "rule, opcode, change",
    [
        ("cmdsn", COMMAND, word(1, 1)),
        ("window", COMMAND, word(1, 100)),
        ("statsn", COMMAND, word(2, 1)),
        ("statsn", LOGIN, word(2, 7)),
        ("length", COMMAND, word(0, 512)),
        ("flags", COMMAND, field(flags=0x90)),
        ("immediate data", COMMAND, lambda header, data: (header, bytes(data) + bytes(600 * bool(data)))),
        ("data-out", 0x05, word(5, 4)),
        ("data-out", 0x05, word(4, 1)),
        ("logout", LOGOUT, field(flags=0x82)),
        ("logout", LOGOUT, field(opcode=0x06)),
        ("text", TEXT, text(b"SendTargets=All", b"A=b")),
        ("segment", COMMAND, lambda header, data: (header, bytes(5000))),
        ("opcode", COMMAND, field(opcode=0x3E)),
        ("session", COMMAND, field(opcode=LOGIN)),
        ("tag", COMMAND, field(task_tag=0xFFFFFFFF)),
        ("isid", LOGIN, field(lun=bytes.fromhex("00023d0000010000"))),
        ("keys", LOGIN, text(b"HeaderDigest=None,CRC32C\0", b"HeaderDigest=None\0HeaderDigest=None\0")),
        ("key", LOGIN, text(b"MaxBurstLength=", b"MaxBurstLength=x")),
        ("irrelevant", LOGIN, text(b"ErrorRecoveryLevel=0\0", b"ErrorRecoveryLevel=0\0InitialR2T=Yes\0")),
        ("login", LOGIN, field(task_tag=0xFFFFFFFF)),
        ("reserved", LOGIN, field(flags=0xB1)),
        ("chap", LOGIN, lambda header, data: (header, re.sub(b"CHAP_C=0x[0-9a-f]+", b"CHAP_C=0x1122", bytes(data)))),
    ],
)  # fmt: skip
def test_a_broken_rule_is_told(monkeypatch, rule, opcode, change):
    send, user = Wire.send, USER if rule == "chap" else None

    def changed(wire, header, data=b""):
        send(wire, *(change(header, data) if header.opcode == opcode else (header, data)))

    def data_changed(wire, first, data, _most_bytes):
        changed(wire, first, data)

    monkeypatch.setattr(Wire, "send", changed)
    monkeypatch.setattr(Wire, "send_data", data_changed)
    with pytest.raises(AssertionError), HostileTarget(
        keys={"FirstBurstLength": 512}, max_recv=4096, chap=user, mutual=user
    ) as target:
        try:
            run(target)
        except RelvmoiscsiError:
            pass  # it was broken badly enough

    assert rule in [violated for violated, _ in target.violations], target.violations


def test_a_write_on_a_session_that_has_not_looked_at_the_lun_is_told():
    def not_asked(_link):
        device._has_looked = True
        device.fence.verify([], device.fence.clock())

    target = HostileTarget(quirks=["resets_after_write"])
    with pytest.raises(AssertionError, match="identity: command 0x2a"), target, open_lun(*where(target, ME)) as device:
        device._look, device._look_at_fence = lambda _: setattr(device, "_is_known", True), not_asked
        device.write([Chunk(0, bytes(512))])


@pytest.mark.parametrize("is_told", [False, True])
def test_another_isid_after_a_loss_is_told_unless_it_is_another_call_and_fences_no_late_write(is_told):
    with HostileTarget(quirks=["late_write"]) as target:
        with pytest.raises(RelvmoiscsiError), open_lun(*where(target, ME)) as device:
            device._sessions.log_in_again = refuse
            device.write([Chunk(0, b"late" * 128)])
        if is_told:
            target.new_call()
        target.wait_for("gone", "closed by the target with RST")
        portals, iqn, *_ = where(target, ME)
        with open_lun(portals, iqn, ME, 0, False, Deadline(50)):  # of a reader
            target.late_writes_land()

        broken, target.violations = [rule for rule, _ in target.violations], []
        assert broken == ([] if is_told else ["isid kept"])
        assert target.lun(0).disk.peek(0, 4) == b"late"
