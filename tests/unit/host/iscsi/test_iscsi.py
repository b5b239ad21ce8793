# SPDX-License-Identifier: LGPL-2.1-only
"""Discovery, login, rescan and logout leave the host as it was, whatever fails and wherever a run is killed.

iscsiadm answers from transcripts of the real one, and leaves what that left (iscsi_world.py).
"""

import errno
import os
import shutil
from contextlib import contextmanager
from glob import glob
from pathlib import Path

import pytest

from kit.clock import Clock
from kit.examples import EVERY_DEATH
from kit.iscsi_world import (
    CHAP_IQN,
    INITIATOR,
    IQN,
    PORTAL,
    World,
    put,
    put_session,
    record_text,
    remove_session,
    transcript,
)
from relvmoiscsi.errors import CommandFailed, NotFound, Refused, UsageError
from relvmoiscsi.host.command import TIMED_OUT
from relvmoiscsi.host.deadline import Deadline, OutOfTime
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_address
from relvmoiscsi.host.files import replace
from relvmoiscsi.host.iscsi import login as iscsi_module
from relvmoiscsi.host.iscsi import luns as iscsi_luns
from relvmoiscsi.host.iscsi import notes as iscsi_notes
from relvmoiscsi.host.iscsi.changes import new_marker
from relvmoiscsi.host.iscsi.iscsiadm import Credentials
from relvmoiscsi.host.iscsi.login import OpenIscsi
from relvmoiscsi.host.iscsi.luns import tell_kernel
from relvmoiscsi.host.iscsi.notes import dead_notes, dead_notes_in_turn, new_note
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.iscsi.records import break_stale_lock, put_back, settings_in, write_record
from relvmoiscsi.host.iscsi.sessions import sessions
from relvmoiscsi.host.iscsi.status import IscsiFailed
from relvmoiscsi.host.locks.sm_locks import iscsiadm_lock, lun_lock

OURS = "11111111-2222-3333-4444-555555555551"
THEIRS = "99999999-2222-3333-4444-555555555559"
ALICE = Credentials("alice", "secretsecret1")
BOB = Credentials("bob", "othersecret22")
PLAIN_RECORD = "nodes/{}/127.0.0.1,3260"
NODE = ("iscsiadm", "-m", "node", "-T", IQN, "-p", "127.0.0.1:3260")
DISCOVERY = ("iscsiadm", "-m", "discovery", "-t", "st", "-p", "127.0.0.1:3260", "-I", "default", "-o", "nonpersistent")


class Killed(BaseException):
    """What ends a run without its cleanup, as SIGKILL does."""


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch):
    monkeypatch.setattr(iscsi_module, "_DAEMON_PAUSE", 0)
    monkeypatch.setattr(iscsi_module, "_RETURN_SECONDS", 0)
    monkeypatch.setattr(iscsi_module, "_GOING_SECONDS", 0)
    monkeypatch.setattr(iscsi_module, "break_stale_lock", lambda host: break_stale_lock(host, 0.01))
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path)
    monkeypatch.setattr(iscsi_luns, "tell_kernel", world.scan)
    return world


@pytest.fixture
def iscsi(world):
    return OpenIscsi(world.host, lock_seconds=1.0)


@pytest.fixture
def quick(monkeypatch):
    """Waiting in vain takes no time."""
    monkeypatch.setattr(iscsi_module, "_LOGOUT_TIMEOUT", 0.0)


def reference(world, iqn=IQN):
    """The lines of SM's file; None where there are none, as SM counts."""
    path = os.path.join(world.root, "var/run/sr-ref", iqn)
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return file.read().split() or None


def use_by_sm(world, iqn=IQN):
    put(world.root, "var/run/sr-ref/" + iqn, THEIRS + "\n", 0o644)


def sids(world):
    return [session.sid for session in sessions(world.host)]


# --- credentials


def test_a_secret_does_not_show_when_printed():
    assert "secretsecret1" not in f"{ALICE!r} {ALICE!s} {[ALICE]}"
    assert "alice" in repr(ALICE)


# --- login and logout


def test_a_login_leaves_nothing_after_the_logout(world, iscsi):
    before = world.tree()

    login = iscsi.login(PORTAL, IQN, user=OURS)
    assert login.created and login.session.is_logged_in
    assert reference(world) == [OURS]
    assert iscsi.logout(login) is True

    assert world.tree() == before
    assert sids(world) == []
    assert world.calls == [
        DISCOVERY,
        (*NODE, "-I", "default", "-o", "new"),
        (*NODE, "-I", "default", "-l"),
        ("iscsiadm", "-m", "session", "-r", "1", "-u"),
    ]


def test_the_record_we_made_lives_as_long_as_the_session(world, iscsi):
    login = iscsi.login(PORTAL, IQN)

    assert list(world.records()) == [PLAIN_RECORD.format(IQN)]
    iscsi.logout(login)
    assert world.records() == {}


def test_the_record_has_the_settings_of_sm(world, iscsi):
    iscsi.login(PORTAL, IQN)

    (record,) = world.records_at_login[0].values()
    expected = {
        "node.startup": "manual",
        "node.conn[0].startup": "manual",
        "node.session.timeo.replacement_timeout": "144",
        "node.session.auth.authmethod": "None",
        "node.session.auth.username": None,
        "node.session.scan": "auto",
        "iface.initiatorname": None,
    }
    assert settings_in(record.encode(), list(expected)) == expected


def test_multipath_waits_less_for_a_lost_session(world, iscsi):
    iscsi.login(PORTAL, IQN, multipath=True)

    (record,) = world.records_at_login[0].values()
    assert "node.session.timeo.replacement_timeout = 15\n" in record


def test_chap_is_in_the_record_and_in_no_argv_nor_log(world, iscsi, caplog):
    caplog.set_level("DEBUG")
    login = iscsi.login(PORTAL, IQN, ALICE, BOB)
    iscsi.logout(login)

    (record,) = world.records_at_login[0].values()
    names = ["authmethod", "username", "password", "username_in", "password_in"]
    found = settings_in(record.encode(), ["node.session.auth." + name for name in names])
    assert list(found.values()) == ["CHAP", "alice", "secretsecret1", "bob", "othersecret22"]
    for secret in ("secretsecret1", "othersecret22"):
        assert secret not in repr(world.calls) and secret not in caplog.text
    assert oct(os.stat(os.path.join(world.root, "etc/iscsi")).st_mode)[-3:] == "755"


def test_secrets_are_masked_should_iscsiadm_say_them(world, iscsi):
    iscsi.login(PORTAL, IQN, ALICE, BOB)

    assert world.secrets == ("secretsecret1", "othersecret22")


def test_the_target_gets_the_initiator_name_that_is_asked_for(world, iscsi):
    iscsi.login(PORTAL, IQN, initiator="iqn.2026-01.test:other")

    (record,) = world.records_at_login[0].values()
    assert "iface.initiatorname = iqn.2026-01.test:other\n" in record


def test_an_ipv6_portal_is_in_brackets_for_iscsiadm_only(world, iscsi):
    world.answers["discovery"] = lambda argv: (0, f"[fd00::1]:3260,1 {IQN}\n", "")

    login = iscsi.login(Portal("fd00::1", 3260), IQN)

    assert world.calls[-1][5:7] == ("-p", "[fd00::1]:3260")
    assert list(world.records()) == [f"nodes/{IQN}/fd00::1,3260"]
    assert iscsi.logout(login)


@pytest.mark.parametrize("iqn", ["", "iqn.x/../../../etc"])
def test_no_iqn_leads_out_of_the_database(world, iscsi, iqn):
    with pytest.raises(UsageError):
        iscsi.login(PORTAL, iqn)
    assert world.calls == []


@pytest.mark.parametrize("secret", [" blank", "line\nfeed", "x" * 300])
def test_a_secret_that_open_iscsi_cannot_take_changes_nothing(world, iscsi, secret):
    before = world.tree()

    with pytest.raises(UsageError):
        iscsi.login(PORTAL, IQN, Credentials("alice", secret))

    assert world.tree() == before


# --- records that were there

THERE = record_text().replace(
    "# END", "node.session.auth.username = olduser\nnode.session.auth.password = oldsecret4\n# END"
)


@pytest.mark.parametrize("name", ["127.0.0.1,3260", "127.0.0.1,3260,1/default", "127.0.0.1,3260,1/c_eth1"])
def test_a_record_that_was_there_is_back_as_soon_as_we_are_logged_in(world, iscsi, name):
    path = world.put_record(name, text=THERE, mode=0o640)
    before = world.tree()

    login = iscsi.login(PORTAL, IQN, ALICE)

    (at_login,) = world.records_at_login[0].values()
    assert "alice" in at_login and "oldsecret4" not in at_login
    with open(path) as file:
        assert file.read() == THERE
    assert world.calls[-1][-3:-1] == ("-I", os.path.basename(name) if "/" in name else "default")
    assert iscsi.logout(login)
    assert world.tree() == before


def test_of_several_records_the_default_interface_is_taken(world, iscsi):
    for iface in ("c_eth1", "default"):
        world.put_record("127.0.0.1,3260,1/" + iface)

    iscsi.login(PORTAL, IQN)

    assert world.calls[-1][-3:] == ("-I", "default", "-l")


