# SPDX-License-Identifier: LGPL-2.1-only
"""What calls bring is noted by LUN and kind; the entry of a map outlives a reboot, that of a scan does not."""

import json
import os

import pytest

from kit.vanishing import vanishing
from relvmoiscsi.errors import Refused
from relvmoiscsi.host.disk import cleanup_journal
from relvmoiscsi.host.disk.cleanup_journal import DIRECTORY, MAP, SCAN, forget, note, read, unattended
from relvmoiscsi.host.locks.sm_locks import lun_lock
from relvmoiscsi.host.this_host import Host

LUN, OTHER = "36001405aaaaaaaaaaaaaaaaaaaaaaaaa", "36001405bbbbbbbbbbbbbbbbbbbbbbbbb"


@pytest.fixture
def host(tmp_path):
    made = Host(str(tmp_path))
    boot(made, "first")
    return made


def boot(host, name):
    os.makedirs(host.at("proc/sys/kernel/random"), exist_ok=True)
    with open(host.at("proc/sys/kernel/random/boot_id"), "w", encoding="ascii") as file:
        file.write(name + "\n")


def files(host):
    return sorted(os.listdir(host.at(DIRECTORY)))


def test_what_was_there_is_noted_until_all_is_taken_back(host):
    assert read(LUN, SCAN, host) is None

    note(LUN, SCAN, ["1:0:0:0", "3:0:0:0"], host)
    assert read(LUN, SCAN, host) == ("first", ("1:0:0:0", "3:0:0:0"), False)
    assert read(LUN, MAP, host) is None and read(OTHER, SCAN, host) is None

    forget(LUN, SCAN, host)
    assert read(LUN, SCAN, host) is None
    assert not os.path.exists(host.at("var/lib/relvmoiscsi"))


def test_nothing_was_there_is_another_entry_than_none(host):
    note(LUN, SCAN, [], host)

    assert read(LUN, SCAN, host).there == ()


@pytest.mark.parametrize("kind, other", [(MAP, SCAN), (SCAN, MAP)])
def test_an_entry_comes_and_goes_beside_that_of_the_other_kind(host, kind, other):
    note(LUN, kind, ["sda"], host, had_wwid=True)
    note(LUN, other, [], host)
    forget(LUN, other, host)
    forget(LUN, other, host)

    assert read(LUN, kind, host) == ("first", ("sda",), True) and read(LUN, other, host) is None
    assert files(host) == [LUN]


def test_only_the_entry_of_a_map_outlives_a_reboot(host):
    note(LUN, MAP, ["sda"], host)
    note(LUN, SCAN, ["1:0:0:0"], host)

    boot(host, "second")

    assert read(LUN, MAP, host).boot == "first" and read(LUN, SCAN, host) is None
    note(LUN, SCAN, [], host)
    assert read(LUN, MAP, host).boot == "first", "what another entry says stays as it is"


def test_the_entry_of_a_map_is_durable_and_scans_of_many_luns_wait_for_no_disk(host, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)

    note(LUN, SCAN, [], host)
    assert not synced

    note(LUN, MAP, [], host)
    assert len(synced) == 2, "the file and its directory"


def test_the_entries_of_other_luns_stay(host):
    note(OTHER, SCAN, ["1:0:0:0"], host)

    forget(LUN, SCAN, host)

    assert read(OTHER, SCAN, host).there == ("1:0:0:0",)


def test_unattended_are_those_at_which_no_call_is(host):
    assert unattended(SCAN, host) == []
    note(LUN, SCAN, [], host)
    note(OTHER, SCAN, [], host)
    with open(host.at(f"{DIRECTORY}/{LUN}.12.new"), "wb"):
        pass  # of a call that was killed while it noted

    with lun_lock(OTHER, host):
        assert unattended(SCAN, host) == [LUN] and unattended(MAP, host) == []
    assert unattended(SCAN, host) == [LUN, OTHER]

    forget(LUN, SCAN, host)
    assert files(host) == [OTHER]


@pytest.mark.parametrize("content", ["[]", "{", '{"scan": 1}', '{"scan": {"boot": "first", "had_wwid": false}}'])
def test_an_entry_that_cannot_be_read_counts_as_none_and_is_told(host, caplog, content):
    os.makedirs(host.at(DIRECTORY))
    with open(host.at(f"{DIRECTORY}/{LUN}"), "w", encoding="ascii") as file:
        file.write(content)

    assert read(LUN, SCAN, host) is None
    assert f"{LUN} cannot be read; it is passed over" in caplog.text


def test_a_call_that_removes_the_directory_at_this_moment_is_no_obstacle(host):
    with vanishing(2):
        note(LUN, MAP, [], host)

    assert files(host) == [LUN]


@pytest.mark.parametrize("kind", [MAP, SCAN])
def test_an_entry_that_cannot_be_written_is_a_refusal(host, kind):
    os.makedirs(host.at("var/lib"))
    with open(host.at("var/lib/relvmoiscsi"), "w", encoding="ascii"):
        pass

    with pytest.raises(Refused, match="which a cleanup after a crash needs, cannot be used.*Nothing was written"):
        note(LUN, kind, [], host)


def test_the_format_is_json_that_a_person_can_read(host):
    note(LUN, SCAN, ["1:0:0:0"], host)

    with open(os.path.join(host.at(cleanup_journal.DIRECTORY), LUN), encoding="ascii") as file:
        assert json.load(file) == {"scan": {"boot": "first", "had_wwid": False, "there": ["1:0:0:0"]}}
