# SPDX-License-Identifier: LGPL-2.1-only
"""Runs on the host of iscsi_world.py: who uses it, and what they leave there."""

import os
from pathlib import Path

from kit.iscsi_world import IQN, PORTAL, put, record_text
from relvmoiscsi.host.iscsi.iscsiadm import Credentials
from relvmoiscsi.host.iscsi.notes import new_note
from relvmoiscsi.host.iscsi.sessions import sessions

OURS = "11111111-2222-3333-4444-555555555551"
THEIRS = "99999999-2222-3333-4444-555555555559"
ALICE = Credentials("alice", "secretsecret1")
BOB = Credentials("bob", "othersecret22")
PLAIN_RECORD = "nodes/{}/127.0.0.1,3260"
NODE = ("iscsiadm", "-m", "node", "-T", IQN, "-p", "127.0.0.1:3260")
DISCOVERY = ("iscsiadm", "-m", "discovery", "-t", "st", "-p", "127.0.0.1:3260", "-I", "default", "-o", "nonpersistent")
THERE = record_text().replace(
    "# END", "node.session.auth.username = olduser\nnode.session.auth.password = oldsecret4\n# END"
)
MOUNTED_IN_ANOTHER_NAMESPACE = "41 40 8:48 / /srv/data rw - ext4 /dev/sdd rw\n"


class Killed(BaseException):
    """What ends a run without its cleanup, as SIGKILL does."""


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


def patience(world, sid=1):
    with open(os.path.join(world.root, f"sys/class/iscsi_session/session{sid}/recovery_tmo")) as file:
        return file.read().strip()


def dead_note(world, **facts):
    """The note of a run that was killed."""
    note = new_note(world.host, iqn=IQN, portal=list(PORTAL), user=None, created=True)
    note.add(**facts)
    note.close()


def removed(world, *luns, sid=1):
    """Those of the LUNs that were taken off the host."""
    paths = {number: f"sys/bus/scsi/devices/{sid + 5}:0:0:{number}/delete" for number in luns}
    return [number for number, path in paths.items() if Path(world.root, path).read_text() == "1"]


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