def test_a_record_of_another_portal_is_not_touched(world, iscsi):
    world.put_record("127.0.0.2,3260,1/default", text=THERE)
    before = world.tree()

    assert iscsi.logout(iscsi.login(PORTAL, IQN, ALICE))

    assert world.tree() == before


def test_a_record_that_goes_while_it_is_read_is_refused(world, iscsi, monkeypatch):
    world.put_record("127.0.0.1,3260")
    monkeypatch.setattr("relvmoiscsi.host.iscsi.changes.read_record", lambda path: None)

    with pytest.raises(Refused, match="has just been removed"):
        iscsi.login(PORTAL, IQN)


def test_a_record_that_goes_before_it_is_edited_is_refused(world, iscsi, monkeypatch):
    monkeypatch.setattr("relvmoiscsi.host.iscsi.changes.read_record", lambda path: None)

    with pytest.raises(Refused, match="has just been removed"):
        iscsi.login(PORTAL, IQN)
    assert world.records() == {}


def test_a_database_in_an_unknown_place_is_an_error(world, iscsi):
    world.answers["new record"] = lambda argv: (0, "", "")

    with pytest.raises(NotFound, match="none of the known databases") as caught:
        iscsi.login(PORTAL, IQN)
    assert caught.value.sm_key == "ISCSIQueryDaemon"


# --- logins that fail


@pytest.mark.parametrize(
    "label, chap, incoming, sm_key, words",
    [
        ("chap wrong secret: login", ALICE, None, "ISCSILogin", "refused this host's credentials"),
        ("chap missing: login", None, None, "ISCSILogin", "no CHAP user was given"),
        ("acl: login", None, None, "ISCSILogin", "does not allow this initiator name"),
        ("mutual wrong: login", ALICE, BOB, "ISCSILogin", "the target could not prove itself"),
        ("disabled: login", None, None, "ISCSITarget", "not available"),
        ("mute: login", None, None, "ISCSITarget", "did not answer in time"),
        ("login without iscsid", None, None, "ISCSIDaemon", "iscsid does not run"),
    ],
)
@pytest.mark.parametrize("there", [False, True], ids=["new record", "record was there"])
def test_a_login_that_fails_leaves_nothing(world, iscsi, there, label, chap, incoming, sm_key, words):
    if there:
        world.put_record("127.0.0.1,3260,1/default", text=THERE)
    before = world.tree()
    world.answers["login"] = label

    with pytest.raises(IscsiFailed, match=words) as caught:
        iscsi.login(PORTAL, IQN, chap, incoming, user=OURS)

    assert caught.value.sm_key == sm_key
    assert "The login to iqn.2026-01.test:open at 127.0.0.1:3260 failed" in str(caught.value)
    assert world.tree() == before


def test_a_target_that_is_not_offered_is_not_tried(world, iscsi):
    before = world.tree()

    with pytest.raises(NotFound, match="does not offer the target iqn.x .* only .*:acl, .*:chap") as caught:
        iscsi.login(PORTAL, "iqn.x")

    assert caught.value.sm_key == "ISCSIDiscovery"
    assert world.calls == [DISCOVERY]
    assert world.tree() == before


def test_thousands_of_targets_do_not_fill_the_message(world, iscsi):
    lines = "".join(f"127.0.0.1:3260,1 iqn.{number}\n" for number in range(1000))
    world.answers["discovery"] = lambda argv: (0, lines, "")

    with pytest.raises(NotFound, match="iqn.100, iqn.101, and 995 others. Check"):
        iscsi.login(PORTAL, "iqn.x")


def test_a_target_that_shows_itself_to_the_wanted_initiator_alone_is_logged_in_to(world, iscsi, caplog):
    """The discovery goes by another name than the login."""
    caplog.set_level("INFO")
    iqn = "iqn.2026-01.test:masked"

    login = iscsi.login(PORTAL, iqn, initiator="iqn.2026-01.test:wanted")

    assert login.created and login.session.iqn == iqn
    assert "does not offer iqn.2026-01.test:masked to this host's own name" in caplog.text


def test_a_portal_that_refuses_discovery_may_accept_a_login(world, iscsi):
    world.answers["discovery"] = "discovery needs chap"

    assert iscsi.login(PORTAL, IQN).created


@pytest.mark.parametrize(
    "answer",
    ["discovery mute", CommandFailed(DISCOVERY, TIMED_OUT, "it did not end within 8 seconds and was stopped")],
    ids=["mute", "stopped"],
)
@pytest.mark.parametrize("chap", [None, ALICE])
def test_a_portal_that_is_silent_at_the_discovery_is_not_asked_for_a_login(world, iscsi, answer, chap):
    before = world.tree()
    world.answers["discovery"] = answer

    with pytest.raises(IscsiFailed, match="The discovery at 127.0.0.1:3260 failed"):
        iscsi.login(PORTAL, IQN, chap)

    assert world.calls == [DISCOVERY]
    assert world.tree() == before


def test_a_session_that_iscsid_still_makes_after_iscsiadm_was_stopped_is_ended(world, iscsi, quick):
    before = world.tree()

    def slow(argv):
        world.put_session_of_record(1)
        raise CommandFailed(argv, TIMED_OUT, "it did not end within 30 seconds and was stopped")

    world.answers["login"] = slow
    with pytest.raises(IscsiFailed, match="did not end in time"):
        iscsi.login(PORTAL, IQN, user=OURS)

    assert world.calls[-1] == ("iscsiadm", "-m", "session", "-r", "1", "-u")
    assert sids(world) == []
    assert world.tree() == before


def test_a_cleanup_that_fails_does_not_hide_why(world, iscsi, quick, caplog):
    def slow(argv):
        world.put_session_of_record(1)
        raise CommandFailed(argv, TIMED_OUT, "stopped")

    world.answers.update({"login": slow, "logout": lambda argv: (10, "", "no\n")})
    with pytest.raises(IscsiFailed, match="did not end in time"):
        iscsi.login(PORTAL, IQN)

    assert "After a failure: The logout of session 1" in caplog.text
    del world.answers["logout"]
    iscsi.recover()
    assert sids(world) == [] and world.records() == {}


def test_a_session_that_ends_right_after_its_login_is_an_error(world, iscsi):
    before = world.tree()
    world.answers["login"] = lambda argv: (0, "", "")

    with pytest.raises(NotFound, match="has ended right after its login") as caught:
        iscsi.login(PORTAL, IQN)
    assert caught.value.sm_key == "ISCSIDevice"
    assert world.tree() == before


def test_another_program_may_be_faster(world, iscsi):
    before = world.tree()

    def faster(argv):
        put_session(world.root, 9)
        return 15, "", "iscsiadm: default: 1 session requested, but 1 already present.\n"

    world.answers["login"] = faster
    login = iscsi.login(PORTAL, IQN, ALICE)

    assert (login.created, login.session.sid) == (False, 9)
    assert world.records() == {}
    assert iscsi.logout(login) is False
    assert sids(world) == [9]
    assert world.tree() == before


# --- the time


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def hurried(world, clock):
    """open-iscsi with ten seconds."""
    return OpenIscsi(world.host, lock_seconds=1.0, deadline=Deadline(10, clock))


def test_no_program_gets_more_time_than_is_left(world, clock):
    seen = {}
    hurried = OpenIscsi(world.host, lock_seconds=1.0, deadline=Deadline(7.5, clock))

    def discovery(argv):
        seen["discovery"] = world.timeout
        clock.now += 0.5
        return transcript("discovery nonpersistent")

    def login(argv):
        seen["login"] = world.timeout
        world.log_in(argv)
        return 0, "", ""

    world.answers.update({"discovery": discovery, "login": login})
    hurried.login(PORTAL, IQN)

    assert seen == {"discovery": 7.5, "login": 7}, "of 8 and 30 seconds"
    (record,) = world.records_at_login[0].values()
    assert "node.conn[0].timeo.login_timeout = 5\n" in record, "iscsid gives up before iscsiadm is stopped"


def test_no_login_begins_that_would_leave_others_a_session_with_too_little_time_for_its_return(world, hurried, clock):
    def discovery(argv):
        clock.now += 3.5
        return transcript("discovery nonpersistent")

    world.answers["discovery"] = discovery
    with pytest.raises(OutOfTime, match="before the login to"):
        hurried.login(PORTAL, IQN)

    assert sids(world) == [] and world.records() == {} and dead_notes(world.host) == []


@pytest.mark.parametrize("chap", [None, ALICE])
def test_sm_waits_no_longer_than_some_seconds_for_a_portal_that_says_nothing(world, clock, chap):
    """Of whoever has but one portal, too: until now SM's lock was held for 20 seconds, by each call anew."""
    seen = []
    iscsi = OpenIscsi(world.host, 1.0, Deadline(50, clock), answer_seconds=50)

    def silent(argv):
        seen.append(world.timeout)
        raise CommandFailed(argv, TIMED_OUT, "it did not end in time and was stopped")

    world.answers.update({"discovery": "discovery needs chap" if chap else silent, "discovery with CHAP": silent})
    with pytest.raises(IscsiFailed):
        iscsi.login(PORTAL, IQN, chap)

    assert seen == [8.0]


