# SPDX-License-Identifier: LGPL-2.1-only
"""A login and its logout leave the host as it was, with records that were there and when it fails."""

import os

import pytest

from kit.iscsi_runs import (
    ALICE,
    BOB,
    DISCOVERY,
    NODE,
    OURS,
    PLAIN_RECORD,
    THERE,
    reference,
    sids,
)
from kit.iscsi_world import (
    IQN,
    PORTAL,
    put_session,
)
from relvmoiscsi.errors import CommandFailed, NotFound, Refused, UsageError
from relvmoiscsi.host.command import TIMED_OUT
from relvmoiscsi.host.iscsi.iscsiadm import Credentials
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.iscsi.records import settings_in
from relvmoiscsi.host.iscsi.status import IscsiFailed

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
