# SPDX-License-Identifier: LGPL-2.1-only
"""What targets do, and could: each quirk of the scripted target, over a socket, with what comes of it.

The target watches the initiator at the same time, and fails the test for each rule of RFC 7143 that it breaks.
"""

import random
import re

import pytest

from kit.examples import SEED, WHOLE
from kit.iscsi import scsi
from kit.iscsi.hostile import HostileTarget
from kit.iscsi.lun import Lun
from kit.iscsi.proxy import Cut, CuttingProxy
from kit.iscsi.quirks import FAMILIES, QUIRKS, USER, quirk
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.iscsi import Credentials, Initiator, LunInfo, Portal, Target, discover, link, list_luns, open_lun

pytestmark = pytest.mark.usefixtures("clock")

ME = Initiator("iqn.2026-01.test:me", "0a0b0c0d-0000-4000-8000-000000000001")
DATA = bytes(range(256)) * 16

#: families whose targets are worked with to the end
WORKED_WITH = ("redirects", "brief statuses", "logins", "chaps", "flow", "unready", "tolerated", "luns", "sessions")
#: those over which a session is lost or given up, and another one ends the work
OVERCOME = ("losses", "violations", "silences")
#: of these families, the ones that end otherwise
EXCEPT = {"no_luns", "thousands_of_luns"}


def portals_of(target):
    return [Portal(*_split(text)) for text in target.portals]


def _split(text):
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def credentials_of(target):
    options = target.options
    return Credentials(*(options.chap or ("", "")), *(options.mutual or ("", "")))


def work(target, seconds=50.0, portals=None, credentials=None):
    """Read, write, flush, read again through everything."""
    lun = target.luns[0]
    name = lun.scsi_id if lun.naa else LunInfo(lun.address).number
    where = portals or portals_of(target)[:1]
    credentials = credentials_of(target) if credentials is None else credentials
    with open_lun(where, target.iqn, ME, name, True, Deadline(seconds), credentials) as device:
        device.read([Range(0, 4096)])
        device.write([Chunk(0, DATA), Chunk(65536, DATA * 3)])
        device.flush()
        device.write([Chunk(8192, DATA)])
        device.flush()
        assert device.read([Range(0, 4096), Range(65536, 12288), Range(8192, 4096)]) == [DATA, DATA * 3, DATA]
    disk = target.luns[0].disk
    assert (disk.peek(0, 4096), disk.peek(65536, 12288), disk.peek(8192, 4096)) == (DATA, DATA * 3, DATA)
    assert not target.luns[0].unflushed or scsi.SYNCHRONIZE_CACHE_10 in target.options.refuses


def opened(target):
    return open_lun(portals_of(target), target.iqn, ME, 0, False, Deadline(50))


def assert_it_fired(target, name):
    """A quirk that does not show would prove nothing."""
    assert target.count("quirk", name) or not QUIRKS[name].act


def names(*families):
    return [name for family in families for name in FAMILIES[family] if name not in EXCEPT]


@pytest.mark.parametrize("name", names(*WORKED_WITH))
def test_a_target_like_this_is_worked_with(name):
    ignore = ["nop"] if name == "closed_window" else []  # its NOP-In asks for an answer, which the kit does not await
    with HostileTarget(quirks=[name], ignore=ignore) as target:
        work(target)

        assert target.count("session") in (1, 2)
        assert_it_fired(target, name)


@pytest.mark.parametrize("name", names(*OVERCOME[:2]))
def test_what_is_lost_or_violated_is_done_over_another_session(name):
    with HostileTarget(quirks=[name]) as target:
        work(target)

        assert target.count("session") == 2
        assert_it_fired(target, name)


@pytest.mark.states("name", few=2)  # each takes seconds
@pytest.mark.parametrize("name", names("silences"))
def test_a_silence_is_ended_by_another_session(name):
    test_what_is_lost_or_violated_is_done_over_another_session(name)