def test_a_portal_that_is_one_of_several_gets_less_time_to_answer(world, clock):
    seen = {}
    iscsi = OpenIscsi(world.host, 1.0, Deadline(50, clock), answer_seconds=8)
    world.answers["discovery"] = lambda argv: (
        seen.update(discovery=world.timeout) or transcript("discovery nonpersistent")
    )

    iscsi.login(PORTAL, IQN)

    assert seen == {"discovery": 8}
    (record,) = world.records_at_login[0].values()
    assert "node.conn[0].timeo.login_timeout = 8\n" in record


def test_waiting_for_sm_is_not_the_time_of_the_portal(world, clock, monkeypatch):
    waits = []

    @contextmanager
    def lock(root, timeout):
        waits.append(timeout)
        clock.now += 15
        yield

    monkeypatch.setattr(iscsi_module, "iscsiadm_lock", lock)

    assert OpenIscsi(world.host, 45.0, Deadline(55, clock), answer_seconds=8).login(PORTAL, IQN).created
    assert waits == [45.0, 40.0, 25.0]


def test_after_the_deadline_no_login_is_begun(world, hurried, clock):
    before = world.tree()

    def discovery(argv):
        clock.now += 11
        return transcript("discovery nonpersistent")

    world.answers["discovery"] = discovery
    with pytest.raises(OutOfTime, match="The 10 seconds of this call were over before the login to .* The same call"):
        hurried.login(PORTAL, IQN)

    assert world.calls == [DISCOVERY]
    assert world.tree() == before


@pytest.mark.processes  # who uses its disks is asked apart
def test_what_a_login_that_used_up_the_time_leaves_is_cleaned_up_after_the_deadline(world, hurried, clock):
    before = world.tree()

    def slow(argv):
        world.put_session_of_record(1)
        clock.now += 11
        raise CommandFailed(argv, TIMED_OUT, "it did not end within 10 seconds and was stopped")

    world.answers["login"] = slow
    with pytest.raises(IscsiFailed, match="did not end in time"):
        hurried.login(PORTAL, IQN)

    assert world.calls[-1] == ("iscsiadm", "-m", "session", "-r", "1", "-u")
    assert 0 < world.timeout <= 8
    assert sids(world) == [] and world.tree() == before


def test_sm_may_run_iscsiadm_between_our_discovery_and_our_login(world, monkeypatch):
    events = []

    @contextmanager
    def lock(root, timeout):
        events.append("locked")
        yield
        events.append("free")

    def run(argv, **more):
        events.append(world.task_of(list(argv))[0])
        return world.run(argv, **more)

    monkeypatch.setattr(iscsi_module, "iscsiadm_lock", lock)
    OpenIscsi(world.host._replace(runner=run)).login(PORTAL, IQN)

    at = events.index("discovery")
    assert events[at - 1 : at + 2] == ["locked", "discovery", "free"]
    assert events[at + 2 :] == ["locked", "new record", "login", "free"]


# --- how long I/O waits for a lost connection


def patience(world, sid=1):
    with open(os.path.join(world.root, f"sys/class/iscsi_session/session{sid}/recovery_tmo")) as file:
        return file.read().strip()


@pytest.fixture
def with_recovery_tmo(world):
    def login(argv):
        put_session(world.root, 1)
        put(world.root, "sys/class/iscsi_session/session1/recovery_tmo", "144\n")
        return 0, "", ""

    world.answers["login"] = login


@pytest.mark.parametrize("multipath, seconds", [(False, "20"), (True, "15")])
def test_our_own_session_gives_up_before_our_caller_does(world, iscsi, with_recovery_tmo, multipath, seconds):
    iscsi.login(PORTAL, IQN, multipath=multipath)

    assert patience(world) == seconds


def test_a_session_that_sm_uses_now_has_the_patience_of_sm(world, iscsi, with_recovery_tmo):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    with open(os.path.join(world.root, "var/run/sr-ref", IQN), "a") as file:
        file.write(THEIRS + "\n")

    assert iscsi.logout(login) is False
    assert patience(world) == "144"


@pytest.mark.parametrize("multipathd, seconds", [(None, "15"), ("5", "5")])
def test_a_path_that_sm_uses_now_has_the_patience_of_a_path(world, iscsi, with_recovery_tmo, multipathd, seconds):
    login = iscsi.login(PORTAL, IQN, multipath=True, user=OURS)
    if multipathd:  # which has a time of its own for the paths of its maps
        put(world.root, "sys/class/iscsi_session/session1/recovery_tmo", multipathd + "\n")
    with open(os.path.join(world.root, "var/run/sr-ref", IQN), "a") as file:
        file.write(THEIRS + "\n")

    assert iscsi.logout(login) is False
    assert patience(world) == seconds


def test_a_session_that_was_there_keeps_its_patience(world, iscsi):
    put_session(world.root, 4)
    put(world.root, "sys/class/iscsi_session/session4/recovery_tmo", "120\n")

    iscsi.login(PORTAL, IQN)

    assert patience(world, 4) == "120"


# --- sessions that were there


def test_a_session_that_was_there_is_used_and_left(world, iscsi):
    put_session(world.root, 4)
    use_by_sm(world)
    before = world.tree()

    login = iscsi.login(PORTAL, IQN, ALICE, user=OURS)
    assert (login.created, login.session.sid) == (False, 4)
    assert reference(world) == [THEIRS, OURS]
    assert iscsi.logout(login) is False

    assert reference(world) == [THEIRS]
    assert sids(world) == [4]
    assert world.calls == []
    remains = world.tree()
    path = "var/run/sr-ref/" + IQN
    assert remains.pop(path)[1].split() == before.pop(path)[1].split()
    assert remains == before


def test_a_session_to_another_portal_is_not_ours_to_use(world, iscsi):
    put_session(world.root, 4, portal=Portal("127.0.0.1", 3261))
    world.sid = 4

    login = iscsi.login(PORTAL, IQN)

    assert (login.created, login.session.sid) == (True, 5)
    assert iscsi.logout(login) and sids(world) == [4]


def test_a_session_that_lost_its_target_is_none_to_use(world, iscsi):
    put_session(world.root, 4, state="FAILED")
    before = world.tree()

    with pytest.raises(NotFound, match="session 4 .* has lost its target .it is FAILED") as caught:
        iscsi.login(PORTAL, IQN, user=OURS)

    assert caught.value.sm_key == "ISCSIDevice"
    assert world.calls == [] and sids(world) == [4]
    assert world.tree() == before


@pytest.mark.parametrize(
    "state, luns, seconds",
    [("FREE", (0, 1), 2), ("FAILED", (0, 1), 5), ("FREE", (), 20)],
    ids=["lost for long", "just lost", "coming"],
)
def test_a_session_that_is_lost_for_long_is_not_waited_for_as_if_it_came(
    world, iscsi, clock, monkeypatch, state, luns, seconds
):
    """The kernel says FREE of both; what was there has LUNs."""
    put_session(world.root, 4, state=state, luns=luns)
    monkeypatch.setattr(iscsi_module, "_RETURN_SECONDS", 5)
    monkeypatch.setattr(iscsi_module, "_GOING_SECONDS", 2)

    def wait_for(condition, limit):
        if not condition():
            clock.now += limit

    monkeypatch.setattr(iscsi_module, "wait_for", wait_for)
    began = clock.now
    with pytest.raises(NotFound, match=f"session 4 .* has lost its target .it is {state}"):
        iscsi.login(PORTAL, IQN, user=OURS)

    assert seconds <= clock.now - began <= seconds + 2
    assert sids(world) == [4]


def test_a_session_that_finds_its_target_again_is_used(world, iscsi, monkeypatch):
    put_session(world.root, 4, state="FAILED")
    monkeypatch.setattr(iscsi_module, "_RETURN_SECONDS", 60)

    def back(condition, _seconds):
        put_session(world.root, 4)
        return condition()

    monkeypatch.setattr(iscsi_module, "wait_for", back)

    assert iscsi.login(PORTAL, IQN).session.sid == 4


def test_a_reference_file_that_cannot_be_used_ends_it(world, iscsi):
    put_session(world.root, 4)
    os.makedirs(os.path.join(world.root, "var/run/sr-ref", IQN))

    with pytest.raises(Refused) as caught:
        iscsi.login(PORTAL, IQN, user=OURS)
    assert caught.value.sm_key == "LVMRefCount"


def test_a_session_that_sm_uses_meanwhile_is_left_to_it(world, iscsi):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    with open(os.path.join(world.root, "var/run/sr-ref", IQN), "a") as file:
        file.write(THEIRS + "\n")

    assert iscsi.logout(login) is False
    assert sids(world) == [1] and reference(world) == [THEIRS]
    assert list(world.records()) == [PLAIN_RECORD.format(IQN)]

    # SM ends it some day; what is left of ours goes with the next run.
    remove_session(world.root, 1)
    shutil.rmtree(os.path.join(world.root, "var/run/sr-ref"))
    iscsi.recover()
    assert world.records() == {} and not os.path.exists(os.path.join(world.root, "var/lib/relvmoiscsi"))


def leave_as_sm_does(world, iqn=IQN):
    """SM detaches its only SR: its line goes, and the session stays as long as another line is there."""
    path = os.path.join(world.root, "var/run/sr-ref", iqn)
    with open(path) as file:
        left = [line for line in file.read().split() if line != THEIRS]
    assert left, "SM would have logged out"
    put(world.root, "var/run/sr-ref/" + iqn, "".join(line + "\n" for line in left), 0o644)


