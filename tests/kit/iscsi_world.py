# SPDX-License-Identifier: LGPL-2.1-only
"""Sessions of the kernel in sysfs, below a directory: what a real login has left there, from transcripts/sysfs.json."""

import base64
import json
import os
from pathlib import Path

from relvmoiscsi.iscsi import Portal

DATA = Path(__file__).resolve().parents[1] / "data" / "transcripts"
IQN = "iqn.2026-01.test:open"
CHAP_IQN = "iqn.2026-01.test:chap"
PORTAL = Portal("127.0.0.1", 3260)


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
        connection + "/address": portal.host,
        connection + "/port": str(portal.port),
        connection + "/persistent_address": portal.host,
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
