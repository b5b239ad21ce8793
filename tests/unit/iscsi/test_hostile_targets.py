# SPDX-License-Identifier: LGPL-2.1-only
"""What targets do, and could: each quirk of the scripted target, over a socket, with what comes of it.

The target watches the initiator at the same time, and fails the test for each rule of RFC 7143 that it breaks.
"""

import random
import re
import threading

import pytest

from kit.examples import SEED, WHOLE
from kit.iscsi import acts, negotiation, scsi
from kit.iscsi.hostile import HostileTarget
from kit.iscsi.lun import Lun
from kit.iscsi.options import Chap
from kit.iscsi.proxy import Cut, CuttingProxy
from kit.iscsi.quirks import FAMILIES, QUIRKS, TWO_PORTALS, USER, Quirk, quirk
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.errors import DeviceError, LoginRefused, NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.iscsi import (
    Credentials,
    Initiator,
    LunInfo,
    Portal,
    discover,
    link,
    list_luns,
    open_lun,
)
from relvmoiscsi.portal import parse_address

pytestmark = pytest.mark.usefixtures("clock")

ME = Initiator("iqn.2026-01.test:me", "0a0b0c0d-0000-4000-8000-000000000001")
DATA = bytes(range(256)) * 16
NOBODY = Portal("127.0.0.1", 1)  #: where nothing listens


def portals_of(target):
    return [parse_address(text) for text in target.portals]


def opened(target, lun=0, writable=False, portals=None, me=ME, seconds=50.0, **more):
    return open_lun(portals or portals_of(target), target.iqn, me, lun, writable, Deadline(seconds), **more)


def assert_refused(error, words, call, *arguments, **more):
    with pytest.raises(error, match=words) as caught, call(*arguments, **more):
        pass
    return caught.value


def work(target, seconds=50.0, portals=None, credentials=None):
    """Read, write, flush, read again through everything."""
    lun, options = target.luns[0], target.options
    name = lun.scsi_id if lun.naa else LunInfo(lun.address).number
    where = portals or portals_of(target)[:1]
    credentials = credentials or Credentials(*(options.chap or ("", "")), *(options.mutual or ("", "")))
    with opened(target, name, True, where, seconds=seconds, credentials=credentials) as device:
        device.read([Range(0, 4096)])
        device.write([Chunk(0, DATA), Chunk(65536, DATA * 3)])
        device.flush()
        device.write([Chunk(8192, DATA)])
        device.flush()
        assert device.read([Range(0, 4096), Range(65536, 12288), Range(8192, 4096)]) == [DATA, DATA * 3, DATA]
    disk = target.luns[0].disk
    assert (disk.peek(0, 4096), disk.peek(65536, 12288), disk.peek(8192, 4096)) == (DATA, DATA * 3, DATA)
    assert not target.luns[0].unflushed or scsi.SYNCHRONIZE_CACHE_10 in target.options.refuses


def at_first_portal(target):
    """Its quirks act at its first portal alone."""
    fires = target.fire
    target.fire = lambda connection, *rest: connection.portal_number == 0 and fires(connection, *rest)


def assert_it_fired(target, name):
    """A quirk that does not show would prove nothing."""
    assert target.count("quirk", name) or not QUIRKS[name].act


@pytest.mark.parametrize("name", FAMILIES["worked with"])
def test_a_target_like_this_is_worked_with(name):
    with HostileTarget(quirks=[name]) as target:
        work(target)

        assert target.count("session") in (1, 2)
        assert_it_fired(target, name)


@pytest.mark.parametrize("name", FAMILIES["overcome"])
def test_what_is_lost_or_violated_is_done_over_another_session(name):
    with HostileTarget(quirks=[name]) as target:
        work(target)

        assert target.count("session") == 2
        assert_it_fired(target, name)


@pytest.mark.states("name", few=2)  # each takes seconds
@pytest.mark.parametrize("name", FAMILIES["silences"])
def test_a_silence_is_ended_by_another_session(name):
    test_what_is_lost_or_violated_is_done_over_another_session(name)