def test_who_removes_the_last_line_ends_the_sessions_that_sm_has_left(world, iscsi):
    put_session(world.root, 4)
    put_session(world.root, 5, portal=Portal("127.0.0.2", 3260))
    put_session(world.root, 6, CHAP_IQN)
    use_by_sm(world)

    login = iscsi.login(PORTAL, IQN, user=OURS)
    leave_as_sm_does(world)
    assert iscsi.logout(login) is True

    assert sids(world) == [6]
    assert reference(world) is None and dead_notes(world.host) == []


def test_a_session_that_sm_has_left_and_somebody_uses_stays(world, iscsi, no_patience, caplog):
    device = put_session(world.root, 1)
    use_by_sm(world)
    login = iscsi.login(PORTAL, IQN, user=OURS)
    put_user(world, device, "swap")
    leave_as_sm_does(world)

    assert iscsi.logout(login) is False
    assert sids(world) == [1] and "stays, as its disks are in use" in caplog.text


def test_of_several_runs_the_last_one_ends_what_sm_has_left(world, iscsi):
    put_session(world.root, 4)
    use_by_sm(world)
    first = iscsi.login(PORTAL, IQN, user=OURS)
    leave_as_sm_does(world)
    second = iscsi.login(PORTAL, IQN, user="third")

    assert iscsi.logout(first) is False and sids(world) == [4]
    assert iscsi.logout(second) is True and sids(world) == []
    assert dead_notes(world.host) == []


def test_a_run_that_was_killed_ends_what_sm_has_left_by_the_next_one(world, iscsi):
    put_session(world.root, 4)
    use_by_sm(world)
    iscsi.login(PORTAL, IQN, user=OURS).note.close()
    leave_as_sm_does(world)

    iscsi.recover()

    assert sids(world) == [] and reference(world) is None


def test_a_session_that_never_had_a_line_of_sm_outlives_all_runs(world, iscsi):
    put_session(world.root, 4)
    first = iscsi.login(PORTAL, IQN, user=OURS)
    second = iscsi.login(PORTAL, IQN, user="third")

    assert iscsi.logout(first) is False and iscsi.logout(second) is False
    assert sids(world) == [4] and dead_notes(world.host) == []


def test_of_two_runs_the_last_one_logs_out(world, iscsi):
    before = world.tree()
    first = iscsi.login(PORTAL, IQN, user=OURS)
    second = iscsi.login(PORTAL, IQN, user=THEIRS)

    assert (first.created, second.created) == (True, False)
    assert iscsi.logout(first) is False and sids(world) == [1]
    assert iscsi.logout(second) is True and sids(world) == []
    assert world.tree() == before


def test_a_session_that_has_ended_needs_no_logout(world, iscsi):
    before = world.tree()
    login = iscsi.login(PORTAL, IQN, user=OURS)
    remove_session(world.root, 1)
    calls = len(world.calls)

    assert iscsi.logout(login) is True
    assert len(world.calls) == calls
    assert world.tree() == before


def test_a_session_with_our_number_to_another_target_is_not_ours(world, iscsi):
    login = iscsi.login(PORTAL, IQN)
    remove_session(world.root, 1)
    put_session(world.root, 1, CHAP_IQN)

    iscsi.logout(login)

    assert sids(world) == [1]


# --- logouts that fail


def test_a_logout_that_fails_is_an_error_and_is_tried_again_by_the_next_run(world, iscsi):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    world.answers["logout"] = lambda argv: (10, "", "iscsiadm: no\n")

    with pytest.raises(IscsiFailed, match="The logout of session 1 .* failed: the logout failed") as caught:
        iscsi.logout(login)
    assert caught.value.sm_key == "ISCSILogout"
    login.note.close()

    del world.answers["logout"]
    iscsi.recover()
    assert sids(world) == [] and world.records() == {} and reference(world) is None


@pytest.mark.parametrize(
    "label", ["iscsid killed: logout without iscsid", "iscsid killed: logout after restart without record"]
)
def test_an_iscsid_that_is_not_ready_is_started_and_asked_again(world, iscsi, label):
    login = iscsi.login(PORTAL, IQN)
    world.daemon(False)
    answers = [label, label, "logout by sid"]

    def logout(argv):
        name = answers.pop(0)
        world.answers["logout"] = name if name == "logout by sid" else logout
        return world.answer(argv) if name == "logout by sid" else transcript(name)

    world.answers["logout"] = logout
    assert iscsi.logout(login) is True
    assert answers == [] and ("systemctl", "start", "iscsid.service") in world.calls


def test_an_iscsid_that_never_gets_ready_is_an_error(world, iscsi, quick):
    login = iscsi.login(PORTAL, IQN)
    world.answers["logout"] = "iscsid killed: logout after restart without record"

    with pytest.raises(IscsiFailed, match="has lost its target"):
        iscsi.logout(login)


def test_a_logout_that_finds_the_session_gone_is_fine(world, iscsi):
    login = iscsi.login(PORTAL, IQN)

    def gone(argv):
        remove_session(world.root, 1)
        return transcript("logout by sid again")

    world.answers["logout"] = gone
    assert iscsi.logout(login) is True


def test_a_logout_without_effect_is_an_error(world, iscsi, quick):
    login = iscsi.login(PORTAL, IQN)
    world.answers["logout"] = lambda argv: (0, "", "")

    with pytest.raises(Refused, match="it is still there") as caught:
        iscsi.logout(login)
    assert caught.value.sm_key == "ISCSILogout"


# --- runs that were killed


class Call:
    """Kills the run before or after its n-th call of a program, of a note or of a record."""

    def __init__(self, number):
        self.left = number

    def __call__(self, function):
        def wrapper(*arguments, **options):
            self.tick()
            result = function(*arguments, **options)
            self.tick()
            return result

        return wrapper

    def tick(self):
        self.left -= 1
        if self.left == 0:
            raise Killed()


def killed_after(world, number, monkeypatch, chap):
    """A run that is killed at its n-th step; True if it got to its end before."""
    step = Call(number)

    def killed_halfway(path, text, new):
        Path(new).write_bytes(text[:100])
        step.tick()
        os.unlink(new)
        replace(path, text, new)

    with monkeypatch.context() as patch:
        patch.setattr("relvmoiscsi.host.iscsi.records.replace", killed_halfway)
        patch.setattr(world, "run", step(world.run))
        patch.setattr(iscsi_notes.Note, "add", step(iscsi_notes.Note.add))
        patch.setattr("relvmoiscsi.host.iscsi.changes.write_record", step(write_record))
        patch.setattr("relvmoiscsi.host.iscsi.changes.put_back", step(put_back))
        # What a killed process does not do.
        patch.setattr(OpenIscsi, "_give_up", lambda self, note: None)
        patch.setattr("relvmoiscsi.host.iscsi.records._unlink", step(os.unlink))
        run = OpenIscsi(world.host, lock_seconds=1.0)
        login = None
        try:
            login = run.login(PORTAL, IQN, chap, user=OURS)
            run.logout(login)
        except Killed:
            close_notes(patch)
            return False
    return True


def close_notes(patch):
    """The kernel closes what a killed process had open; here the garbage collector has no such habit."""
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except FileNotFoundError:
            continue
        if "/var/lib/relvmoiscsi/iscsi/" in target:
            os.close(int(name))


@pytest.mark.parametrize("there", [False, True], ids=["new record", "record was there"])
@pytest.mark.parametrize("again", ["recover", "the same login"])
def test_after_a_kill_anywhere_the_next_run_leaves_the_host_as_it_was(tmp_path, monkeypatch, there, again):
    for number in range(1, 200, EVERY_DEATH):
        world = World(tmp_path / str(number))
        if there:
            world.put_record("127.0.0.1,3260,1/default", text=THERE)
        before = world.tree()
        finished = killed_after(world, number, monkeypatch, ALICE)

        iscsi = OpenIscsi(world.host, lock_seconds=1.0)
        if again == "recover":
            iscsi.recover()
        else:
            login = iscsi.login(PORTAL, IQN, ALICE, user=THEIRS)
            assert login.created, number
            assert reference(world) == [THEIRS], number
            assert iscsi.logout(login) is True

        assert sids(world) == [], number
        assert world.tree() == before, number
        assert not os.path.exists(os.path.join(world.root, "run/lock/iscsi/lock.write")), number
        if finished:
            break
    assert finished and number > 20


def dead_note(world, **facts):
    """The note of a run that was killed."""
    note = new_note(world.host, iqn=IQN, portal=list(PORTAL), user=None, created=True)
    note.add(**facts)
    note.close()


MOUNTED_IN_ANOTHER_NAMESPACE = "41 40 8:48 / /srv/data rw - ext4 /dev/sdd rw\n"


def put_user(world, device, how):
    """Somebody uses the disk sdd of session 1, whose `device` in sysfs it is; gives what has to go for it to end."""
    if how == "a map":
        return put(device, "target6:0:0/6:0:0:7/block/sdd/holders/dm-3/dm/name", "data-home\n")
    put(device, "target6:0:0/6:0:0:7/block/sdd/dev", "8:48\n")
    return {
        "a mount": lambda: put(world.root, "proc/4711/mountinfo", MOUNTED_IN_ANOTHER_NAMESPACE),
        "swap": lambda: put(world.root, "proc/swaps", "Filename Type Size Used Priority\n/dev/sdd partition 9 0 -2\n"),
        "a loop device": lambda: put(world.root, "sys/block/loop3/loop/backing_file", "/dev/sdd\n"),
    }[how]()


