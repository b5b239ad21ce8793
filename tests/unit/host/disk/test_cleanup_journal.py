# SPDX-License-Identifier: LGPL-2.1-only
"""What there was before a scan is written down by LUN, until the scan's disks are gone or the host restarts."""

import json
import os

import pytest

from kit.vanishing import vanishing
from relvmoiscsi.errors import Refused
from relvmoiscsi.host.disk.cleanup_journal import DIRECTORY, forget, note, read, unattended
from relvmoiscsi.host.locks.lun_lock import lun_lock
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


def put(host, content, name=LUN):
    os.makedirs(host.at(DIRECTORY))
    with open(host.at(f"{DIRECTORY}/{name}"), "w", encoding="ascii") as file:
        file.write(content)


def test_an_entry_is_there_until_it_is_forgotten_or_the_host_restarts(host):
    assert read(LUN, host) is None
    note(OTHER, [], host)
    note(LUN, ["1:0:0:0", "3:0:0:0"], host)

    assert read(LUN, host) == ("1:0:0:0", "3:0:0:0")
    assert read(OTHER, host) == (), "nothing was there: another entry than none"
    with open(os.path.join(host.at(DIRECTORY), LUN), encoding="ascii") as file:
        assert json.load(file) == {"boot": "first", "there": ["1:0:0:0", "3:0:0:0"]}

    forget(LUN, host)
    assert read(LUN, host) is None and files(host) == [OTHER]
    boot(host, "second")
    assert read(OTHER, host) is None
    forget(OTHER, host)
    assert not os.path.exists(host.at("var/lib/relvmoiscsi"))


def test_unattended_are_the_luns_on_which_no_call_works(host):
    assert unattended(host) == []
    note(LUN, [], host)
    note(OTHER, [], host)
    with open(host.at(f"{DIRECTORY}/{LUN}.12.new"), "wb"):
        pass  # of a call that was killed while it made an entry

    with lun_lock(OTHER, host):
        assert unattended(host) == [LUN]
    assert unattended(host) == [LUN, OTHER]

    forget(LUN, host)
    assert files(host) == [OTHER]


@pytest.mark.parametrize("content", ["[]", "{", '{"boot": "first"}', '{"boot": "first", "there": 1}'])
def test_an_entry_that_cannot_be_read_counts_as_none_and_is_told(host, caplog, content):
    put(host, content)

    assert read(LUN, host) is None
    assert f"{LUN} cannot be read and is ignored" in caplog.text


def test_a_call_that_removes_the_directory_at_this_moment_is_no_obstacle(host):
    with vanishing(2):
        note(LUN, [], host)

    assert files(host) == [LUN]


def test_an_entry_that_cannot_be_written_is_a_refusal(host):
    os.makedirs(host.at("var/lib"))
    with open(host.at("var/lib/relvmoiscsi"), "w", encoding="ascii"):
        pass

    with pytest.raises(Refused, match="clean-up journal .* cannot be written: .*Nothing was written"):
        note(LUN, [], host)
