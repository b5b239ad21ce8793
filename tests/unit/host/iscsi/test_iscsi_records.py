# SPDX-License-Identifier: LGPL-2.1-only
"""Records of open-iscsi's database: found, edited line by line, put back byte for byte, under its own lock."""

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.iscsi_world import IQN, PORTAL, put, record_text
from relvmoiscsi.errors import Refused, UsageError
from relvmoiscsi.host.iscsi import records
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.iscsi.records import (
    Record,
    break_stale_lock,
    database_lock,
    discovery_record,
    lasting_directories,
    node_records,
    put_back,
    read_record,
    remove_record,
    settings_in,
    with_settings,
    write_record,
)
from relvmoiscsi.host.this_host import Host

RECORD = record_text().encode()
METHOD, USER, SECRET = ("node.session.auth." + name for name in ("authmethod", "username", "password"))
CHAP = {METHOD: "CHAP", USER: "alice", SECRET: "secretsecret1"}
NAMES = sorted(CHAP)
PLACE = f"var/lib/iscsi/nodes/{IQN}/127.0.0.1,3260,1/default"


@pytest.fixture
def root(tmp_path):
    return str(tmp_path)


def nodes(root, name, database="etc/iscsi"):
    return os.path.join(root, database, "nodes", IQN, name)


# --- finding


@pytest.mark.parametrize("database", ["etc/iscsi", "var/lib/iscsi"])
def test_both_forms_of_a_record_are_found_in_either_database(root, database):
    plain = put(root, nodes("", "127.0.0.1,3260", database), RECORD)
    bound = put(root, nodes("", "127.0.0.1,3260,1/default", database), RECORD)
    other = put(root, nodes("", "127.0.0.1,3260,1/c_eth1", database), RECORD)

    assert node_records(Host(root), IQN, PORTAL) == [
        Record(plain, None, ""),
        Record(bound, 1, "default"),
        Record(other, 1, "c_eth1"),
    ]


def test_a_record_is_selected_by_its_interface():
    assert Record("/x", None, "").selection == ["-I", "default"]
    assert Record("/x", 1, "c_eth1").selection == ["-I", "c_eth1"]


def test_records_of_other_portals_and_targets_are_not_found(root):
    put(root, nodes("", "127.0.0.1,3261"), RECORD)
    put(root, nodes("", "127.0.0.2,3260,1/default"), RECORD)
    put(root, nodes("", "127.0.0.1,x"), RECORD)
    put(root, "etc/iscsi/nodes/iqn.other/127.0.0.1,3260", RECORD)

    assert node_records(Host(root), IQN, PORTAL) == []


def test_an_ipv6_record_is_found_however_the_address_is_written(root):
    path = put(root, nodes("", "fd00::1,3260,2/default"), RECORD)

    assert node_records(Host(root), IQN, Portal("FD00:0::1", 3260)) == [Record(path, 2, "default")]


def test_the_discovery_record_of_a_portal_is_found(root):
    path = put(root, "etc/iscsi/send_targets/127.0.0.1,3260/st_config", "")
    put(root, "etc/iscsi/send_targets/127.0.0.1,3261/st_config", "")
    put(root, "etc/iscsi/send_targets/127.0.0.1,x/st_config", "")

    assert discovery_record(Host(root), PORTAL) == path
    assert discovery_record(Host(root), Portal("127.0.0.9", 3260)) is None


# --- editing


def test_settings_are_changed_in_place_and_added_at_the_end():
    changed = with_settings(RECORD, CHAP)

    before, after = RECORD.splitlines(), changed.splitlines()
    place = before.index(b"node.session.auth.authmethod = None")
    assert after[place] == b"node.session.auth.authmethod = CHAP"
    assert after[:place] == before[:place]
    assert after[-3:] == [
        b"node.session.auth.username = alice",
        b"node.session.auth.password = secretsecret1",
        b"# END RECORD",
    ]
    assert after[place + 1 : -3] == before[place + 1 : -1]


def test_taking_settings_out_again_gives_the_record_as_it_was():
    assert with_settings(with_settings(RECORD, CHAP), settings_in(RECORD, NAMES)) == RECORD


def test_unknown_lines_and_comments_stay():
    text = b"# a comment = x\nodd\n\n  strange.key   =   kept \n" + RECORD

    assert with_settings(text, CHAP).startswith(b"# a comment = x\nodd\n\n  strange.key   =   kept \n# BEGIN RECORD")


def test_a_record_without_an_end_gets_settings_at_its_end():
    assert with_settings(b"a = 1", {"b": "2"}) == b"a = 1\nb = 2\n"
    assert with_settings(b"", {"b": "2"}) == b"b = 2\n"