USERS = {
    "a map": "device-mapper volume data-home",
    "a mount": "the file system mounted at /srv/data",
    "swap": "swap space /dev/sdd",
    "a loop device": "loop device /dev/loop3",
}


@pytest.fixture
def no_patience(monkeypatch):
    """Who is there at the first look is there for good."""
    monkeypatch.setattr(iscsi_luns, "LOOK_SECONDS", 0.0)


@pytest.mark.parametrize("how", list(USERS))
def test_a_session_in_use_is_handed_over_and_never_ended(world, iscsi, caplog, no_patience, how):
    """Until now it was left for a later run, which would have ended it at any later time."""
    dead_note(world, sid=1)
    device = put_session(world.root, 1)
    put(world.root, "sys/class/iscsi_session/session1/recovery_tmo", "20\n")
    put_user(world, device, how)

    iscsi.recover()

    assert sids(world) == [1] and USERS[how] in caplog.text and "stays, as its disks are in use" in caplog.text
    assert dead_notes(world.host) == []
    assert patience(world) == "144"


def test_a_session_whose_disk_a_given_up_process_of_ours_hangs_in_is_not_handed_over(world, iscsi, monkeypatch):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    hanging = [4711]
    monkeypatch.setattr(iscsi_module, "still_there", lambda session: list(hanging))
    monkeypatch.setattr(iscsi_luns.holders, "users_of_disks", lambda *_: ["process 4711"] if hanging else [])

    with pytest.raises(Refused, match="Process 4711 of this call hangs in a disk that does not answer"):
        iscsi.logout(login)
    assert sids(world) == [1] and reference(world) is None

    login.note.close()  # the kernel has let go of the process, which had it as well
    hanging.clear()
    iscsi.recover()
    assert sids(world) == [] and world.records() == {}


def test_the_record_that_a_session_of_sm_was_made_with_stays(world, iscsi):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    # SM attaches an SR behind the target while we work: it finds our session, so it makes no record.
    put(world.root, "var/run/sr-ref/" + IQN, OURS + "\n" + THEIRS + "\n", 0o644)
    assert iscsi.logout(login) is False
    # SM detaches, which keeps the record, and attaches again: it logs in with the record that it finds.
    os.unlink(os.path.join(world.root, "var/run/sr-ref", IQN))
    remove_session(world.root, 1)
    use_by_sm(world)
    put_session(world.root, 2)

    iscsi.recover()

    record = [PLAIN_RECORD.format(IQN)]
    assert list(world.records()) == record, "an iscsid that is started anew takes over sessions with a record only"


@pytest.mark.parametrize("how", list(USERS))
def test_a_session_of_ours_that_got_users_is_handed_over_at_the_logout(world, iscsi, caplog, no_patience, how):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    device = put_session(world.root, 1)
    put_user(world, device, how)

    assert iscsi.logout(login) is False

    assert sids(world) == [1] and USERS[how] in caplog.text
    assert list(world.records()) == [PLAIN_RECORD.format(IQN)], "an iscsid that is started anew needs it"
    assert reference(world) is None and dead_notes(world.host) == []


def test_a_record_that_was_there_is_back_when_a_session_in_use_is_handed_over(world, iscsi, no_patience):
    path = world.put_record("127.0.0.1,3260,1/default", text=THERE)
    login = iscsi.login(PORTAL, IQN, ALICE)
    put_user(world, put_session(world.root, 1), "swap")

    assert iscsi.logout(login) is False

    with open(path) as file:
        assert file.read() == THERE
    assert dead_notes(world.host) == []


def test_who_only_looks_at_a_disk_is_waited_for(world, iscsi, monkeypatch):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    looks = [["process 4711 (pvs)"], []]
    monkeypatch.setattr(iscsi_luns.holders, "users_of_disks", lambda *_: looks.pop(0))

    assert iscsi.logout(login) is True
    assert looks == []


def test_a_session_of_an_earlier_boot_is_not_ours(world, iscsi):
    dead_note(world, sid=1)
    put(world.root, "proc/sys/kernel/random/boot_id", "two\n")
    put_session(world.root, 1)

    iscsi.recover()

    assert sids(world) == [1]
    assert dead_notes(world.host) == []


MARKER = [47, 93]
MARKED = {"lu_reset_tmo": "47", "tgt_reset_tmo": "93"}


def test_a_note_without_a_session_number_means_the_session_that_its_login_made(world, iscsi):
    dead_note(world, sids=[2], marker=MARKER)
    put_session(world.root, 2, **MARKED)
    put_session(world.root, 3)
    put_session(world.root, 4, **MARKED)

    login = iscsi.login(PORTAL, IQN)

    assert (login.created, login.session.sid) == (True, 4)


@pytest.mark.parametrize(
    "facts, session",
    [
        ({"sids": [], "marker": MARKER}, {"lu_reset_tmo": "30", "tgt_reset_tmo": "30"}),
        ({"sids": [], "marker": MARKER}, {"lu_reset_tmo": "47", "tgt_reset_tmo": "30"}),
        ({"sids": [], "marker": MARKER}, {}),
        ({"sids": [3], "marker": MARKER}, MARKED),
        ({}, {}),
    ],
    ids=["by a stranger", "nearly alike", "an old kernel", "there before", "the note of an older release"],
)
def test_a_session_that_does_not_provably_come_from_the_login_is_somebody_elses(world, iscsi, facts, session):
    dead_note(world, **facts)
    put_session(world.root, 3, **session)

    iscsi.recover()

    assert sids(world) == [3] and world.calls == []
    assert dead_notes(world.host) == []


def test_each_login_is_marked_in_its_own_way(world, iscsi):
    names = ["node.session.err_timeo.lu_reset_timeout", "node.session.err_timeo.tgt_reset_timeout"]
    for _ in range(4):
        iscsi.logout(iscsi.login(PORTAL, IQN))

    texts = [text for records in world.records_at_login for text in records.values()]
    markers = [tuple(settings_in(text.encode(), names).values()) for text in texts]
    assert len(set(markers)) > 1


def test_a_mark_is_no_pair_that_open_iscsi_gives_and_no_longer_patience():
    seconds = [one for _ in range(200) for one in new_marker()]
    assert set(seconds) == set(range(15, 30))


def test_a_recovery_that_fails_is_tried_again(world, iscsi, caplog):
    dead_note(world, sid=1)
    put_session(world.root, 1)
    world.answers["logout"] = lambda argv: (10, "", "no\n")

    iscsi.recover()

    assert "After an earlier run: The logout" in caplog.text
    del world.answers["logout"]
    iscsi.recover()
    assert sids(world) == []


def test_the_lock_of_the_database_that_a_killed_run_held_is_freed(world, iscsi):
    dead_note(world, locked=True)
    put(world.root, "run/lock/iscsi/lock.write", "")

    iscsi.recover()

    assert not os.path.exists(os.path.join(world.root, "run/lock/iscsi/lock.write"))


def test_notes_of_live_runs_are_left_alone(world, iscsi):
    note = new_note(world.host, iqn=IQN, portal=list(PORTAL), user=None, created=True)

    iscsi.recover()

    assert os.path.exists(note.path)
    note.remove()


# --- discovery


def test_a_discovery_keeps_no_record(world, iscsi):
    before = world.tree()

    found = iscsi.discover(PORTAL)

    assert [(str(target.portal), target.tpgt, target.iqn) for target in found] == [
        ("127.0.0.1:3260", 1, "iqn.2026-01.test:open"),
        ("127.0.0.1:3261", 1, "iqn.2026-01.test:open"),
        ("127.0.0.1:3260", 1, "iqn.2026-01.test:chap"),
        ("127.0.0.1:3260", 1, "iqn.2026-01.test:mutual"),
        ("127.0.0.1:3260", 1, "iqn.2026-01.test:acl"),
    ]
    assert world.calls == [DISCOVERY]
    assert world.tree() == before


def test_lines_that_are_no_target_and_repetitions_are_passed_over(world, iscsi):
    line = "[fd00::1]:3260,2 iqn.x\n"
    world.answers["discovery"] = lambda argv: (0, "hello\n" + line + line + "10.0.0.1:3260,-1 iqn.y\n\n", "")

    assert iscsi.discover(PORTAL) == [(Portal("fd00::1", 3260), 2, "iqn.x")]


@pytest.mark.parametrize("there", [False, True], ids=["new record", "record was there"])
@pytest.mark.parametrize("label", ["discoverydb chap", "discoverydb chap wrong"])
def test_a_discovery_with_chap_leaves_the_records_as_they_were(world, iscsi, there, label):
    if there:
        world.put_discovery_record(record_text("discovery").replace("# END", "unknown.key = kept\n# END"))
    before = world.tree()
    seen = []

    def discovery(argv):
        seen.extend(world.records().values())
        return transcript(label)

    world.answers["discovery with CHAP"] = discovery
    world.answers["discovery"] = "discovery needs chap"
    if label.endswith("wrong"):
        with pytest.raises(IscsiFailed, match="as CHAP user 'alice' failed: the target refused") as caught:
            iscsi.discover(PORTAL, ALICE)
        assert caught.value.sm_key == "ISCSILogin"
    else:
        assert len(iscsi.discover(PORTAL, ALICE)) == 5

    assert "discovery.sendtargets.auth.password = secretsecret1\n" in seen[0]
    assert "secretsecret1" not in repr(world.calls)
    assert world.tree() == before


