# SPDX-License-Identifier: LGPL-2.1-only
"""A host with open-iscsi for the tests: files below a directory, and an iscsiadm that answers from transcripts.

What iscsiadm says and how it ends comes from transcripts/iscsiadm-2.1.8.json; what it leaves behind (records, sessions
in sysfs) is what the real one left, from the other files there.
"""

import base64
import json
import os
import shutil
from functools import partial
from pathlib import Path

from relvmoiscsi.errors import CommandFailed
from relvmoiscsi.host.command import Completed
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.this_host import Host

DATA = Path(__file__).resolve().parents[1] / "data" / "transcripts"
IQN = "iqn.2026-01.test:open"
CHAP_IQN = "iqn.2026-01.test:chap"
PORTAL = Portal("127.0.0.1", 3260)
INITIATOR = "iqn.2026-01.test:init"


def transcript(label):
    """What iscsiadm said: (exit status, standard output, standard error)."""
    calls = json.loads((DATA / "iscsiadm-2.1.8.json").read_text(encoding="utf-8"))
    (call,) = [call for call in calls if call["label"] == label]
    return (
        call["status"],
        "".join(line + "\n" for line in call["stdout"]),
        "".join(line + "\n" for line in call["stderr"]),
    )


def record_text(kind="node", iqn=IQN):
    return (DATA / f"{kind}-record-2.1.8.txt").read_text(encoding="utf-8").replace(IQN, iqn)


def put(root, path, content, mode=0o600):
    path = os.path.join(root, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode("utf-8"))
    os.chmod(path, mode)
    return path


def put_session(root, sid=1, iqn=IQN, portal=PORTAL, luns=(0, 1, 2, 7), **attributes):
    """The captured session under another number, host `sid` + 5; "" for an attribute removes it."""
    captured = json.loads((DATA / "sysfs.json").read_text(encoding="utf-8"))
    sysfs = os.path.join(root, "sys")

    def renamed(text):
        for old, new in (("session1", "session{}"), ("connection1:", "connection{}:")):
            text = text.replace(old, new.format(sid))
        text = text.replace("host6", f"host{sid + 5}").replace("target6:", f"target{sid + 5}:")
        text = text.replace("/6:0:0:", f"/{sid + 5}:0:0:")
        return text if sid == 1 else text.replace("/sd", "/sd" + chr(ord("a") + sid))

    def wanted(path):
        number = path.split("0:0:")[1].split("/")[0] if "0:0:" in path else None
        return number is None or int(number) in luns

    blocks = {"sda": 0, "sdb": 2, "sdc": 1, "sdd": 7}
    for path, content in captured["files"].items():
        if wanted(path):
            put(sysfs, renamed(path), content if isinstance(content, str) else base64.b64decode(content["base64"]))
    for path, target in captured["links"].items():
        if wanted(path) and blocks.get(os.path.basename(path), luns[0] if luns else 0) in (*luns, 0):
            link = os.path.join(sysfs, renamed(path))
            if path.startswith("block/") and blocks[os.path.basename(path)] not in luns:
                continue
            os.makedirs(os.path.dirname(link), exist_ok=True)
            if os.path.lexists(link):
                os.unlink(link)
            os.symlink(renamed(target), link)
    device = os.path.join(sysfs, f"devices/platform/host{sid + 5}/session{sid}")
    for number in luns:
        address = f"{sid + 5}:0:0:{number}"
        link = os.path.join(sysfs, "bus/scsi/devices", address)
        os.makedirs(os.path.dirname(link), exist_ok=True)
        if not os.path.lexists(link):
            os.symlink(os.path.join(device, f"target{sid + 5}:0:0", address), link)
    connection = os.path.join(device, f"connection{sid}:0/iscsi_connection/connection{sid}:0")
    values = {
        f"iscsi_session/session{sid}/targetname": iqn,
        connection + "/address": portal.address,
        connection + "/port": str(portal.port),
        connection + "/persistent_address": portal.address,
        connection + "/persistent_port": str(portal.port),
    }
    for name, value in attributes.items():
        directory = connection if "address" in name or "port" in name else f"iscsi_session/session{sid}"
        values[os.path.join(directory, name)] = value
    for path, value in values.items():
        if value:
            put(device, path, value + "\n")
        else:
            os.unlink(os.path.join(device, path))
    return device


