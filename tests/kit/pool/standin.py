# SPDX-License-Identifier: LGPL-2.1-only
"""A stand-in for the stock lvmoiscsi driver, as far as CloudStack and `xe sr-probe` need one.

It reads LUNs and never writes to one: where the real driver would format a LUN, it answers fault 202. What is "out
there" stands in the JSON file LAB of the test lab:

    luns        list of {"target", "targetIQN", "LUNid", "SCSIid", "device"} and, as wanted, "port", "vendor", "serial",
                "size", "chapuser", "chappassword". `device`: a block device; it may appear late
    attach      commands that bring a LUN to this host where it is not there, such as an iscsiadm login. As sm's, they
                do not scan a session that is there: a LUN that was mapped since its login does not come, fault 107
    list        commands before a list of LUNs: a session that is there is scanned
    detach      commands that take it away again, for the last user of its IQN
    references  directory where SM counts who uses an IQN: a file for each IQN, an SR UUID a line

A command is a module of the kit and the words for its main(), which is called in this process; {portal}, {targetIQN},
{SCSIid} and other keys of the LUN are replaced in the words.
Faults are SM's: 95, 96, 107 with the lists of sm on stderr, 68 for wrong CHAP, 47 for another SR on the LUN.
Source: docs/host.rst; SM LVHDoISCSISR.py print_LUNs_XML, print_entries; BaseISCSI.py
attach, detach; iscsilib.py refresh_luns; util.py _incr_iscsiSR_refcount, _decr_iscsiSR_refcount (behaviour only).
"""

import http.client
import importlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import uuid
import xmlrpc.client
from contextlib import contextmanager
from xml.dom import minidom
from xml.sax.saxutils import unescape

from kit.reader import read_sr

LAB = "/etc/relvmoiscsi-lab.json"
XAPI_SOCKET = "/var/lib/xcp/xapi"
WAIT_S = 10  #: for a device after `attach`
#: sm takes no lock, and may log out of a target that another call begins to use; no test here is about that
_COUNTING = threading.Lock()

DRIVER_INFO = {
    "name": "LVHD over iSCSI",
    "description": "SR plugin which represents disks as Logical Volumes within a Volume Group created on an iSCSI LUN",
    "vendor": "the tests of relvmoiscsi",
    "copyright": "LGPL-2.1-only",
    "driver_version": "1.0",
    "required_api_version": "1.0",
    "capabilities": ["SR_PROBE", "SR_UPDATE", "VDI_UPDATE"],
    "configuration": [
        {"key": key, "description": "as of lvmoiscsi"}
        for key in ("SCSIid", "target", "targetIQN", "chapuser", "chappassword", "port")
    ],
}

ISCSI_LOGIN, SR_UNAVAILABLE, SM_GENERAL, UNIMPLEMENTED = 68, 47, 202, 38
TARGET_MISSING, IQN_MISSING, SCSI_ID_MISSING, ISCSI_TARGET, INVALID_SECRET = 95, 96, 107, 141, 20


class Refused(Exception):
    """An SM error: its number and text, and the list that SM prints on stderr."""

    def __init__(self, code, text, listed=""):
        super().__init__(code, text)
        self.code, self.text, self.listed = code, text, listed


def main(argv):
    tell(*reply(argv[1]))


def tell(stdout, stderr):
    sys.stdout.write(stdout)
    sys.stderr.write(stderr)


def reply(request, answer=None):
    """What the driver prints on stdout and on stderr when it is called with this argument."""
    (params,), _ = xmlrpc.client.loads(request)
    try:
        result = (answer or _answer)(params)
    except Refused as error:
        return xmlrpc.client.dumps(xmlrpc.client.Fault(error.code, error.text)), error.listed
    return xmlrpc.client.dumps((result,), methodresponse=True, allow_none=True), ""