def test_chap_is_for_a_discovery_that_wants_it(world, iscsi):
    assert len(iscsi.discover(PORTAL, ALICE)) == 5

    assert world.calls == [DISCOVERY]


@pytest.mark.parametrize("chap, label", [(None, "discovery needs chap"), (ALICE, "discovery closed")])
def test_a_discovery_that_fails_otherwise_is_not_tried_with_chap(world, iscsi, chap, label):
    world.answers["discovery"] = label

    with pytest.raises(IscsiFailed, match="The discovery at 127.0.0.1:3260 failed"):
        iscsi.discover(PORTAL, chap)

    assert world.calls == [DISCOVERY]


def test_a_discovery_that_was_killed_is_cleaned_up(world, iscsi):
    before = world.tree()

    def killed(argv):
        raise Killed()

    world.answers["discovery with CHAP"] = killed
    world.answers["discovery"] = "discovery needs chap"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpenIscsi, "_give_up", lambda self, note: note.close())
        with pytest.raises(Killed):
            iscsi.discover(PORTAL, ALICE)
    assert world.records()

    iscsi.recover()
    assert world.tree() == before


def test_a_discovery_record_that_a_killed_run_had_just_made_is_found(world, iscsi):
    note = new_note(world.host, iqn="", portal=list(PORTAL), discovery=True)
    note.add(lasting=[os.path.join(world.root, "etc/iscsi")])
    note.close()
    world.put_discovery_record()

    iscsi.recover()

    assert world.records() == {}


# --- rescan


def test_a_rescan_gives_the_session_with_its_new_luns(world, iscsi):
    put_session(world.root, 1, luns=(0,))
    login = iscsi.login(PORTAL, IQN)

    world.answers["scan"] = lambda: put_session(world.root, 1)
    assert [lun.number for lun in iscsi.rescan(login).luns] == [0, 1, 2, 7]
    assert world.told == [("class/scsi_host/host6/scan", "- - -")]
    assert world.calls == []


def test_of_the_disks_that_are_there_the_wanted_lun_alone_is_asked(world, iscsi):
    """Another one may not be ready, and whoever asks it waits for 100 seconds."""
    put_session(world.root, 1)
    login = iscsi.login(PORTAL, IQN)

    iscsi.rescan(login, scsi_id_of_address("6:0:0:2", world.host))

    assert world.told[1:] == [("bus/scsi/devices/6:0:0:2/rescan", "1")]


def scan_brings(world, *luns, sid=1):
    """A scan finds these LUNs beside LUN 0."""

    def scan():
        put_session(world.root, sid, luns=(0, *luns))
        for number in luns:
            put(world.root, f"sys/bus/scsi/devices/{sid + 5}:0:0:{number}/delete", "")

    world.answers["scan"] = scan


def removed(world, *luns, sid=1):
    """Those of the LUNs that were taken off the host."""
    paths = {number: f"sys/bus/scsi/devices/{sid + 5}:0:0:{number}/delete" for number in luns}
    return [number for number, path in paths.items() if Path(world.root, path).read_text() == "1"]


@pytest.fixture
def scanned(world, iscsi):
    """A session of others, with LUN 0, in which a scan of ours has found LUNs 1 and 7."""
    put_session(world.root, 1, luns=(0,))
    scan_brings(world, 1, 7)
    login = iscsi.login(PORTAL, IQN, user=OURS)
    iscsi.rescan(login)
    return login


def test_what_our_scan_has_brought_goes_again_and_what_was_there_stays(world, iscsi, scanned):
    put(world.root, "sys/bus/scsi/devices/6:0:0:0/delete", "")

    assert iscsi.logout(scanned) is False

    assert removed(world, 0, 1, 7) == [1, 7]
    assert sids(world) == [1] and dead_notes(world.host) == []


def test_after_a_second_scan_all_that_both_have_brought_goes(world, iscsi):
    put_session(world.root, 1, luns=(0,))
    login = iscsi.login(PORTAL, IQN, user=OURS)
    for luns in ([1], [1, 7]):
        scan_brings(world, *luns)
        iscsi.rescan(login)

    iscsi.logout(login)
    assert removed(world, 1, 7) == [1, 7]


@pytest.mark.parametrize("how", list(USERS))
def test_a_lun_that_somebody_uses_by_then_stays(world, iscsi, scanned, no_patience, caplog, how):
    put_user(world, os.path.join(world.root, "sys/devices/platform/host6/session1"), how)

    iscsi.logout(scanned)

    assert removed(world, 1, 7) == [1] and USERS[how] in caplog.text
    assert dead_notes(world.host) == []


@pytest.fixture
def silent_removal(world, scanned):
    """LUN 1 of session 1 does not answer: who writes to its switch hangs, for as long as the test."""
    switch = os.path.join(world.root, "sys/bus/scsi/devices/6:0:0:1/delete")
    os.unlink(switch)
    os.mkfifo(switch)
    yield
    os.close(os.open(switch, os.O_RDONLY | os.O_NONBLOCK))


@pytest.mark.processes
def test_a_lun_that_does_not_answer_is_left_to_a_later_run(world, scanned, silent_removal):
    hurried = OpenIscsi(world.host, lock_seconds=1.0, deadline=Deadline(0.5))

    with pytest.raises(OutOfTime, match="before what a scan of session 1 .* has brought was removed"):
        hurried.logout(scanned)

    assert scanned.note["brought"] and reference(world) is None
    with iscsiadm_lock(world.host, 0):
        pass


@pytest.mark.processes
def test_what_a_killed_run_has_left_on_a_lun_that_does_not_answer_takes_little_time(
    world, scanned, silent_removal, monkeypatch, caplog
):
    monkeypatch.setattr(iscsi_module, "_RECOVERY_SECONDS", 0.2)
    scanned.note.close()
    world.put_session_of_record(9, CHAP_IQN)
    caller = OpenIscsi(world.host, lock_seconds=1.0, deadline=Deadline(3600))

    caller.logout(caller.login(PORTAL, CHAP_IQN, user=OURS))

    assert "After an earlier run: The 0.2 seconds of this call were over before what a scan" in caplog.text
    assert len(dead_notes(world.host)) == 1


@pytest.fixture
def silent_sessions(world, clock):
    """What five killed runs have left, each behind a target of its own that does not answer any more."""

    def logout(argv):
        if int(argv[4]) < 20:
            return world.task_of(argv)[2](argv) or transcript("logout by sid")
        tried.append(int(argv[4]))
        clock.now += world.timeout
        raise CommandFailed(argv, TIMED_OUT, "it did not end in time and was stopped")

    tried = []
    for number in range(5):
        iqn = f"iqn.2026-01.test:silent{number}"
        dead_note(world, iqn=iqn, sid=20 + number)
        put_session(world.root, 20 + number, iqn, state="FAILED", luns=())
        (newest,) = [path for path in note_paths(world) if os.stat(path).st_mtime > 1000]
        os.utime(newest, (number, number))
    world.answers["logout"] = logout
    return tried


def note_paths(world):
    return glob(os.path.join(world.root, "var/lib/relvmoiscsi/iscsi/*.json"))


@pytest.mark.processes
def test_what_many_killed_runs_have_left_takes_no_more_time_than_what_one_has(world, clock, silent_sessions):
    """Until now five seconds for each, three times in a call, under SM's lock: with ten no call came to its work."""
    before, began = world.tree(), clock.now

    for turn in range(1, 4):
        caller = OpenIscsi(world.host, lock_seconds=1.0, deadline=Deadline(50, clock))
        caller.logout(caller.login(PORTAL, IQN, user=OURS))

        assert clock.now - began <= 5.0 * turn
        assert silent_sessions == [20, 21, 22][:turn], "those first that were not tried yet"
    assert set(sids(world)) == {20, 21, 22, 23, 24} and world.tree() == before


@pytest.mark.processes
def test_what_a_killed_run_has_left_behind_the_very_target_comes_first(world, clock, silent_sessions):
    """Its session to the portal is taken over, the one to another portal is ended, whatever else there is."""
    for sid, portal in ((7, Portal("10.0.0.7", 3260)), (8, PORTAL)):
        dead_note(world, sid=sid, portal=list(portal), user=OURS)
        put_session(world.root, sid, portal=portal)

    caller = OpenIscsi(world.host, lock_seconds=1.0, deadline=Deadline(50, clock))
    login = caller.login(PORTAL, IQN, user=OURS)

    assert login.session.sid == 8 and login.created
    assert 7 not in sids(world) and silent_sessions == [20]


def test_who_looks_into_one_note_of_a_killed_run_does_not_hold_the_others(world):
    """A process that hangs in a disk has a copy of all that was open when it began, and holds that."""
    for _ in range(2):
        dead_note(world)

    found = dead_notes_in_turn(world.host)
    first = next(found)

    (other,) = dead_notes(world.host)
    assert other.path != first.path
    other.remove()
    assert list(found) == []


def test_luns_stay_once_another_sr_is_attached(world, iscsi, scanned, caplog):
    """On most hosts of a pool such an SR has nothing open, and its disk may be the one that we have brought."""
    caplog.set_level("INFO")
    use_by_sm(world)

    iscsi.logout(scanned)

    assert removed(world, 1, 7) == [] and "2 LUNs that a scan has brought stay, as " + THEIRS in caplog.text


