# SPDX-License-Identifier: LGPL-2.1-only
"""What the product makes on a host has its own modes, whatever the umask of xapi, of cron or of a person."""

import os
import stat

import pytest

from relvmoiscsi.cli.map_out import MapFile
from relvmoiscsi.errors import Refused
from relvmoiscsi.host.config_file import replace_config
from relvmoiscsi.host.disk import cleanup_journal, hiding
from relvmoiscsi.host.locks.lun_lock import lun_lock
from relvmoiscsi.host.locks.lvm_locks import lvm_locks
from relvmoiscsi.host.locks.sm_locks import LVM_LOCK, lvm_lock
from relvmoiscsi.host.run_directory import only_one
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.host.xapi import whitelist

LUN = "36001405aaaaaaaaaaaaaaaaaaaaaaaaa"


def modes(top):
    """The modes of all that is below a directory, without what was there: {name: mode}."""
    found = {}
    for directory, directories, files in os.walk(str(top)):
        for name in directories + files:
            path = os.path.join(directory, name)
            found[os.path.relpath(path, str(top))] = stat.S_IMODE(os.stat(path).st_mode)
    return found


def journal(host):
    cleanup_journal.note(LUN, ["1:0:0:0"], host)
    return modes(host.root)


def lock_of_sm(host):
    with lvm_lock(host):
        return modes(host.root)


def lock_of_lvm(host):
    os.mkdir(host.at("lvm"))
    os.chmod(host.at("lvm"), 0o755)
    with lvm_locks(["group"], host.at("lvm")):
        return modes(host.root)


def lock_of_lun(host):
    with lun_lock(LUN, host):
        return modes(host.root)


def lock_of_settings(host):
    with only_one("settings.lock", host, 1, "It is changed by"):
        return modes(host.root)


def switch(host):
    with hiding.hidden(LUN, host):
        return modes(host.root)


def settings(host):
    os.mkdir(host.at("etc"))
    os.chmod(host.at("etc"), 0o755)
    replace_config(host.config, "[direct]\n")
    return modes(host.root)


def drop_in(host):
    os.mkdir(host.at("etc"))
    os.chmod(host.at("etc"), 0o755)
    with open(host.at("etc/xapi.conf"), "wb") as file:
        file.write(b"sm-plugins=ext lvmoiscsi\n")
    os.chmod(host.at("etc/xapi.conf"), 0o644)
    assert whitelist.sync(host)[0]
    return modes(host.root)


def new_map(host):
    assert MapFile(host.at("map.json"), "pool attach --map-out").finish({"attached_srs": []}, "look")
    return modes(host.root)


CLEANUP = cleanup_journal.DIRECTORY
#: what is made: (by what, the modes of directories and files; a directory of the system has 0755)
MADE = {
    "clean-up journal": (journal, {"var/lib/relvmoiscsi": 0o700, CLEANUP: 0o700, f"{CLEANUP}/{LUN}": 0o600}),
    "SM's lock": (lock_of_sm, {"var/lock/sm": 0o755, "var/lock/sm/.nil": 0o755, LVM_LOCK: 0o600}),
    "LVM's lock": (lock_of_lvm, {"lvm/V_group": 0o600}),
    "lock of a LUN": (
        lock_of_lun,
        {"run/relvmoiscsi": 0o700, "run/relvmoiscsi/locks": 0o700, f"run/relvmoiscsi/locks/{LUN}": 0o600},
    ),
    "lock of the settings": (lock_of_settings, {"run/relvmoiscsi": 0o700, "run/relvmoiscsi/settings.lock": 0o600}),
    "switch": (switch, {"run/relvmoiscsi/hide": 0o700, f"run/relvmoiscsi/hide/{LUN}": 0o600}),
    "settings": (settings, {"etc/relvmoiscsi.conf": 0o644}),
    "drop-in of xapi": (
        drop_in,
        {"etc/xapi.conf.d": 0o755, "etc/xapi.conf": 0o644, "etc/xapi.conf.d/zz-relvmoiscsi.conf": 0o644},
    ),
    "map": (new_map, {"map.json": 0o600}),
}


@pytest.mark.parametrize("umask", [0, 0o777, 0o022], ids=oct)
@pytest.mark.parametrize("what", MADE)
def test_the_mode_of_a_file_is_not_for_the_umask_to_say(tmp_path, what, umask):
    make, wanted = MADE[what]
    for above in ("var", "var/lib", "var/lock", "run"):
        (tmp_path / above).mkdir()
    before = os.umask(umask)
    try:
        made = make(Host(str(tmp_path)))
    finally:
        os.umask(before)
    assert {name: oct(made.get(name, 0)) for name in wanted} == {name: oct(mode) for name, mode in wanted.items()}
    assert [name for name, mode in made.items() if mode & 0o022] == [], "nothing is for others to change"


@pytest.mark.parametrize("place", ["var/lib/relvmoiscsi", CLEANUP])
def test_a_journal_where_others_can_write_is_neither_believed_nor_written(tmp_path, place, caplog):
    host = Host(str(tmp_path))
    cleanup_journal.note(LUN, ["1:0:0:0"], host)
    assert cleanup_journal.read(LUN, host) is not None
    os.chmod(host.at(place), 0o777)

    assert cleanup_journal.read(LUN, host) is None and "is ignored: other users can change" in caplog.text
    with pytest.raises(Refused, match="is not safe: other users can change the directory .*Nothing was written"):
        cleanup_journal.note(LUN, [], host)