def _answer(params):
    """The result of a driver call, or Refused."""
    command = params["command"]
    if command == "sr_get_driver_info":
        return DRIVER_INFO
    with open(LAB, encoding="utf-8") as file:
        lab = json.load(file)
    driver = Standin(params, lab)
    commands = {
        "sr_create": driver.create,
        "sr_probe": driver.probe,
        "sr_attach": driver.attach,
        "sr_detach": driver.detach,
        "sr_scan": driver.scan,
        "sr_update": lambda: None,
        "vdi_update": lambda: None,
    }
    if command not in commands:
        raise Refused(UNIMPLEMENTED, "Not implemented")
    return commands[command]()


class Standin:
    """One call."""

    def __init__(self, params, lab):
        self.params, self.lab = params, lab
        self.config = params["device_config"]
        self._session = None

    # -- calls --------------------------------------------------------------------------------------------------------

    def create(self):
        lun = self._lun()
        raise Refused(SM_GENERAL, "The stand-in does not format LUNs [opterr={}]".format(lun["SCSIid"]))

    def probe(self):
        lun = self._lun()
        with self._attached(lun) as device:
            sr_uuid = _sr_uuid(device)
            size = _size(device)
        document = minidom.Document()
        top = document.appendChild(document.createElement("SRlist"))
        if sr_uuid:
            entry(document, top, "SR", (("UUID", sr_uuid), ("Devlist", lun["SCSIid"]), ("size", size)))
        return document.toprettyxml()

    def attach(self):
        """The LUN, with the VG of this SR on it, stays attached."""
        lun = self._lun()
        found = _sr_uuid(self._take(lun, self.params["sr_uuid"]))
        if found != self.params["sr_uuid"]:
            self._give_back(lun, self.params["sr_uuid"])
            raise Refused(SR_UNAVAILABLE, f"The SR is not available [opterr=the LUN has {found}]")

    def detach(self):
        self._give_back(self._lun(), self.params["sr_uuid"])

    def scan(self):
        """VDI rows become what MGT says. Hidden volumes have a row too, as in sm. The PBD has attached the LUN."""
        device = self._lun()["device"]
        volumes = volumes_of(_read_sr(device))
        xapi, sr = self._xapi(), self.params["sr_ref"]
        rows = {xapi("VDI.get_uuid", vdi): vdi for vdi in xapi("SR.get_VDIs", sr)}
        for vdi_uuid in set(rows) - set(volumes):
            xapi("VDI.db_forget", rows.pop(vdi_uuid))
        for vdi_uuid in sorted(set(volumes) - set(rows)):
            rows[vdi_uuid] = self._introduce(xapi, sr, vdi_uuid, volumes[vdi_uuid])
        for vdi_uuid, volume in volumes.items():
            if volume["snapshot_of"] in rows:
                xapi("VDI.set_snapshot_of", rows[vdi_uuid], rows[volume["snapshot_of"]])
        xapi("SR.set_physical_size", sr, str(_size(device)))

    @staticmethod
    def _introduce(xapi, sr, vdi_uuid, volume):
        return xapi(
            "VDI.db_introduce", vdi_uuid, volume["name_label"], volume["name_description"], sr, volume["type"], False,
            volume["read_only"], {}, vdi_uuid, {}, {"vdi_type": volume["vdi_type"]}, volume["managed"],
            str(volume["size"]), str(volume["allocated"]), "OpaqueRef:NULL", volume["is_a_snapshot"],
            xmlrpc.client.DateTime(volume["snapshot_time"]), "OpaqueRef:NULL", False,
        )  # fmt: skip

    # -- the LUN ------------------------------------------------------------------------------------------------------

    def _lun(self):
        """The LUN that the device-config names, if it may log in there. Raises Refused as lvmoiscsi does."""
        if not self.config.get("target"):
            raise Refused(TARGET_MISSING, "The request is missing the target parameter")
        port = str(self.config.get("port", "3260"))
        there = [lun for lun in self.lab["luns"] if lun["target"] == self.config["target"] and _port(lun) == port]
        if not there:
            raise Refused(ISCSI_TARGET, "Unable to connect to ISCSI service on target")
        mine = [lun for lun in there if lun["targetIQN"] == self.config.get("targetIQN")]
        if not mine:
            text = "The request is missing or has an incorrect target IQN parameter"
            raise Refused(IQN_MISSING, text, _iqn_list(there))
        self._require_chap(mine[0])
        for lun in mine:
            if lun["SCSIid"] == self.config.get("SCSIid"):
                return lun
        self._run("list", mine[0])
        raise Refused(SCSI_ID_MISSING, "The SCSIid parameter is missing or incorrect", _lun_list(mine))

    def _require_chap(self, lun):
        if "chapuser" in lun and (lun["chapuser"], lun["chappassword"]) != (
            self.config.get("chapuser"),
            self._password(),
        ):
            raise Refused(ISCSI_LOGIN, "ISCSI login failed, verify CHAP credentials")

    def _password(self):
        """In clear or from the secret."""
        if "chappassword_secret" not in self.config:
            return self.config.get("chappassword")
        xapi = self._xapi()
        try:
            return xapi("secret.get_value", xapi("secret.get_by_uuid", self.config["chappassword_secret"]))
        except XapiError as error:
            raise Refused(INVALID_SECRET, "The secret is invalid or does not exist") from error

    @contextmanager
    def _attached(self, lun):
        owner = str(uuid.uuid4())  # SM probes under a UUID that no SR has
        device = self._take(lun, owner)
        try:
            yield device
        finally:
            self._give_back(lun, owner)

    def _take(self, lun, owner):
        """Attach the LUN for an owner, unless it is attached; gives the device."""
        with _COUNTING:
            if not os.path.exists(lun["device"]):
                self._run("attach", lun)
            count_in(self.lab["references"], lun["targetIQN"], owner)
        deadline = time.monotonic() + WAIT_S
        while not os.path.exists(lun["device"]):  # no events here: this is no part of what is tested
            if time.monotonic() > deadline:
                self._give_back(lun, owner)
                raise Refused(SCSI_ID_MISSING, "The SCSIid parameter is missing or incorrect")
            time.sleep(0.05)
        return lun["device"]

    def _give_back(self, lun, owner):
        with _COUNTING:
            if count_out(self.lab["references"], lun["targetIQN"], owner) == 0:
                self._run("detach", lun)

    def _run(self, what, lun):
        values = {key: str(value) for key, value in lun.items()}
        values["portal"] = "{}:{}".format(lun["target"], _port(lun))
        for module, *words in self.lab.get(what, ()):
            try:
                importlib.import_module(module).main(*(word.format(**values) for word in words))
            except (AssertionError, OSError, subprocess.SubprocessError, ValueError) as error:
                raise Refused(ISCSI_LOGIN, f"{what} failed [opterr={error!r}]") from error

    def _xapi(self):
        if self._session is None:
            self._session = Xapi(XAPI_SOCKET, self.params["session_ref"])
        return self._session