def test_settings_are_read_as_open_iscsi_reads_them():
    text = b" a =  1 2 \nb=x = y\n# c = 3\nd =\n"

    assert settings_in(text, ["a", "b", "c", "d", "e"]) == {"a": "1 2", "b": "x = y", "c": None, "d": "", "e": None}


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=255))
def test_every_printable_secret_comes_back(secret):
    assert settings_in(with_settings(RECORD, {SECRET: secret}), [SECRET]) == {SECRET: secret}


@given(st.binary(max_size=400))
def test_other_lines_survive_whatever_they_are(content):
    kept = b"".join(line for line in content.splitlines(True) if not line.strip().startswith(b"node.session.auth"))

    assert with_settings(kept + RECORD, {}) == kept + RECORD


@pytest.mark.parametrize("value", ["", " x", "x ", "x\n", "a\nb", "a\0b", "x" * 256, "é" * 128])
def test_a_value_that_a_record_cannot_hold_is_refused_and_not_shown(value):
    with pytest.raises(UsageError, match="which open-iscsi cannot take") as caught:
        with_settings(RECORD, {SECRET: value})
    assert not value.strip() or value not in str(caught.value)


# --- writing


def files_in(root):
    return sorted(
        os.path.relpath(os.path.join(place, name), root) for place, _, names in os.walk(root) for name in names
    )


def test_a_record_is_written_for_root_alone(root):
    path = put(root, PLACE, RECORD, 0o644)

    write_record(path, b"short\n")

    assert read_record(path) == b"short\n"
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert files_in(root) == [PLACE]


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_a_record_whose_write_fails_is_the_old_one(root, monkeypatch, step):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    path = put(root, PLACE, RECORD)
    monkeypatch.setattr(os, step, full)
    with pytest.raises(Refused, match="No space left on device"):
        write_record(path, b"short\n")

    assert read_record(path) == RECORD
    assert files_in(root) == [PLACE]


@pytest.mark.parametrize("step", ["write", "put back", "remove"])
def test_what_a_run_has_left_that_was_killed_while_it_wrote_goes(root, step):
    path = put(root, PLACE, RECORD)
    left = put(root, "var/lib/iscsi/.relvmoiscsi-record", with_settings(RECORD, CHAP)[:100])

    if step == "write":
        write_record(path, with_settings(RECORD, CHAP))
    elif step == "put back":
        put_back(path, RECORD, 0o600, NAMES)
    else:
        remove_record(path, [os.path.join(root, "var/lib/iscsi/nodes")])

    assert not os.path.exists(left)


@pytest.mark.parametrize("left", [b"", with_settings(RECORD, CHAP)[:200]], ids=["empty", "cut"])
def test_of_a_record_whose_write_was_cut_nothing_stays(root, left):
    path = put(root, PLACE, left)

    put_back(path, RECORD, 0o600, NAMES)

    assert read_record(path) == RECORD


def test_a_record_that_is_gone_is_none_and_cannot_be_written(root):
    assert read_record(os.path.join(root, PLACE)) is None
    with pytest.raises(Refused, match="cannot be used: No such file"):
        write_record(os.path.join(root, PLACE), b"")


def test_a_record_that_cannot_be_read_is_refused(root):
    with pytest.raises(Refused, match="cannot be used: Is a directory") as caught:
        read_record(root)
    assert caught.value.sm_key == "ISCSIQueryDaemon"


@pytest.mark.parametrize(
    "before",
    [RECORD, RECORD.replace(b"# END", b"node.session.auth.username =olduser\n# END"), b"", b"no newline"],
    ids=["as made", "other form", "empty", "no newline"],
)
def test_a_record_is_put_back_byte_for_byte(root, before):
    path = put(root, PLACE, before, 0o640)
    write_record(path, with_settings(before, CHAP))

    put_back(path, before, 0o640, NAMES)
    put_back(path, before, 0o640, NAMES)

    assert read_record(path) == before
    assert os.stat(path).st_mode & 0o777 == 0o640


def test_what_another_program_changed_stays_and_our_secret_goes(root):
    path = put(root, PLACE, RECORD)
    write_record(path, with_settings(with_settings(RECORD, CHAP), {"node.startup": "automatic"}))

    put_back(path, RECORD, 0o600, NAMES)

    assert read_record(path) == RECORD.replace(b"node.startup = manual", b"node.startup = automatic")


def test_a_record_that_another_program_removed_is_not_made_again(root):
    path = os.path.join(root, PLACE)

    put_back(path, RECORD, 0o600, NAMES)

    assert not os.path.exists(path)


# --- removing


def test_a_record_goes_with_the_directories_it_came_with(root):
    os.makedirs(os.path.join(root, "etc/iscsi"))
    lasting = lasting_directories(Host(root), "nodes")
    path = put(root, nodes("", "127.0.0.1,3260,1/default"), RECORD)

    remove_record(path, lasting)

    assert os.listdir(os.path.join(root, "etc/iscsi")) == []