REFUSED = {
    "silent_at_once": ("ISCSITarget", "has said nothing"),
    "redirect_in_circles": ("ISCSILogin", "redirected the login 7 times"),
    "redirect_to_nonsense": ("ISCSILogin", "no address of a target"),
    "redirect_to_port_0": ("ISCSILogin", "no address of a target"),
    "redirect_to_closed": ("ISCSITarget", "Nothing listens"),
    "status_0200": ("ISCSILogin", "log of the target"),
    "status_0201": ("ISCSILogin", "Check the CHAP user and secret"),
    "status_0202": ("ISCSILogin", "Allow the initiator name"),
    "status_0203": ("ISCSIDiscovery", "Check the IQN"),
    "status_0204": ("ISCSIDiscovery", "was removed"),
    "status_0205": ("ISCSILogin", "version"),
    "status_0206": ("ISCSILogin", "Allow one more session.*iscsiadm"),
    "status_0209": ("ISCSILogin", "type of session"),
    "status_0300": ("ISCSILogin", "error of its own"),
    "status_0301": ("ISCSILogin", "failed over"),
    "status_0302": ("ISCSILogin", "End sessions"),
    "status_0400": ("ISCSILogin", "RFC 7143 does not know"),
    "closes_in_login": ("ISCSILogin", "middle of the login"),
    "silent_in_login": ("ISCSITarget", "has said nothing"),
    "silent_in_second_stage": ("ISCSITarget", "has said nothing"),
    "never_goes_on": ("ISCSITarget", "within 20 requests"),
    "endless_text": ("ISCSITarget", "bytes of text"),
    "burst_of_0": ("ISCSITarget", "MaxBurstLength='0'"),
    "alua_standby": ("ISCSIDevice", "No portal of the target has a path"),
    "alua_unavailable": ("ISCSIDevice", "No portal of the target has a path"),
    "attention_for_ever": ("ISCSIDevice", "6/29/00"),
    "reserved": ("SRInUse", "reserved by another host"),
    "data_protect": ("SRInUse", "read-only"),
    "lun_gone": ("ISCSIDevice", "5/25/00"),
    "medium_error_read": ("EIO", "read of 4096 bytes at byte 0 failed: sense 3/11/00"),
    "hardware_error": ("ISCSIDevice", "4/44/00"),
    "no_medium": ("ISCSIDevice", "2/3a/00"),
    "check_without_sense": ("ISCSIDevice", "4/00/00"),
    "unknown_status": ("ISCSIDevice", "status 3e"),
    "good_with_residual": ("EIO", "moved 3584 of 4096 bytes"),
    "short_capacity": ("ISCSIDevice", "does not tell its size"),
    **{name: ("ISCSILogin", "could not prove itself") for name in FAMILIES["cheats"] if name != "cheats_reflected"},
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_target_like_this_is_refused_in_words_and_nothing_is_written(name):
    sm_key, words = REFUSED[name]
    with HostileTarget(quirks=[name]) as target:
        with pytest.raises(RelvmoiscsiError) as caught:
            work(target)

        assert caught.value.sm_key == sm_key
        assert re.search(words, str(caught.value)), str(caught.value)
        assert "secret of user" not in str(caught.value) and "secret of target" not in str(caught.value)
        assert not target.written()
        assert_it_fired(target, name)


AFTER_A_WRITE = {
    "reserved_for_writes": ("SRInUse", "reserved"),
    "write_protected": ("SRInUse", "read-only"),
    "lun_unmapped": ("ISCSIDevice", "any more"),
    "medium_error_write": ("EIO", "write of 4096 bytes at byte 0 failed: sense 3/0c/00"),
    "medium_error_flush": ("EIO", "flush failed: sense 3/0c/00"),
    "out_of_space": ("EIO", "7/27/07"),
    "residual_of_write": ("EIO", "moved 3584 of 4096 bytes"),
    "other_lun": ("ISCSIDevice", "mapped another LUN in its place"),
    "other_size": ("ISCSIDevice", "has 2097152 bytes"),
    "smaller": ("ISCSIDevice", "has 524288 bytes"),
    "unmapped_after_loss": ("ISCSIDevice", "any more"),
    "other_lun_with_attention": ("ISCSIDevice", "mapped another LUN in its place"),
}


@pytest.mark.parametrize("name", sorted(AFTER_A_WRITE))
def test_what_goes_wrong_with_a_write_is_said(name):
    sm_key, words = AFTER_A_WRITE[name]
    with HostileTarget(quirks=[name]) as target:
        lun = target.luns[0]
        with pytest.raises(RelvmoiscsiError) as caught:
            work(target)

        assert caught.value.sm_key == sm_key
        assert re.search(words, str(caught.value)), str(caught.value)
        if target.luns and target.luns[0] is not lun:
            assert not target.luns[0].writes
        assert_it_fired(target, name)


@pytest.mark.parametrize("name", sorted(FAMILIES["no chap"]))
def test_a_target_that_wants_chap_of_an_initiator_without_says_so(name):
    with HostileTarget(quirks=[name]) as target:
        with pytest.raises(RelvmoiscsiError, match="CHAP") as caught:
            work(target, credentials=Credentials())

        assert caught.value.sm_key == "ISCSILogin"


def test_every_quirk_is_tried_or_left_out_on_purpose():
    tried = {*names(*WORKED_WITH, *OVERCOME), *REFUSED, *AFTER_A_WRITE, *FAMILIES["no chap"], *FAMILIES["discoveries"]}
    left_out = EXCEPT | {
        "speaks_http",  # once: the second attempt is answered
        "closes_at_once",  # the same
        "resets_at_once",
        "speaks_little",
        "redirect_nowhere",
        "cheats_reflected",  # it hangs up to ask anew; the next connection has another challenge
        "busy_for_ever",
        "burst_beyond_offer",  # the offer holds
        "level_2",
        "status_0207",
        "status_0208",
        "status_020a",
        "status_020b",
    }

    assert set(QUIRKS) - tried - left_out == set()


def test_a_reflected_challenge_proves_nothing():
    with HostileTarget(quirks=["cheats_reflected"]) as target:
        with pytest.raises(RelvmoiscsiError):
            work(target)
        assert not target.count("session")


ONCE = ("burst_beyond_offer", "level_2", "speaks_http", "redirect_nowhere", "closes_at_once", "resets_at_once")


@pytest.mark.parametrize("name", ONCE)
def test_what_does_not_matter_or_comes_once_is_passed_over(name):
    with HostileTarget(quirks=[name]) as target:
        work(target)


def test_a_target_that_is_busy_for_ever_is_waited_for_until_the_deadline():
    with HostileTarget(quirks=["busy_for_ever"]) as target:
        with pytest.raises(RelvmoiscsiError, match="The 5 seconds of this call were over") as caught:
            work(target, seconds=5)

        assert caught.value.sm_key == "SRUnavailable"


def test_a_standby_portal_is_left_for_one_that_the_target_offers():
    with HostileTarget(quirks=["alua_standby"], addresses=("127.0.0.1", "127.0.0.1")) as target:
        fires = target.fire
        target.fire = lambda connection, *rest: connection.portal_number == 0 and fires(connection, *rest)

        work(target)

        assert [event.detail for event in target.events if event.name == "connected"] == [0, 0, 1]


def test_a_portal_that_is_out_of_reach_is_not_taken_for_the_standby_one():
    with HostileTarget(quirks=["alua_standby"], addresses=("127.0.0.1", "127.0.0.1")) as target:
        fires = target.fire
        target.fire = lambda connection, *rest: connection.portal_number == 0 and fires(connection, *rest)
        first, second = portals_of(target)

        work(target, portals=[Portal("127.0.0.1", 1), first, second])


def test_a_portal_that_is_silent_leaves_time_for_the_next_one(monkeypatch):
    monkeypatch.setattr(link, "SILENCE_SECONDS", 60)
    with HostileTarget(quirks=["silent_at_once"], addresses=("127.0.0.1", "127.0.0.1")) as target:
        fires = target.fire
        target.fire = lambda connection, *rest: connection.portal_number == 0 and fires(connection, *rest)

        work(target, seconds=3, portals=portals_of(target))


def test_of_portals_that_all_fail_a_refusal_is_told_before_a_silence(monkeypatch):
    monkeypatch.setattr(link, "SILENCE_SECONDS", 60)
    with HostileTarget(quirks=["silent_at_once"]) as silent, HostileTarget(quirks=["status_0202"]) as strict:
        with pytest.raises(RelvmoiscsiError, match="does not allow this initiator name"):
            work(strict, seconds=3, portals=[*portals_of(silent), *portals_of(strict)])
        with pytest.raises(RelvmoiscsiError, match="did not take the login within") as caught:
            work(silent, seconds=3, portals=[*portals_of(silent), Portal("127.0.0.1", 1)])

        assert caught.value.sm_key == "ISCSITarget"


def test_the_second_portal_is_taken_where_nothing_listens_at_the_first():
    with HostileTarget() as target:
        work(target, portals=[Portal("127.0.0.1", 1), *portals_of(target)])


# --- fencing


def isids(target):
    return [event.detail for event in target.events if event.name == "session"]


def test_sessions_that_write_have_the_isid_of_the_lun_and_readers_have_random_ones():
    with HostileTarget([Lun(0), Lun(1)]) as target:
        for lun in target.luns:
            with open_lun(portals_of(target), target.iqn, ME, lun.scsi_id, True, Deadline(50)):
                pass
        with open_lun(portals_of(target), target.iqn, ME, target.luns[0].scsi_id, True, Deadline(50)):
            target.new_call()
            list_luns(portals_of(target), target.iqn, ME, Deadline(50))
            with open_lun(portals_of(target), target.iqn, ME, target.luns[0].scsi_id, False, Deadline(50)):
                pass
        other = ME._replace(host_uuid="0a0b0c0d-0000-4000-8000-000000000002")
        with open_lun(portals_of(target), target.iqn, other, target.luns[0].scsi_id, True, Deadline(50)):
            pass

        first, second, again, listing, reading, elsewhere = isids(target)
        assert first == again
        assert len({first, second, listing, reading, elsewhere}) == 5
        assert {isid[0] for isid in isids(target)} == {0x80}
        assert not target.count("reinstated")


def test_the_next_call_ends_the_session_of_a_killed_one_with_its_late_writes():
    with HostileTarget(quirks=[quirk("late_write")]) as target:
        scsi_id = target.luns[0].scsi_id
        killed = open_lun(portals_of(target), target.iqn, ME, scsi_id, True, Deadline(50))
        device = killed.__enter__()
        device._sessions.log_in_again = lambda attempt: (_ for _ in ()).throw(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            device.write([Chunk(0, b"L" * 512)])
        target.new_call()

        with open_lun(portals_of(target), target.iqn, ME, scsi_id, True, Deadline(50)) as device:
            device.write([Chunk(0, b"N" * 512)])
            target.late_writes_land()
            assert device.read([Range(0, 512)]) == [b"N" * 512]

        assert target.count("reinstated") == 1


def test_a_late_write_in_another_portal_group_is_ended_by_a_reset_of_the_lun():
    with HostileTarget(quirks=["late_write_elsewhere"]) as target:
        first, second = portals_of(target)
        scsi_id = target.luns[0].scsi_id
        with open_lun([first, second], target.iqn, ME, scsi_id, True, Deadline(50)) as device:
            sessions = device._sessions
            sessions.portals = (second, first)
            device.write([Chunk(0, b"N" * 512)])
            target.late_writes_land()
            assert device.read([Range(0, 512)]) == [b"N" * 512]

        assert target.count("reinstated") == 0
        assert target.count("task management", 5) == 2  # one for each session


# --- discovery and lists


@pytest.mark.parametrize("name", ["discovery_of_900", "discovery_of_900_by_c"])
def test_a_discovery_of_900_targets(name):
    with HostileTarget(quirks=[name]) as target:
        found = discover(portals_of(target), ME, Credentials(), Deadline(50))

        assert len(found) == 901
        assert found[0] == Target(target.iqn, tuple(portals_of(target)))


def test_a_discovery_in_bytes_is_the_same():
    with HostileTarget(quirks=["discovery_in_bytes"]) as target:
        assert [one.iqn for one in discover(portals_of(target), ME, Credentials(), Deadline(50))] == [target.iqn]


@pytest.mark.parametrize("name", ["discovery_silent", "discovery_closes"])
def test_a_discovery_without_an_answer_is_an_error(name):
    with HostileTarget(quirks=[name]) as target, pytest.raises(RelvmoiscsiError) as caught:
        discover(portals_of(target), ME, Credentials(), Deadline(50))

    assert caught.value.sm_key == "ISCSITarget"


@pytest.mark.parametrize(
    "options, logins",
    [
        ({"discovery_chap": False}, 1),
        ({"discovery_chap": True}, 2),
        ({"discovery_chap": True, "chap_no_offer": "Reject"}, 2),
        ({"discovery_chap": True, "chap_no_offer": "close"}, 2),
    ],
)
def test_a_discovery_goes_without_chap_first_and_with_it_after_a_refusal(options, logins):
    with HostileTarget(chap=USER, **options) as target:
        found = discover(portals_of(target), ME, Credentials(*USER), Deadline(50))

        assert [one.iqn for one in found] == [target.iqn]
        assert target.count("connected") == logins


def test_a_target_that_is_not_there_is_asked_for_at_the_discovery_and_not_waited_for():
    """LIO says of a target that it does not have that it is not in service, for good."""
    with HostileTarget(quirks=[quirk("status_0301", skip=0)], unlisted=True) as target:
        fires = target.fire

        def not_at_discovery(connection, at, subject, kind):
            is_discovery = at == "login" and b"SessionType=Discovery" in bytes(subject.data)
            is_second = at == "login" and kind == 1
            return not is_discovery and not is_second and fires(connection, at, subject, kind)

        target.fire = not_at_discovery
        with pytest.raises(RelvmoiscsiError, match="has no target") as caught:
            work(target)

        assert caught.value.sm_key == "ISCSIDiscovery"
        assert target.count("login refused", 0x0301) == 1


def test_luns_are_listed_with_what_they_say_of_themselves():
    luns = [Lun(0), Lun(3, read_only=True), Lun(300, 1 << 21, block_size=4096), Lun(301, naa="", serial="S9")]
    with HostileTarget(luns) as target:
        found = list_luns(portals_of(target), target.iqn, ME, Deadline(50))

    assert [one.number for one in found] == [0, 3, 300, 301]
    assert [one.scsi_id for one in found[:3]] == [lun.scsi_id for lun in luns[:3]]
    assert found[3].scsi_id == "1HOSTILE_S9"
    assert (found[2].size_bytes, found[2].block_size, found[2].physical_block_size) == (1 << 21, 4096, 4096)
    assert (found[0].vendor, found[0].model, found[0].serial, found[0].problem) == (
        "HOSTILE",
        "SCRIPTED",
        luns[0].serial,
        "",
    )


def test_of_many_luns_only_the_wanted_one_is_asked_for_its_size():
    luns = [Lun(number) for number in range(300)]
    with HostileTarget(luns) as target:
        with open_lun(portals_of(target), target.iqn, ME, luns[250].scsi_id, False, Deadline(50)) as device:
            assert device.info.number == 250

        assert target.count("command", scsi.SERVICE_ACTION_IN) == 1


def test_a_lun_that_is_not_there_is_said_with_those_that_are():
    with HostileTarget([Lun(0), Lun(7)]) as target:
        for lun, there in (("3600", target.luns[0].scsi_id + ", " + target.luns[1].scsi_id), (5, "0, 7")):
            asked = open_lun(portals_of(target), target.iqn, ME, lun, False, Deadline(50))
            with pytest.raises(RelvmoiscsiError, match=f"No LUN {lun} is behind .* there are {there}") as caught, asked:
                pass
            assert caught.value.sm_key == "ISCSIDevice"


def test_digests_that_python_has_to_compute_limit_what_should_be_copied(monkeypatch):
    monkeypatch.setattr("relvmoiscsi.iscsi.opening.kernel_crc32c", lambda: None)
    limits = []
    for digest in ("None", "CRC32C"):
        with HostileTarget(data_digest=(digest,)) as target, opened(target) as device:
            limits.append(device.copy_limit_bytes)

    assert limits == [None, 64 << 20]


# --- a connection that is cut, and one that waits


def test_a_target_that_is_quiet_is_pinged_and_one_that_answers_pings_is_waited_for_longer(clock):
    with HostileTarget(quirks=["one_never_answered"]) as target:
        started = clock.now
        work(target)

        assert target.count("pinged") >= 2
        assert clock.now - started >= link.NO_STEP_SECONDS > link.SILENCE_SECONDS


def test_a_connection_that_is_lost_while_nobody_looks_is_made_anew():
    with HostileTarget() as target, opened(target) as device:
        target.drop()
        target.wait_for("gone")

        assert device.read([Range(0, 512)]) == [bytes(512)]


def test_a_deadline_ends_a_wait_in_the_middle():
    with HostileTarget(quirks=[quirk("one_never_answered", skip=0, kinds=scsi.READS)]) as target:
        with pytest.raises(RelvmoiscsiError) as caught:
            work(target, seconds=0.5)

        assert caught.value.sm_key == "SRUnavailable"
        assert caught.value.disk_state == ""


@pytest.mark.parametrize("way", ["out", "in"])
def test_a_connection_that_is_cut_anywhere_ends_with_the_right_bytes(way):
    """At each 48th of the stream, the first ones within the login."""
    with HostileTarget() as target, CuttingProxy(target.portal) as proxy:
        work(target, portals=[Portal("127.0.0.1", proxy.port)])
        whole = proxy.lengths()[way]
    places = range(48) if WHOLE else sorted({0, 1, *random.Random(f"{SEED} {way}").sample(range(2, 48), 8)})
    for place in places:
        after = whole * place // 48 + 1
        with HostileTarget() as target, CuttingProxy(target.portal, [Cut(way, after)]) as proxy:
            work(target, portals=[Portal("127.0.0.1", proxy.port)])

            proxy.wait_for_cut()