def _port(lun):
    return str(lun.get("port", 3260))


# -- references of sm -------------------------------------------------------------------------------------------------


def count_in(directory, iqn, sr_uuid):
    """Add the SR, at most once, to the users of the IQN; the number of users afterwards. Takes no lock."""
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, iqn), "a+", encoding="ascii") as file:
        file.seek(0)
        there = _references(file)
        if not any(sr_uuid in line for line in there):
            file.write(sr_uuid + "\n")
            there.append(sr_uuid)
    return len(there)


def count_out(directory, iqn, sr_uuid):
    """Take the SR out; how many are left. At 0, also when nobody had counted, its caller logs out of all portals."""
    path = os.path.join(directory, iqn)
    if not os.path.exists(path):
        return 0
    with open(path, encoding="ascii") as file:
        left = [line for line in _references(file) if sr_uuid not in line]
    if not left:
        os.unlink(path)
        return 0
    with open(path, "w", encoding="ascii") as file:
        file.write("".join(line + "\n" for line in left))
    return len(left)


def _references(file):
    """The lines that count: what does not begin with a UUID is passed over, and lost when the file is rewritten."""
    return [line.rstrip() for line in file if re.match(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", line)]


# -- lists of sm ------------------------------------------------------------------------------------------------------


def entry(document, parent, tag, fields):
    made = parent.appendChild(document.createElement(tag))
    for name, value in fields:
        if value not in (None, ""):
            made.appendChild(document.createElement(name)).appendChild(document.createTextNode(str(value)))


def _lun_list(luns):
    document = minidom.Document()
    top = document.appendChild(document.createElement("iscsi-target"))
    for lun in luns:
        names = ("vendor", "serial", "LUNid", "size", "SCSIid")
        entry(document, top, "LUN", [(name, lun.get(name)) for name in names])
    return document.toprettyxml() + "\n"


def _iqn_list(luns):
    document = minidom.Document()
    top = document.appendChild(document.createElement("iscsi-target-iqns"))
    found = sorted({(lun["targetIQN"], lun["target"], _port(lun)) for lun in luns})
    for index, (iqn, target, port) in enumerate(found):
        fields = [("Index", index), ("IPAddress", target), ("Port", port if port != "3260" else None)]
        entry(document, top, "TGT", fields + [("TargetIQN", iqn)])
    return document.toprettyxml() + "\n"


# -- what is on a LUN -------------------------------------------------------------------------------------------------


class Disk:
    """A device to read from, for support.reader; nothing of it is kept."""

    def __init__(self, path):
        self.name = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size_bytes = os.lseek(self._descriptor, 0, os.SEEK_END)

    def peek(self, offset, length):
        data = os.pread(self._descriptor, length, offset)
        assert len(data) == length, f"{self.name} ends at {offset + len(data)}"
        return data

    def close(self):
        os.close(self._descriptor)


def _size(device):
    disk = Disk(device)
    disk.close()
    return disk.size_bytes


def _read_sr(device):
    """The SR on a device by the tests' own reader, or None."""
    disk = Disk(device)
    try:
        return read_sr(disk)
    finally:
        disk.close()


def _sr_uuid(device):
    """Of the SR on a device, or None."""
    sr = _read_sr(device)
    return sr.uuid if sr else None


def volumes_of(sr):
    """{VDI UUID: what its row says}, from MGT for the words and from the volumes for the sizes."""
    if sr is None or sr.mgt is None:
        raise Refused(SM_GENERAL, "There is no MGT volume")
    lvs = {lv.name: lv.extents * sr.vg.extent_bytes for lv in sr.vg.lvs}
    images = {image.name: image for image in sr.vhds + sr.qcow2s}
    found = {}
    for record in sr.mgt.records:
        names = [name for name in lvs if name in [prefix + record.uuid for prefix in ("VHD-", "LV-", "QCOW2-")]]
        if record.deleted or not names:
            continue
        fields, image = dict(record.fields), images.get(names[0])
        found[record.uuid] = {
            "name_label": unescape(record.name_label),
            "name_description": unescape(record.name_description),
            "type": fields.get("type") or "user",
            "vdi_type": record.vdi_type,
            "read_only": fields.get("read_only") == "1",
            "managed": fields.get("managed") != "0" and not (image and image.hidden),
            "is_a_snapshot": fields.get("is_a_snapshot") == "1",
            "snapshot_of": record.snapshot_of,
            "snapshot_time": fields.get("snapshot_time") or "19700101T00:00:00Z",
            "size": image.virtual_size if image else lvs[names[0]],
            "allocated": lvs[names[0]],
        }
    return found


# -- xapi -------------------------------------------------------------------------------------------------------------


class XapiError(Exception):
    """A failure that XenAPI answered."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost")
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


class Xapi:
    """XenAPI calls with the session of this driver call: `xapi("SR.get_VDIs", sr)`."""

    def __init__(self, path, session):
        self._path, self._session = path, session

    def __call__(self, method, *params):
        body = xmlrpc.client.dumps((self._session,) + params, method)
        connection = _Connection(self._path)
        try:
            connection.request("POST", "/", body.encode("utf-8"), {"Content-Type": "text/xml"})
            (reply,), _ = xmlrpc.client.loads(connection.getresponse().read())
        finally:
            connection.close()
        if reply["Status"] != "Success":
            raise XapiError(reply["ErrorDescription"])
        return reply["Value"]