REFUSED = {
    "silent_at_once": ("ISCSITarget", "has said nothing .*Check the port, and whether the target works"),
    "redirect_in_circles": ("ISCSILogin", "redirected the login 7 times"),
    "redirect_to_nonsense": ("ISCSILogin", "no address of a target"),
    "redirect_to_closed": ("ISCSITarget", "Nothing listens"),
    "status_0200": ("ISCSILogin", "log of the target"),
    "status_0201": ("ISCSILogin", "came without CHAP.*Give the CHAP user and secret"),
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
    "silent_in_login": ("ISCSITarget", "has said nothing .*Check the port, and whether the target works"),
    "cheats_wrong": ("ISCSILogin", "could not prove itself"),
    "alua_standby": ("ISCSIDevice", "No portal of the target has a path"),
    "busy_for_ever": ("SRUnavailable", "The 50 seconds of this call were over"),
    "reserved": ("SRInUse", "reserved by another host"),
    "data_protect": ("SRInUse", "read-only"),
    "lun_gone": ("ISCSIDevice", "5/25/00"),
    "hardware_error": ("ISCSIDevice", "4/44/00"),
    "good_with_residual": ("EIO", "moved 3584 of 4096 bytes"),
    "short_capacity": ("ISCSIDevice", "does not tell its size"),
}
AFTER_A_WRITE = {
    "write_protected": ("SRInUse", "read-only"),
    "medium_error_write": ("EIO", "write of 4096 bytes at byte 0 failed: sense 3/0c/00"),
    "other_lun": ("ISCSIDevice", "mapped another LUN in its place"),
    "other_lun_with_attention": ("ISCSIDevice", "mapped another LUN in its place"),
    "unmapped_after_loss": ("ISCSIDevice", "any more"),
}
assert (set(REFUSED), set(AFTER_A_WRITE)) == (set(FAMILIES["refused"]), set(FAMILIES["after a write"]))


@pytest.mark.parametrize("name", [*REFUSED, *AFTER_A_WRITE])
def test_a_target_like_this_is_refused_in_words_and_nothing_is_written_to_another_lun(name):
    sm_key, words = {**REFUSED, **AFTER_A_WRITE}[name]
    with HostileTarget(quirks=[name]) as target:
        lun = target.luns[0]
        with pytest.raises(RelvmoiscsiError) as caught:
            work(target)

        assert (caught.value.sm_key, bool(re.search(words, str(caught.value)))) == (sm_key, True), str(caught.value)
        assert "secret of user" not in str(caught.value) and "secret of target" not in str(caught.value)
        assert name in AFTER_A_WRITE or not target.written()
        assert not [one for one in target.luns if one is not lun and one.writes]
        assert_it_fired(target, name)


@pytest.mark.parametrize("no_offer", ["0201", "close", "Reject"])
def test_a_target_that_wants_chap_of_an_initiator_without_says_so(no_offer):
    with HostileTarget(chap=USER, chap_no_offer=no_offer) as target:
        with pytest.raises(RelvmoiscsiError, match="CHAP") as caught:
            work(target, credentials=Credentials())

        assert caught.value.sm_key == "ISCSILogin"


# --- a deadline says what the LUN last answered