def test_luns_go_although_an_sr_was_attached_before_the_scan(world, iscsi):
    use_by_sm(world)
    put_session(world.root, 1, luns=(0,))
    scan_brings(world, 1)
    login = iscsi.login(PORTAL, IQN, user=OURS)
    iscsi.rescan(login)

    iscsi.logout(login)
    assert removed(world, 1) == [1]


def test_a_lun_that_the_pool_has_stays_for_sm_may_wait_for_it(world, caplog):
    """SM has taken its line, and looks for the disk only after our scan."""
    caplog.set_level("INFO")
    use_by_sm(world)
    put_session(world.root, 1, luns=(0,))
    scan_brings(world, 1, 7)
    iscsi = OpenIscsi(world.host, lock_seconds=1.0, ids_of_pool=lambda: ["true", lun_id(world, 1)])
    login = iscsi.login(PORTAL, IQN, user=OURS)
    iscsi.rescan(login)

    iscsi.logout(login)

    assert removed(world, 1, 7) == [7]
    assert "at 6:0:0:1, which a scan has brought, stays: the pool has it" in caplog.text
    assert dead_notes(world.host) == []


def test_while_the_pool_cannot_be_asked_luns_stay_for_a_later_run(world, iscsi, caplog):
    put_session(world.root, 1, luns=(0,))
    scan_brings(world, 1)
    unsure = OpenIscsi(world.host, lock_seconds=1.0, ids_of_pool=lambda: None)
    login = unsure.login(PORTAL, IQN, user=OURS)
    unsure.rescan(login)

    unsure.logout(login)
    assert removed(world, 1) == [] and "1 LUNs that a scan has brought stay for now" in caplog.text

    iscsi.recover()
    assert removed(world, 1) == [1] and dead_notes(world.host) == []


def test_another_lun_at_the_place_of_one_that_we_brought_stays(world, iscsi, scanned):
    page = os.path.join(world.root, "sys/bus/scsi/devices/6:0:0:1/vpd_pg83")
    shutil.copy(os.path.join(world.root, "sys/bus/scsi/devices/6:0:0:7/vpd_pg83"), page)

    iscsi.logout(scanned)
    assert removed(world, 1, 7) == [7]


def test_a_lun_that_another_call_works_on_is_removed_by_that(world, iscsi):
    put_session(world.root, 1, luns=(0,))
    scan_brings(world, 1, 7)
    first, second = (iscsi.login(PORTAL, IQN, user=user) for user in (OURS, "another call"))
    scsi_id = lun_id(world, 1)
    iscsi.rescan(first)
    with lun_lock(scsi_id, world.host, timeout=1):
        iscsi.logout(first)
        assert removed(world, 1, 7) == [7]

        iscsi.logout(second, done_with=scsi_id)
        assert removed(world, 1, 7) == [1, 7]
    assert dead_notes(world.host) == []


def lun_id(world, number):
    put_session(world.root, 2, luns=(number,))
    found = scsi_id_of_address(f"7:0:0:{number}", world.host)
    remove_session(world.root, 2)
    return found


def test_a_session_that_is_taken_over_may_lack_luns_and_a_new_one_does_not(world, iscsi):
    """It is ours as a new one is, and may be days old."""
    logins = [iscsi.login(PORTAL, IQN, user=OURS)]
    logins[0].note.close()  # the call was killed
    logins.append(iscsi.login(PORTAL, IQN, user=OURS))
    logins.append(iscsi.login(PORTAL, IQN, user=THEIRS))

    assert [(login.created, login.is_new) for login in logins] == [(True, True), (True, False), (False, False)]


def test_a_scan_that_was_killed_counts_with_that_of_the_run_that_takes_its_session_over(world, iscsi):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    sid = login.session.sid
    put_session(world.root, sid, luns=(0,))
    login.note.close()
    scan_brings(world, 1, sid=sid)
    scan = world.answers["scan"]

    def killed():
        scan()
        raise Killed()

    world.answers["scan"] = killed
    login = iscsi.login(PORTAL, IQN, user=OURS)
    with pytest.raises(Killed):
        iscsi.rescan(login)
    login.note.close()

    scan_brings(world, 1, 7, sid=sid)
    login = iscsi.login(PORTAL, IQN, user=OURS)
    iscsi.rescan(login)

    assert sorted(login.note["brought"]) == [f"{sid + 5}:0:0:1", f"{sid + 5}:0:0:7"]


@pytest.mark.parametrize("moment", ["during the scan", "afterwards"])
def test_what_the_scan_of_a_killed_run_has_brought_goes_with_the_next_run(world, iscsi, moment):
    put_session(world.root, 1, luns=(0,))
    scan_brings(world, 1)
    login = iscsi.login(PORTAL, IQN, user=OURS)
    if moment == "during the scan":
        scan = world.answers["scan"]

        def killed():
            scan()
            raise Killed()

        world.answers["scan"] = killed
        with pytest.raises(Killed):
            iscsi.rescan(login)
    else:
        iscsi.rescan(login)
    login.note.close()

    iscsi.recover()
    assert removed(world, 1) == [1] and dead_notes(world.host) == []


def test_a_lun_that_cannot_be_removed_is_tried_again(world, iscsi, scanned, caplog):
    switch = os.path.join(world.root, "sys/bus/scsi/devices/6:0:0:1/delete")
    os.unlink(switch)
    os.makedirs(switch)

    with pytest.raises(Refused, match="The LUN at 6:0:0:1 could not be removed"):
        iscsi.logout(scanned)
    scanned.note.close()
    os.rmdir(switch)
    iscsi.recover()
    assert removed(world, 7) == [7] and dead_notes(world.host) == []


def test_a_session_that_is_gone_cannot_be_rescanned(world, iscsi):
    login = iscsi.login(PORTAL, IQN)
    remove_session(world.root, 1)

    with pytest.raises(NotFound, match="session 1 .* has ended") as caught:
        iscsi.rescan(login)
    assert caught.value.sm_key == "ISCSIDevice"


def test_a_session_that_lost_its_target_is_not_scanned_as_that_would_hang(world, iscsi):
    login = iscsi.login(PORTAL, IQN)
    put_session(world.root, 1, state="FAILED")
    world.calls.clear()

    with pytest.raises(NotFound, match="has lost its target .it is FAILED"):
        iscsi.rescan(login)
    assert world.calls == []


def test_a_session_that_ends_during_the_rescan_is_an_error(world, iscsi):
    login = iscsi.login(PORTAL, IQN)
    world.answers["scan"] = lambda: remove_session(world.root, 1)

    with pytest.raises(NotFound, match="session 1 .* has ended") as caught:
        iscsi.rescan(login)
    assert caught.value.sm_key == "ISCSIDevice"


@pytest.fixture
def kernel_of_files(monkeypatch):
    monkeypatch.setattr(iscsi_luns, "tell_kernel", tell_kernel)


def test_a_switch_that_is_gone_is_no_matter_and_one_that_cannot_be_used_is(world, iscsi, kernel_of_files):
    login = iscsi.login(PORTAL, IQN)
    iscsi.rescan(login)
    os.makedirs(os.path.join(world.root, "sys/class/scsi_host/host6/scan"))

    with pytest.raises(Refused, match="This host cannot be scanned for new LUNs: .*scan: Is a directory") as caught:
        iscsi.rescan(login)
    assert caught.value.sm_key == "ISCSIDevice"


@pytest.fixture
def endless_scan(world, kernel_of_files, monkeypatch):
    """Who tells the kernel to scan host 6 waits for as long as the test."""
    monkeypatch.setattr(iscsi_module, "_SCAN_SECONDS", 0.2)
    path = os.path.join(world.root, "sys/class/scsi_host/host6/scan")
    os.makedirs(os.path.dirname(path))
    os.mkfifo(path)
    yield
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))


@pytest.mark.processes
def test_a_scan_that_does_not_end_is_no_failure_and_what_it_brings_later_goes(world, endless_scan, caplog):
    put_session(world.root, 1, luns=(0,))
    caller = OpenIscsi(world.host, lock_seconds=1.0, deadline=Deadline(3600))
    login = caller.login(PORTAL, IQN, user=OURS)

    assert [lun.number for lun in caller.rescan(login).luns] == [0]
    assert "takes more than 0.2 seconds, and is not waited for" in caplog.text
    with iscsiadm_lock(world.host, 0):
        pass

    scan_brings(world, 1)
    world.answers["scan"]()
    caller.logout(login)
    assert removed(world, 1) == [1] and dead_notes(world.host) == []


def test_what_a_scan_may_still_bring_is_left_to_a_later_run(world, iscsi, monkeypatch):
    """The process that scans hangs in the kernel, and nothing has come yet."""
    put_session(world.root, 1, luns=(0,))
    login = iscsi.login(PORTAL, IQN, user=OURS)
    monkeypatch.setattr(iscsi_luns.Luns, "scan", given_up)
    iscsi.rescan(login)

    with monkeypatch.context() as patch, pytest.raises(Refused, match="Process 4711 of this call hangs"):
        patch.setattr(iscsi_module, "still_there", lambda session: [4711])
        iscsi.logout(login)
    login.note.close()

    scan_brings(world, 1)
    world.answers["scan"]()
    iscsi.recover()
    assert removed(world, 1) == [1] and dead_notes(world.host) == []


