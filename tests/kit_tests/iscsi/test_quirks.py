# SPDX-License-Identifier: LGPL-2.1-only
"""A quirk that is another target changes what is told; the target tells of each rule that an initiator breaks."""

import pytest
from plain import OPERATIONAL, Plain

from kit.iscsi.hostile import HostileTarget
from kit.iscsi.options import Chap, Options
from kit.iscsi.quirks import QUIRKS
from kit.iscsi.wire import Gone, Pdu


@pytest.mark.parametrize("name", sorted(name for name, item in QUIRKS.items() if not item.act))
def test_a_quirk_is_another_target(name):
    item = QUIRKS[name]

    assert bool(item.options) or item.luns is not None
    for option, value in item.options.items():
        assert getattr(Options(), option) != value, f"{option} is as it is without the quirk"
    if item.luns:
        assert HostileTarget(quirks=[name]).luns != HostileTarget().luns


def test_a_power_cut_forgets_what_was_not_flushed():
    with HostileTarget(ignore=["isid kept"]) as target:
        with Plain(target) as plain:
            plain.login()
            plain.known().write(0, b"1" * 512)
            plain.flush()
            plain.write(0, b"2" * 1024)

            target.power_cut()

            with pytest.raises((OSError, Gone)):
                plain.inquiry()
        assert target.lun(0).disk.peek(0, 1024) == b"1" * 512 + bytes(512)
        with Plain(target) as plain:
            plain.login()
            assert plain.command(bytes(6))[2][2:13:10] == b"\x06\x29"
            plain.logout()


@pytest.mark.parametrize("successor", ["the same ISID", "another ISID", "another portal", "a reset"])
def test_a_late_write_is_fenced_by_reinstatement_or_a_reset_alone(successor):
    elsewhere = successor in ("another portal", "a reset")
    with HostileTarget(quirks=["late_write_elsewhere"], ignore=["isid kept"]) as target:
        with Plain(target) as plain:
            plain.login()
            plain.known()
            with pytest.raises((OSError, Gone)):
                plain.write(0, b"late" * 128)
        isid = b"\x80\0\0\0\0\7" if successor == "another ISID" else None
        with Plain(target, int(elsewhere), **({"isid": isid} if isid else {})) as plain:
            plain.login()
            if successor == "a reset":
                plain.send(plain.numbered(Pdu(0x02, 0x85, lun=plain.lun, tag=0x99), immediate=True))
                assert plain.receive().byte2 == 0
            plain.known().write(0, b"next" * 128)
            plain.flush()
            plain.logout()
        target.wait_for("gone", count=2)
        target.late_writes_land()

        fenced = successor in ("the same ISID", "a reset")
        assert target.lun(0).disk.peek(0, 4) == (b"next" if fenced else b"late")


BREAKS = {
    "cmdsn": lambda plain: setattr(plain, "cmd_sn", plain.cmd_sn + 1),
    "window": lambda plain: setattr(plain, "cmd_sn", plain.cmd_sn + 100),
    "statsn": lambda plain: setattr(plain, "exp_stat_sn", plain.exp_stat_sn + 1),
    "length": lambda plain: plain.command(bytes(6), 512),
    "flags": lambda plain: plain.command(bytes(6), 0, way="in"),
    "identity": lambda plain: plain.write(0, bytes(512)),
    "immediate data": lambda plain: plain.known().write(0, bytes(1024), immediate=700),
    "logout": lambda plain: plain.send(plain.numbered(Pdu(0x06, 0x80, tag=0x5000))),
    "nop": lambda plain: plain.send(plain.numbered(Pdu(0x00, words=[0x55]), immediate=True)),
    "text": lambda plain: plain.send(plain.numbered(Pdu(0x04, tag=3, words=[0xFFFFFFFF], data=b"A=b\0"))),
    "segment": lambda plain: plain.send(plain.numbered(Pdu(0x01, 0xA0, tag=4, data=bytes(5000)))),
    "opcode": lambda plain: plain.send(plain.numbered(Pdu(0x3E, tag=4))),
    "session": lambda plain: plain.send(plain.numbered(Pdu(0x03, tag=4), immediate=True)),
}


@pytest.mark.parametrize("rule", sorted(BREAKS))
def test_a_broken_rule_is_told(rule):
    target = HostileTarget(keys={"FirstBurstLength": 512}, max_recv=4096)
    with pytest.raises(AssertionError) as told, target, Plain(target) as plain:
        plain.login()
        plain.lonely = True
        try:
            BREAKS[rule](plain)
            plain.command(bytes(6))
        except (OSError, Gone):
            pass  # it was broken badly enough

    assert rule in [violated for violated, _ in target.violations], told.value


LOGIN_BREAKS = {
    "isid": lambda plain: (setattr(plain, "isid", b"\0\2\x3d\0\0\1"), plain.login()),
    "keys": lambda plain: plain.login(InitiatorName="iqn.2026-01.test:again"),
    "key": lambda plain: plain.login(MaxBurstLength="none"),
    "irrelevant": lambda plain: plain.operational() if plain.stage(0, 1, dict(plain.naming(True), AuthMethod="None"))[0]
    else plain.until(1, 3, OPERATIONAL),
    "login": lambda plain: plain.stage(2, 3, plain.naming()),
    "reserved": lambda plain: plain.send(Pdu(0x43, 0x31, lun=plain.isid + bytes(2), tag=9)),
    "chap": lambda plain: plain.chap("user", "secret", challenge=b"short"),
}  # fmt: skip


@pytest.mark.parametrize("rule", sorted(LOGIN_BREAKS))
def test_a_broken_rule_of_the_login_is_told(rule):
    user = Chap("user", "secret") if rule == "chap" else None
    target = HostileTarget(chap=user, mutual=user)
    with pytest.raises(AssertionError), target, Plain(target) as plain:
        LOGIN_BREAKS[rule](plain)
        plain.sock.close()
        target.wait_for("gone")

    assert rule in [violated for violated, _ in target.violations]


def test_another_isid_after_a_loss_is_told_unless_it_is_another_call():
    target = HostileTarget()
    with pytest.raises(AssertionError, match="isid kept"), target:
        for isid in (b"\x80\0\0\0\0\1", b"\x80\0\0\0\0\2"):
            with Plain(target, isid=isid) as plain:
                plain.login()
                target.drop()
            target.wait_for("gone")
    with HostileTarget() as target:
        for count, isid in enumerate((b"\x80\0\0\0\0\1", b"\x80\0\0\0\0\2")):
            with Plain(target, isid=isid) as plain:
                plain.login()
                target.drop()
            target.wait_for("gone", count=count + 1)
            target.new_call()