def test_directories_of_the_database_and_such_as_are_used_stay(root):
    os.makedirs(os.path.join(root, "etc/iscsi/nodes/iqn.empty"))
    lasting = lasting_directories(Host(root), "nodes")
    ours, other = (put(root, nodes("", name), RECORD) for name in ("127.0.0.1,3260", "127.0.0.2,3260"))

    remove_record(ours, lasting)
    assert os.path.exists(other)
    remove_record(other, lasting)
    assert os.listdir(os.path.join(root, "etc/iscsi/nodes")) == ["iqn.empty"]


def test_a_directory_goes_with_its_last_record_whoever_made_it(root):
    os.makedirs(os.path.join(root, "etc/iscsi/nodes"))
    other = put(root, nodes("", "127.0.0.2,3260"), RECORD)
    lasting = lasting_directories(Host(root), "nodes")
    ours = put(root, nodes("", "127.0.0.1,3260"), RECORD)
    os.unlink(other)

    remove_record(ours, lasting)

    assert os.listdir(os.path.join(root, "etc/iscsi/nodes")) == []


def test_a_record_that_a_discovery_has_made_its_own_stays(root):
    path = put(root, nodes("", "127.0.0.1,3260/default"), RECORD)

    remove_record(os.path.dirname(path), [])

    assert os.path.exists(path)


def test_a_record_that_is_gone_is_fine(root):
    remove_record(os.path.join(root, PLACE), [root])


def test_a_record_that_cannot_be_removed_is_refused(root, monkeypatch):
    def denied(path):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "unlink", denied)
    with pytest.raises(Refused, match="Operation not permitted"):
        remove_record(put(root, PLACE, ""), [])


# --- the lock


def lock_files(root):
    directory = os.path.join(root, "run/lock/iscsi")
    return sorted(os.listdir(directory)) if os.path.isdir(directory) else []


def test_the_lock_is_a_link_as_open_iscsi_makes_it(root):
    told = []
    with database_lock(Host(root), changed=told.append):
        assert lock_files(root) == ["lock", "lock.write"]
        assert told == [True]

    assert lock_files(root) == ["lock"]
    assert told == [True, False]


def test_iscsiadm_is_waited_for(root):
    with database_lock(Host(root)):
        taken = threading.Event()

        def wait():
            with database_lock(Host(root)):
                taken.set()

        thread = threading.Thread(target=wait)
        thread.start()
        assert not taken.wait(0.1)
    assert taken.wait(10)
    thread.join()


def test_a_lock_that_stays_taken_is_refused(root):
    with database_lock(Host(root)), pytest.raises(Refused) as caught, database_lock(Host(root), timeout=0.05):
        pytest.fail("taken twice")
    assert "lock.write of open-iscsi's database is taken" in str(caught.value)
    assert caught.value.sm_key == "ISCSIQueryDaemon"


def test_a_stale_lock_is_broken(root):
    put(root, "run/lock/iscsi/lock.write", "")

    break_stale_lock(Host(root), 0.06)
    break_stale_lock(Host(root), 0.06)

    with database_lock(Host(root), timeout=0):
        pass


def test_a_lock_that_changes_hands_is_not_stale(root):
    put(root, "run/lock/iscsi/lock.write", "")
    done = threading.Event()

    def busy():
        while not done.wait(0.02):
            os.chmod(os.path.join(root, "run/lock/iscsi/lock.write"), 0o600)  # a new ctime

    thread = threading.Thread(target=busy)
    thread.start()
    break_stale_lock(Host(root), 0.5)
    done.set()
    thread.join()

    assert lock_files(root) == ["lock.write"]


def test_who_did_not_get_the_lock_does_not_hold_it(root):
    told = []
    with database_lock(Host(root)), pytest.raises(Refused), database_lock(Host(root), 0.0, told.append):
        pytest.fail("taken twice")

    assert told == [True, False]


def test_an_older_open_iscsi_has_its_lock_elsewhere(root):
    os.makedirs(os.path.join(root, "run/lock"))
    os.makedirs(os.path.join(root, "var/lock/iscsi"))

    with database_lock(Host(root)):
        assert sorted(os.listdir(os.path.join(root, "var/lock/iscsi"))) == ["lock", "lock.write"]


def test_a_lock_that_cannot_be_made_is_refused(root):
    put(root, "run", "")

    with pytest.raises(Refused, match="Not a directory"), database_lock(Host(root)):
        pytest.fail("locked")


def test_the_names_of_this_module_are_what_iscsiadm_uses():
    assert records.DATABASES == ("var/lib/iscsi", "etc/iscsi")
    assert records.LOCK_DIRECTORIES == ("run/lock/iscsi", "var/lock/iscsi")