def given_up(_luns, session, _scsi_id):
    raise OutOfTime(f"before {session} was scanned for LUNs")


@pytest.mark.processes
def test_a_scan_that_uses_up_the_time_of_the_call_is_one(world, endless_scan):
    put_session(world.root, 1, luns=(0,))
    hurried = OpenIscsi(world.host, lock_seconds=1.0, deadline=Deadline(0.1))

    with pytest.raises(OutOfTime, match="before session 1 .* was scanned for LUNs"):
        hurried.rescan(OpenIscsi(world.host, lock_seconds=1.0).login(PORTAL, IQN, user=OURS))


# --- locks


def test_iscsiadm_runs_under_the_lock_of_sm(world, iscsi):
    def locked(argv):
        with pytest.raises(Refused, match="isciadm_running|running"):
            OpenIscsi(world.host, lock_seconds=0.0).discover(PORTAL)
        return transcript("discovery nonpersistent")

    world.answers["discovery"] = locked
    iscsi.discover(PORTAL)


# --- the daemon and the name


def test_a_daemon_that_listens_is_left_alone(world, iscsi):
    iscsi.iscsiadm.ensure_daemon()

    assert world.calls == []


@pytest.mark.parametrize("systemd", [True, False])
def test_a_daemon_that_does_not_listen_is_started(world, iscsi, systemd):
    world.daemon(False)
    if not systemd:
        os.rmdir(os.path.join(world.root, "run/systemd/system"))
        world.task_of = lambda argv: ("start", "session list", lambda argv: world.daemon(True))

    iscsi.iscsiadm.ensure_daemon()

    expected = ("systemctl", "start", "iscsid.service") if systemd else ("service", "iscsid", "start")
    assert world.calls == [expected]


def test_a_daemon_that_cannot_be_started_is_an_error(world, iscsi):
    world.daemon(False)
    world.answers["start"] = CommandFailed(["systemctl"], 5, "Unit iscsid.service not found.")

    with pytest.raises(CommandFailed, match="not found") as caught:
        iscsi.login(PORTAL, IQN)
    assert caught.value.sm_key == "ISCSIDaemon"


def test_a_daemon_that_does_not_listen_after_its_start_is_an_error(world, iscsi, monkeypatch):
    monkeypatch.setattr("relvmoiscsi.host.iscsi.iscsiadm.LISTEN_SECONDS", 0.1)
    world.daemon(False)
    world.answers["start"] = lambda argv: (0, "", "")

    with pytest.raises(NotFound, match="does not listen after 0.1 seconds") as caught:
        iscsi.iscsiadm.ensure_daemon()
    assert caught.value.sm_key == "ISCSIDaemon"


def test_without_proc_no_daemon_is_seen(world, iscsi):
    os.unlink(os.path.join(world.root, "proc/net/unix"))

    assert iscsi.iscsiadm.daemon_listens() is False


def test_the_name_of_this_host_is_read(world, iscsi):
    assert iscsi.iscsiadm.initiator_name() == INITIATOR
    put(world.root, "etc/iscsi/initiatorname.iscsi", "#InitiatorName=x\nInitiatorName = iqn.y \nInitiatorAlias=h\n")
    assert iscsi.iscsiadm.initiator_name() == "iqn.y"
    put(world.root, "etc/iscsi/initiatorname.iscsi", "InitiatorName=\n")
    assert iscsi.iscsiadm.initiator_name() is None


def test_only_another_name_has_to_be_given_with_the_login(iscsi):
    assert iscsi.iscsiadm.check_initiator(None) is None
    assert iscsi.iscsiadm.check_initiator(INITIATOR) is None
    assert iscsi.iscsiadm.check_initiator("iqn.other") == "iqn.other"


@pytest.mark.parametrize("wanted, sm_key", [(None, "ConfigISCSIIQNMissing"), ("iqn.x", "ISCSIInitiator")])
def test_a_host_without_a_name_is_refused(world, iscsi, wanted, sm_key):
    os.unlink(os.path.join(world.root, "etc/iscsi/initiatorname.iscsi"))

    with pytest.raises(Refused, match="has no iSCSI initiator name") as caught:
        iscsi.iscsiadm.check_initiator(wanted)
    assert caught.value.sm_key == sm_key


def test_a_name_that_cannot_be_read_is_refused(world, iscsi):
    path = os.path.join(world.root, "etc/iscsi/initiatorname.iscsi")
    os.unlink(path)
    os.makedirs(path)

    with pytest.raises(Refused, match="cannot be read: Is a directory"):
        iscsi.iscsiadm.initiator_name()


# --- notes


def test_a_line_that_was_cut_does_not_count(world, caplog):
    note = new_note(world.host, iqn=IQN, portal=list(PORTAL))
    note.add(sid=4)
    note.close()
    with open(note.path, "a") as file:
        file.write("not json\n" + '{"sid": 5')

    (found,) = dead_notes(world.host)
    assert (found["iqn"], found["sid"], found.portal) == (IQN, 4, PORTAL)
    assert "cannot be read" in caplog.text
    found.remove()


def test_a_note_that_was_cut_in_its_first_line_goes(world):
    path = put(world.root, "var/lib/relvmoiscsi/iscsi/1-0.json", '{"iqn": "iq')

    assert dead_notes(world.host) == []
    assert not os.path.exists(path)


def test_a_note_is_for_root_alone(world):
    note = new_note(world.host, iqn=IQN, portal=list(PORTAL))

    assert os.stat(note.path).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(note.path)).st_mode & 0o777 == 0o700
    note.remove()
    assert not os.path.exists(os.path.dirname(note.path))


def test_each_login_has_its_own_note(world):
    notes = [new_note(world.host, iqn=IQN, portal=list(PORTAL)) for _ in range(3)]

    assert len({note.path for note in notes}) == 3
    for note in notes:
        note.remove()


def test_a_note_that_somebody_removed_is_only_logged(world, caplog):
    note = new_note(world.host, iqn=IQN, portal=list(PORTAL))
    os.unlink(note.path)

    note.remove()

    assert "could not be removed" in caplog.text


def test_notes_that_cannot_be_written_stop_everything(world, iscsi):
    put(world.root, "var/lib/relvmoiscsi", "")
    calls = len(world.calls)

    with pytest.raises(Refused, match="which a cleanup after a crash needs"):
        iscsi.login(PORTAL, IQN)
    assert world.calls[calls:] == [DISCOVERY]


def test_a_note_that_cannot_be_added_to_is_refused(world, monkeypatch):
    note = new_note(world.host, iqn=IQN, portal=list(PORTAL))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Refused, match="No space left"):
        note.add(sid=1)
    note.remove()


def test_a_note_that_goes_while_it_is_looked_for_is_passed_over(world, monkeypatch):
    note = new_note(world.host, iqn=IQN, portal=list(PORTAL))
    names = os.listdir(os.path.dirname(note.path))
    note.remove()
    monkeypatch.setattr(os, "listdir", lambda path: names)

    assert dead_notes(world.host) == []


def test_a_note_that_cannot_be_opened_is_refused(world):
    os.makedirs(os.path.join(world.root, "var/lib/relvmoiscsi/iscsi/1-0.json"))

    with pytest.raises(Refused, match="Is a directory"):
        dead_notes(world.host)


def test_a_directory_of_notes_that_another_run_removes_is_made_again(world, monkeypatch):
    real, removed = os.open, []

    def open_after_another(path, flags, *mode):
        if not removed and path.endswith(".json"):
            removed.append(path)
            os.rmdir(os.path.dirname(path))
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", open_after_another)
    new_note(world.host, iqn=IQN, portal=list(PORTAL)).remove()

    assert removed


def test_a_note_that_was_taken_for_a_dead_one_before_its_first_line_is_made_again(world, monkeypatch):
    real, first = iscsi_notes.fcntl.flock, []

    def flock(descriptor, operation):
        if not first:
            first.append(descriptor)
            assert dead_notes(world.host) == []
        real(descriptor, operation)

    monkeypatch.setattr(iscsi_notes.fcntl, "flock", flock)
    note = new_note(world.host, iqn=IQN, portal=list(PORTAL))

    assert os.path.exists(note.path) and first
    note.remove()


def test_without_a_boot_id_sessions_are_told_by_their_number(world, iscsi):
    os.unlink(os.path.join(world.root, "proc/sys/kernel/random/boot_id"))
    dead_note(world, sid=1)
    put_session(world.root, 1)

    iscsi.recover()

    assert sids(world) == []


def test_a_note_that_there_is_room_for_half_of_is_none_and_keeps_what_it_had(world, monkeypatch):
    note = new_note(world.host, iqn=IQN, portal=list(PORTAL), user=None, created=True)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: len(data) // 2]))
        with pytest.raises(Refused, match="No space left on device. Make room there. Nothing was changed."):
            note.add(sid=7, marker=[1, 2])
    note.add(sid=8)
    note.close()

    (found,) = dead_notes(world.host)
    assert (found["iqn"], found["sid"], found["marker"]) == (IQN, 8, None)
    found.close()


def test_where_there_is_no_room_for_a_note_nothing_is_left(world, iscsi, monkeypatch):
    before = world.tree()

    def full(_descriptor, _data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(Refused, match="Make room there"):
            iscsi.login(PORTAL, IQN, user=OURS)

    assert world.tree() == before