def remove_session(root, sid=1):
    sysfs = os.path.join(root, "sys")
    os.unlink(os.path.join(sysfs, f"class/iscsi_session/session{sid}"))
    os.unlink(os.path.join(sysfs, f"class/iscsi_connection/connection{sid}:0"))
    shutil.rmtree(os.path.join(sysfs, f"devices/platform/host{sid + 5}/session{sid}"))


def tree(root):
    """Every file and directory below `root` with mode and content, but for sysfs, /proc and SM's lock files.

    A file of SM's references in which no line is left is none: SM removes it when it detaches an SR.
    """
    found = {}
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if os.path.join(directory, name) not in ignored(root)]
        for name in files:
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                content = file.read()
            if content.strip() or not directory.endswith("/sr-ref"):
                found[os.path.relpath(path, root)] = (oct(os.stat(path).st_mode), content)
        found[os.path.relpath(directory, root)] = oct(os.stat(directory).st_mode)
    for made_for_locks in ("var/lock", "run/lock", "var/run/sr-ref"):
        found.pop(made_for_locks, None)
    return found


def ignored(root):
    return [os.path.join(root, name) for name in ("sys", "proc", "var/lock/sm", "run/lock/iscsi")]


class World:
    """The host, and `run` as command.run does it."""

    def __init__(self, root, database="etc/iscsi"):
        self.root = str(root)
        self.host = Host(self.root, self.run)
        self.database = database
        self.calls = []
        self.told = []  # the kernel: (switch below sysfs, text)
        self.answers = {}  # label of a transcript, exception or callable, by "login", "logout", ...
        self.sid = 0
        self.coming = []  # sessions that iscsid has yet to make
        self.holders = []  # links from disks to the map over them
        self.records_at_login = []
        self.daemon(True)
        put(self.root, "etc/iscsi/initiatorname.iscsi", f"## comment\nInitiatorName={INITIATOR}\n")
        put(self.root, "proc/sys/kernel/random/boot_id", "one\n")
        for name in ("var/lib", "var/run", "run/lock", "run/systemd/system", self.database):
            os.makedirs(os.path.join(self.root, name), exist_ok=True)

    def daemon(self, listens):
        line = (
            "0000000000000000: 00000002 00000000 00010000 0001 01 4711 @ISCSIADM_ABSTRACT_NAMESPACE\n"
            if listens
            else ""
        )
        put(self.root, "proc/net/unix", "Num       RefCount Protocol Flags    Type St Inode Path\n" + line)

    def tree(self):
        return tree(self.root)

    def run(self, argv, accept=(0,), timeout=120.0, secrets=()):
        self.calls.append(tuple(argv))
        self.timeout, self.secrets = timeout, tuple(secrets)
        assert "" not in argv
        status, stdout, stderr = self.answer(list(argv))
        if status not in accept:
            raise CommandFailed(argv, status, stderr)
        return Completed(status, stdout, stderr)

    def answer(self, argv):
        task, usual, effect = self.task_of(argv)
        answer = self.answers.get(task, usual)
        if callable(answer):
            return answer(argv)
        if isinstance(answer, Exception):
            raise answer
        found = transcript(answer)
        if found[0] == 0:
            effect(argv)
        return found

    def task_of(self, argv):
        if argv[0] == "systemctl":
            return "start", "session list", lambda argv: self.daemon(True)
        if argv[0] == "multipath":
            effect = {"-f": lambda argv: self.remove_map(), "-w": lambda argv: self.cross_out(argv[2])}[argv[1]]
            return argv[0] + " " + argv[1], "session list", effect
        assert argv[0] == "iscsiadm"
        if argv[1:3] == ["-m", "discovery"]:
            return "discovery", "discovery nonpersistent", lambda argv: None
        if argv[1:3] == ["-m", "discoverydb"]:
            if argv[-1] == "new":
                return "new discovery record", "discoverydb new", self.make_discovery_record
            return "discovery with CHAP", "discoverydb chap", lambda argv: None
        if argv[1:3] == ["-m", "node"]:
            if argv[-1] == "-l":
                return "login", "login", self.log_in
            return "new record", "new without iscsid", self.make_record
        assert argv[1:3] == ["-m", "session"]
        return "logout", "logout by sid", lambda argv: remove_session(self.root, int(argv[4]))

    def scan(self, switch, text):
        """What the kernel does when it is told to scan, before the writer goes on: "scan" of the answers."""
        self.told.append((os.path.relpath(switch, os.path.join(self.root, "sys")), text))
        if switch.endswith("/scan") and "scan" in self.answers:
            self.answers["scan"]()

    def put_map(self, scsi_id, paths):
        """A multipath map over disks of a session: (its device, address, disk) each."""
        put(self.root, "sys/block/dm-3/dm/uuid", f"mpath-{scsi_id}\n")
        put(self.root, "sys/block/dm-3/dm/name", scsi_id + "\n")
        put(self.root, "sys/block/dm-3/dev", "253:3\n")
        for device, address, disk in paths:
            target = "target" + address.rpartition(":")[0]
            holder = f"{device}/{target}/{address}/block/{disk}/holders/dm-3"
            os.makedirs(os.path.dirname(holder), exist_ok=True)
            os.symlink(os.path.join(self.root, "sys/block/dm-3"), holder)
            self.holders.append(holder)

    def remove_map(self):
        shutil.rmtree(os.path.join(self.root, "sys/block/dm-3"))
        while self.holders:
            os.unlink(self.holders.pop())

    def cross_out(self, scsi_id):
        path = os.path.join(self.root, "etc/multipath/wwids")
        with open(path, encoding="ascii") as file:
            put(self.root, path, file.read().replace(f"/{scsi_id}/", f"#{scsi_id}/"))

    def make_record(self, argv):
        iqn, portal = argv[argv.index("-T") + 1], argv[argv.index("-p") + 1].rsplit(":", 1)
        self.put_record("{},{}".format(portal[0].strip("[]"), portal[1]), iqn)

    def put_record(self, name, iqn=IQN, text=None, mode=0o600):
        text = text or record_text("node", iqn)
        return put(self.root, os.path.join(self.database, "nodes", iqn, name), text, mode)

    def make_discovery_record(self, argv):
        self.put_discovery_record()

    def put_discovery_record(self, text=None):
        path = os.path.join(self.database, "send_targets/127.0.0.1,3260/st_config")
        return put(self.root, path, text or record_text("discovery"))

    def log_in(self, argv):
        iqn, portal = argv[argv.index("-T") + 1], argv[argv.index("-p") + 1].rsplit(":", 1)
        self.records_at_login.append(self.records())
        self.sid += 1
        self.put_session_of_record(self.sid, iqn, Portal(portal[0].strip("[]"), int(portal[1])))

    def log_in_late(self, argv, end):
        """iscsid has the request, and comes to it when the test calls what is in `coming`; iscsiadm ends so, before."""
        self.sid += 1
        values = self.settings_of_record()
        self.coming.append(partial(put_session, self.root, self.sid, luns=(0, 7), **values))
        raise end

    def put_session_of_record(self, sid=1, iqn=IQN, portal=PORTAL):
        """The session that a login with the record, as it is, makes."""
        return put_session(self.root, sid, iqn, portal, luns=(0,), **self.settings_of_record(iqn, portal))

    def settings_of_record(self, iqn=IQN, portal=PORTAL):
        """What iscsid hands of the record, as it is, to the kernel."""
        texts = [text for path, text in self.records().items() if f"/{iqn}/{portal.address}," in path]
        found = dict(line.split(" = ", 1) for line in texts[0].splitlines() if " = " in line) if texts else {}
        names = {"lu_reset_tmo": "lu_reset_timeout", "tgt_reset_tmo": "tgt_reset_timeout"}
        return {key: found.get("node.session.err_timeo." + name, "30") for key, name in names.items()}

    def records(self):
        """The records by path from the database, as text."""
        top = os.path.join(self.root, self.database)
        found = {}
        for directory, _, names in os.walk(top):
            for name in names:
                if "," in directory + name:
                    path = os.path.join(directory, name)
                    with open(path, encoding="utf-8") as file:
                        found[os.path.relpath(path, top)] = file.read()
        return found