#: answers that put a command off, and what a person must read of each
DELAYS = {
    "busy": (scsi.Result(scsi.BUSY), "status 08 (busy)"),
    "task set full": (scsi.Result(scsi.TASK_SET_FULL), "status 28 (too many commands at once)"),
    "becoming ready": (scsi.check(2, 4, 1), "sense 2/04/01 (becoming ready)"),
    "failover": (scsi.check(2, 4, 0x0A), "sense 2/04/0a (failover in progress)"),
    "self-test": (scsi.check(2, 4, 9), "sense 2/04/09 (self-test in progress)"),
    "space": (scsi.check(2, 4, 0x14), "sense 2/04/14 (space allocation in progress)"),
}
KINDS = {
    "list of LUNs": (scsi.REPORT_LUNS,),
    "names": (scsi.INQUIRY,),
    "look": (0x00, scsi.SERVICE_ACTION_IN, scsi.READ_CAPACITY_10),
    "read": scsi.READS,
    "write": scsi.WRITES,
    "flush": scsi.FLUSHES,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.states("delay", few=2)
def test_a_passed_deadline_says_what_the_lun_last_answered_and_nothing_of_earlier_calls(kind, delay):
    answer, words = DELAYS[delay]
    put_off = Quirk("put off for ever", "arrived", acts.answered, {"result": answer}, times=None, kinds=KINDS[kind])
    with HostileTarget(quirks=[put_off._replace(name="put off")]) as target, pytest.raises(RelvmoiscsiError) as caught:
        work(target, seconds=2)

    told = str(caught.value)
    assert caught.value.sm_key == "SRUnavailable", told
    assert words in told, told
    assert "earlier call" not in told and "Repeat the call" not in told


@pytest.mark.parametrize("answer", [scsi.Result(scsi.BUSY), scsi.check(2, 4, 1)])
def test_what_the_lun_answered_before_it_was_ready_is_not_told_of_a_silence_later(answer):
    busy = Quirk("busy at first", "arrived", acts.answered, {"result": answer}, times=2, kinds=scsi.READS)
    silent = quirk("one_never_answered", skip=3, times=None, kinds=scsi.READS)
    quirks = [busy._replace(name="busy"), silent]
    with HostileTarget(quirks=quirks) as target, pytest.raises(RelvmoiscsiError, match="Look at the target") as caught:
        work(target, seconds=20)

    assert "last answered" not in str(caught.value)


@pytest.mark.parametrize("code", [1, 4, 7, 9, 0x0A, 0x14])
@pytest.mark.parametrize("kind", ["look", "read", "write"])
def test_what_is_in_progress_is_waited_for(kind, code):
    quirks = [quirk("becoming_ready", ascq=code, times=3, kinds=KINDS[kind])]
    with HostileTarget(quirks=quirks) as target:
        work(target)

        assert target.count("quirk", "becoming_ready") == 3


# --- several portals


def test_a_standby_portal_is_left_for_one_that_the_target_offers_and_none_out_of_reach_is_taken_for_it():
    with HostileTarget(quirks=["alua_standby"], **TWO_PORTALS) as target:
        at_first_portal(target)
        work(target)
        assert [event.detail for event in target.events if event.name == "connected"] == [0, 0, 1]

        target.new_call()
        work(target, portals=[NOBODY, *portals_of(target)])


def test_a_portal_that_is_silent_leaves_time_for_the_next_one(monkeypatch):
    monkeypatch.setattr(link, "SILENCE_SECONDS", 60)
    with HostileTarget(quirks=["silent_at_once"], **TWO_PORTALS) as target:
        at_first_portal(target)

        work(target, seconds=3, portals=portals_of(target))


def test_of_portals_that_all_fail_a_refusal_is_told_before_a_silence(monkeypatch):
    monkeypatch.setattr(link, "SILENCE_SECONDS", 60)
    with HostileTarget(quirks=["silent_at_once"]) as silent, HostileTarget(quirks=["status_0202"]) as strict:
        with pytest.raises(RelvmoiscsiError, match="does not allow this initiator name"):
            work(strict, seconds=3, portals=[*portals_of(silent), *portals_of(strict)])
        with pytest.raises(RelvmoiscsiError, match="did not take the login within") as caught:
            work(silent, seconds=3, portals=[*portals_of(silent), NOBODY])

        assert caught.value.sm_key == "ISCSITarget"


# --- fencing


def test_sessions_that_write_have_the_isid_of_the_lun_and_readers_have_random_ones():
    with HostileTarget([Lun(0), Lun(1)]) as target:
        one, two = (lun.scsi_id for lun in target.luns)
        for scsi_id, writable in ((one, True), (two, True), (one, True), (one, False)):
            with opened(target, scsi_id, writable):
                target.new_call()
        list_luns(portals_of(target), target.iqn, ME, Deadline(50))
        with opened(target, one, True, me=ME._replace(host_uuid="0a0b0c0d-0000-4000-8000-000000000002")):
            pass

        isids = [event.detail for event in target.events if event.name == "session"]
        assert isids[0] == isids[2] and len(set(isids)) == 5
        assert {isid[0] for isid in isids} == {0x80} and not target.count("reinstated")


def test_the_next_call_ends_the_session_of_a_killed_one_with_its_late_writes():
    with HostileTarget(quirks=[quirk("late_write")]) as target:
        scsi_id = target.luns[0].scsi_id
        killed = opened(target, scsi_id, True)
        device = killed.__enter__()
        device._sessions.log_in_again = lambda attempt: (_ for _ in ()).throw(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            device.write([Chunk(0, b"L" * 512)])
        target.new_call()

        with opened(target, scsi_id, True) as device:
            device.write([Chunk(0, b"N" * 512)])
            target.late_writes_land()
            assert device.read([Range(0, 512)]) == [b"N" * 512]

        assert target.count("reinstated") == 1


def test_a_late_write_in_another_portal_group_is_ended_by_a_reset_of_the_lun():
    with HostileTarget(quirks=["late_write_elsewhere"]) as target:
        first, second = portals_of(target)
        with opened(target, target.luns[0].scsi_id, True) as device:
            device._sessions.portals = (second, first)
            device.write([Chunk(0, b"N" * 512)])
            target.late_writes_land()
            assert device.read([Range(0, 512)]) == [b"N" * 512]

        assert target.count("reinstated") == 0
        assert target.count("task management", 5) == 2  # one for each session


# --- discovery and lists


def test_a_discovery_of_900_targets():
    with HostileTarget(quirks=["discovery_of_900"]) as target:
        found = discover(portals_of(target), ME, Credentials(), Deadline(50))

        assert len(found) == 901
        assert next(iter(found.items())) == (target.iqn, tuple(portals_of(target)))


@pytest.mark.parametrize("name", ["discovery_silent", "discovery_closes"])
def test_a_discovery_without_an_answer_is_an_error(name):
    with HostileTarget(quirks=[name]) as target, pytest.raises(RelvmoiscsiError) as caught:
        discover(portals_of(target), ME, Credentials(), Deadline(50))

    assert caught.value.sm_key == "ISCSITarget"


def test_the_best_algorithm_of_the_target_is_taken(monkeypatch):
    taken, real = [], negotiation.chap_response

    def response(number, *rest):
        taken.append(number)
        return real(number, *rest)

    monkeypatch.setattr(negotiation, "chap_response", response)
    for hashes in (("5", "6", "7", "8"), ("5", "6"), ("5",)):
        with HostileTarget(chap=USER, chap_hashes=hashes) as target:
            work(target)
    assert taken == ["7", "6", "5"]


@pytest.mark.parametrize("chap, no_offer, logins", [(False, "0201", 1), (True, "0201", 2), (True, "close", 2)])
def test_a_discovery_goes_without_chap_first_and_with_it_after_a_refusal(chap, no_offer, logins):
    with HostileTarget(chap=USER, discovery_chap=chap, chap_no_offer=no_offer) as target:
        found = discover(portals_of(target), ME, Credentials(*USER), Deadline(50))

        assert list(found) == [target.iqn]
        assert target.count("connected") == logins


def test_a_list_has_a_limit_and_what_is_left_out_is_counted_and_not_asked():
    luns = [Lun(number) for number in range(30)]
    with HostileTarget(luns) as target:
        found = list_luns(portals_of(target), target.iqn, ME, Deadline(50), most=2)
        with pytest.raises(NotFound) as missing:
            open_lun(portals_of(target), target.iqn, ME, "3600a", False, Deadline(50)).__enter__()

    assert ([one.number for one in found.disks], found.left_out) == ([0, 1], 28)
    named = ", ".join(lun.scsi_id for lun in luns[:20])
    assert f"there are {named} and 10 more." in missing.value.message


def test_a_target_that_asks_for_a_logout_after_each_login_gets_some_logins_a_second(caplog):
    """An array asks once, when it takes a controller out of service. Each login costs lines of the log."""
    caplog.set_level("INFO")
    storm = Quirk("asks for a logout", "done", acts.tell, {"event": 4}, kinds=(0x00, 0x12), times=None, name="storm")
    with HostileTarget([Lun(0)], quirks=[storm]) as target:
        end = threading.Timer(5, target.close)  # without a pause between the logins, no time passes here
        end.start()
        with pytest.raises(DeviceError), opened(target, target.luns[0].scsi_id, True, seconds=20.0) as device:
            device.read([Range(0, 512)])
        end.cancel()
        assert target.count("connected") < 40 and len(caplog.messages) < 200


def test_luns_are_listed_with_what_they_say_of_themselves():
    luns = [Lun(0), Lun(3, read_only=True), Lun(300, 1 << 21, block_size=4096), Lun(301, naa="", serial="S9")]
    with HostileTarget(luns) as target:
        found = list_luns(portals_of(target), target.iqn, ME, Deadline(50)).disks

    ids = [*(lun.scsi_id for lun in luns[:3]), "1HOSTILE_S9"]
    assert [(one.number, one.scsi_id) for one in found] == list(zip((0, 3, 300, 301), ids))
    assert (found[2].size_bytes, found[2].block_size, found[2].physical_block_size) == (1 << 21, 4096, 4096)
    told = (found[0].vendor, found[0].model, found[0].serial, found[0].problem)
    assert told == ("HOSTILE", "SCRIPTED", luns[0].serial, "")


def test_of_many_luns_only_the_wanted_one_is_asked_for_its_size():
    luns = [Lun(number) for number in range(300)]
    with HostileTarget(luns) as target:
        with opened(target, luns[250].scsi_id) as device:
            assert device.info.number == 250

        assert target.count("command", scsi.SERVICE_ACTION_IN) == 1


# --- which LUN is opened


def test_a_lun_that_is_not_there_is_said_with_those_that_are_and_another_one_under_its_number_is_refused():
    with HostileTarget([Lun(0), Lun(7)], ignore=("isid kept",)) as target:
        for lun, there in (("3600", target.luns[0].scsi_id + ", " + target.luns[1].scsi_id), (5, "0, 7")):
            words = f"No LUN {lun} is behind .* there are {there}"
            assert assert_refused(NotFound, words, opened, target, lun).sm_key == "ISCSIDevice"
        scsi_id = target.luns[0].scsi_id
        words = f"\\AThe LUN 0 behind {target.iqn} is the LUN {scsi_id}, expected 3other\\."
        assert_refused(Refused, words, opened, target, 0, True, scsi_id="3other")


def test_a_lun_whose_scsi_id_another_one_has_too_is_only_read_and_by_its_number():
    """Some arrays give a clone the SCSIid of its original."""
    luns = [Lun(3, naa="6001405000000001"), Lun(5, naa="6001405000000001")]
    with HostileTarget(luns, ignore=("isid kept",)) as target:
        with opened(target, 5) as device:
            assert device.info.number == 5
        for name, more in ((5, {}), (5, {"scsi_id": luns[0].scsi_id}), (luns[0].scsi_id, {})):
            with pytest.raises(Refused, match="The LUNs 3, 5 behind .* have one SCSIid"), opened(
                target, name, True, **more
            ):
                pass


@pytest.mark.parametrize("kind, what", [(0x0C, "the controller of an array"), (0x1B, "a device of type 0x1b")])
def test_a_lun_that_is_no_disk_is_called_what_it_is(kind, what):
    """As LUN 0 of many arrays is."""
    other = Lun(0)
    inquiry = bytes([kind]) + other.inquiry()[1:]
    other.inquiry = lambda: inquiry
    with HostileTarget([other, Lun(1)]) as target:
        assert_refused(NotFound, f"LUN 0 behind .* is no disk: it is {what}", opened, target)


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

        assert (caught.value.sm_key, caught.value.disk_state) == ("SRUnavailable", "")


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


# --- sentences that are true


WRONG_USER, WRONG_INCOMING = Credentials("user", "wrong secret 123"), Credentials(*USER, "target", "wrong secret 123")


@pytest.mark.parametrize(
    "options, given, words",
    [
        ({"chap": USER}, Credentials(), "came without CHAP, and the target wants CHAP.*--chap-file.*--chap-user"),
        ({"chap": USER}, WRONG_USER, "the CHAP user or secret is wrong. Check"),
        ({"chap": USER}, Credentials("user", "wrong secret 123", "target", "x" * 16), "or the target has no incoming"),
        ({"chap": USER, "mutual": Chap("target", "secret of target")}, WRONG_INCOMING,
         "does not know the secret of its"),
        ({"chap": USER, "mutual": Chap("other", "secret of target"), "cheats": "name"},
         Credentials(*USER, "target", "secret of target"), "its CHAP user is not the incoming CHAP user"),
        ({"chap": USER, "mutual": USER, "cheats": "none"}, Credentials(*USER, "target", "secret of target"),
         "answered without a proof, as a target does that has no incoming CHAP user"),
    ],
)  # fmt: skip
def test_a_refused_login_blames_only_what_the_login_had(options, given, words):
    with HostileTarget(**options) as target, pytest.raises(Refused, match=words) as caught:
        work(target, credentials=given)

    assert ("secret is wrong" in str(caught.value)) <= bool(given.user)


def test_a_refused_secret_is_sent_once_whatever_else_could_be_tried():
    """Arrays lock an account after some refused logins. Here are two portals, and a discovery wants CHAP as well."""
    with HostileTarget(chap=USER) as target:
        twice = portals_of(target)[:1] + [Portal("localhost", portals_of(target)[0].port)]
        words = "the CHAP user or secret is wrong"
        assert_refused(LoginRefused, words, opened, target, portals=twice, credentials=WRONG_USER)
        assert target.count("login refused") == 1

        with pytest.raises(LoginRefused, match=words):
            discover(twice, ME, WRONG_USER, Deadline(50))
        assert target.count("login refused") == 1 + 2  # without CHAP, then with it


@pytest.mark.parametrize(
    "first, discovery_chap, refused",
    [("brief_0301", False, 1), ("brief_0301", True, 2), ("redirect_nowhere", False, 1), ("redirect_nowhere", True, 1)],
)
def test_a_refused_secret_is_sent_once_after_a_login_that_failed_otherwise(first, discovery_chap, refused):
    """The look for the target among those of the portal is without CHAP. With two refusals, that is the other one."""
    with HostileTarget(quirks=[quirk(first, times=1)], chap=USER, discovery_chap=discovery_chap) as target:
        assert_refused(LoginRefused, "the CHAP user or secret is wrong", opened, target, credentials=WRONG_USER)
        assert target.count("login refused", 0x0201) == refused


@pytest.mark.parametrize("status, more", [("0203", ()), ("0301", ()), ("0203", ["discovery_closes"])])
def test_a_wrong_iqn_is_one_mistake_whatever_status_a_target_has_for_it(status, more):
    """Without a list of its targets, a target that fails over cannot be told from a wrong IQN after 0301 alone."""
    quirks = [quirk(f"status_{status}", times=1), *more]
    with HostileTarget(quirks=quirks, unlisted=True, other_targets=("iqn.2026-01.test:other",)) as target:
        caught = assert_refused(NotFound, "Check the IQN", opened, target)

    assert (caught.sm_key, caught.exit_status) == ("ISCSIDiscovery", 3)


def test_a_lun_whose_page_83_fails_once_is_not_taken_for_another_lun():
    """The first question for page 0x83 fails; the second is answered."""
    failing = quirk("hardware_error", skip=1, times=1, kinds=(scsi.INQUIRY,))
    with HostileTarget(quirks=[failing]) as target, opened(target) as device:
        assert device.info.scsi_id == target.luns[0].scsi_id
        assert_it_fired(target, "hardware_error")


def test_a_lun_whose_page_83_always_fails_is_told_with_its_sense():
    failing = quirk("hardware_error", kinds=(scsi.INQUIRY,))
    with HostileTarget(quirks=[failing]) as target:
        problem = assert_refused(Refused, r"does not tell what it is: sense 4/44/00 \(hardware error\)", opened, target)
        assert "another LUN" not in str(problem) and "None" not in str(problem)


@pytest.mark.parametrize("number", [1, 5, 255])
def test_a_lun_in_two_addressings_is_one_lun(number):
    flat = bytes([0x40, number]) + bytes(6)
    one = Lun(number)
    luns = [one, Lun(number, disk=one.disk, address=flat)]
    with HostileTarget(luns, ignore=("isid kept",)) as target:
        for name, more in ((number, {}), (luns[0].scsi_id, {}), (number, {"scsi_id": luns[0].scsi_id})):
            for writable in (False, True):
                with opened(target, name, writable, **more) as device:
                    assert device.info.number == number
        assert len(list_luns(portals_of(target), target.iqn, ME, Deadline(50)).disks) == 1


def test_more_data_than_a_command_asks_for_is_told_as_that():
    surplus = Quirk("more", "result", acts.more_data, {}, times=None, kinds=scsi.READS)
    with HostileTarget(quirks=[surplus._replace(name="more")]) as target, pytest.raises(RelvmoiscsiError) as caught:
        work(target)

    assert "the target has 512 bytes more than the 4096 of the command, and calls that good" in str(caught.value)


BANNERS = {
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n": '"HTTP/1.1 400 Bad Request".',
    b"SSH-2.0-OpenSSH_9.6 and a comment that makes it as long as a header\r\n": '"SSH-2.0-OpenSSH_9.6 and a commen".',
    b"220 mail.example.test ESMTP, at your service for as long as it takes\r\n": '"220 mail.example.test ESMTP, at".',
    b"\x15\x03\x01\x00\x02\x02\x46".ljust(48, b"\0"): "the bytes 15 03 01 00 02 02 46 00 00",
    b"\nRFB 003.008\n".ljust(48): "the bytes 0a 52 46 42 20",
}


@pytest.mark.parametrize("banner", BANNERS, ids=lambda banner: repr(banner[:4]))
def test_a_port_of_another_service_is_told_with_what_it_said(banner):
    other = quirk("speaks_http", times=None, data=banner)
    with HostileTarget(quirks=[other]) as target:
        problem = assert_refused(NotFound, "does not speak iSCSI: its answer begins with", opened, target)

    assert f"its answer begins with {BANNERS[banner]}" in str(problem) and "RFC 7143" not in str(problem)
