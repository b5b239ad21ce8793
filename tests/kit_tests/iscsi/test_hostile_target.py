# SPDX-License-Identifier: LGPL-2.1-only
"""The scripted target, without a quirk: what a plain initiator finds."""

import struct

import pytest
from plain import ISID, Plain

from kit.iscsi.hostile import HostileTarget
from kit.iscsi.lun import Lun
from kit.iscsi.options import Chap
from kit.iscsi.wire import Gone, Pdu

USER, TARGET = Chap("user", "secret of user"), Chap("target", "secret of target")


def test_a_lun_is_found_read_written_and_flushed():
    with HostileTarget([Lun(0, 1 << 20), Lun(300, 1 << 20)]) as target, Plain(target) as plain:
        assert plain.login() == 0
        status, luns, _ = plain.command(struct.pack(">B5xIxx", 0xA0, 24), 24, way="in")
        assert (status, luns[:4], luns[8:]) == (0, b"\0\0\0\x10", bytes(8) + bytes.fromhex("412c000000000000"))
        plain.lun = target.lun(300).address
        plain.known()

        assert plain.write(8, b"a" * 1024) == (0, b"", b"")
        assert target.lun(300).unflushed
        assert plain.flush() == (0, b"", b"")

        assert plain.read(7, 3) == (0, bytes(512) + b"a" * 1024, b"")
        assert not target.lun(300).unflushed and target.lun(0).writes == 0
        assert plain.logout() == 0


def test_identity_and_size_are_those_of_the_lun():
    lun = Lun(1, 1 << 20, block_size=512, physical_block_size=4096, serial="S1", naa="6001405000000000000000000000000a")
    with HostileTarget([lun]) as target, Plain(target) as plain:
        plain.login()

        assert plain.inquiry()[1][8:32] == b"HOSTILE SCRIPTED        "
        assert plain.inquiry(0)[1][4:] == bytes([0, 0x80, 0x83, 0xB0])
        assert plain.inquiry(0x80)[1] == b"\0\x80\0\x02S1"
        assert bytes.fromhex(lun.scsi_id[1:]) in plain.inquiry(0x83)[1]
        assert struct.unpack_from(">QIBB", plain.capacity()[1]) == (2047, 512, 0, 3)
        assert plain.command(bytes([0x25]), 8, way="in")[1] == struct.pack(">II", 2047, 512)
        assert plain.inquiry(0x99)[2][2:13:10] == b"\x05\x24"
        assert plain.inquiry(lun=bytes([0, 9] + [0] * 6))[1][0] == 0x7F
        plain.logout()


@pytest.mark.parametrize("keys", [{}, {"MaxBurstLength": 2048, "ImmediateData": "No"}, {"FirstBurstLength": 512}])
def test_data_are_asked_for_as_was_agreed(keys):
    data = bytes(range(256)) * 40
    with HostileTarget(keys=keys, max_recv=1000) as target, Plain(target) as plain:
        plain.login()
        plain.known()
        first = {"ImmediateData": 0, "FirstBurstLength": 512}.get((list(keys) or [""])[-1], 1000)

        assert plain.write(0, data, immediate=first)[0] == 0

        assert target.lun(0).disk.peek(0, len(data)) == data
        assert plain.read(0, 20)[1] == data
        plain.logout()


def test_digests_are_on_from_the_first_pdu_of_the_session():
    with HostileTarget(header_digest=("CRC32C",), data_digest=("CRC32C",)) as target, Plain(target) as plain:
        plain.login()

        assert plain.digests == (True, True)
        plain.known()
        assert plain.write(0, b"x" * 512)[0] == 0
        assert plain.read(0, 2)[1] == b"x" * 512 + bytes(512)
        plain.logout()


@pytest.mark.parametrize("algorithm", ["5", "6", "7", "8"])
def test_chap_of_both_sides(algorithm):
    with HostileTarget(chap=USER, mutual=TARGET) as target, Plain(target) as plain:
        status, keys = plain.chap(*USER, algorithms=algorithm, challenge=b"0123456789abcdef")

        assert (status, keys["CHAP_N"]) == (0, "target")
        assert plain.operational() == 0
        plain.logout()


def test_a_wrong_secret_and_no_chap_at_all_are_refused():
    with HostileTarget(chap=USER) as target:
        with Plain(target) as plain:
            assert plain.chap("user", "another")[0] == 0x0201
        with Plain(target) as plain:
            assert plain.stage(0, 1, dict(plain.naming(), AuthMethod="None"))[0] == 0x0201
        assert target.count("login refused", 0x0201) == 2
        assert not target.count("session")


def test_a_discovery_lists_the_portals_and_targets():
    target = HostileTarget(addresses=("127.0.0.1", "127.0.0.1"), other_targets=("iqn.2026-01.test:b",))
    with target, Plain(target) as plain:
        plain.login(discovery=True)
        plain.send(plain.numbered(Pdu(0x04, tag=3, words=[0xFFFFFFFF], data=b"SendTargets=All\0")))

        first, second = target.portals
        assert plain.receive().data.split(b"\0")[:-1] == [
            item.encode()
            for name in (target.iqn, "iqn.2026-01.test:b")
            for item in (f"TargetName={name}", f"TargetAddress={first},1", f"TargetAddress={second},2")
        ]
        plain.logout()


def test_the_same_isid_reinstates_and_another_does_not():
    with HostileTarget() as target, Plain(target) as first, Plain(target) as second:
        first.login()
        with Plain(target, isid=b"\x80" + bytes(5)) as other:
            other.login()
            assert len(target.sessions) == 2

            second.login()

            assert target.count("reinstated", ISID) == 1
            with pytest.raises((OSError, Gone)):
                first.inquiry()
            assert other.inquiry()[0] == 0
            other.logout()
        second.logout()
