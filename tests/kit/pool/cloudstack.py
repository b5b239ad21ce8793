# SPDX-License-Identifier: LGPL-2.1-only
"""CloudStack's ResignatureCommand on a XenServer host, XenAPI call by XenAPI call.

    CloudStack(session, host_uuid).resignature({"iqn": "/iqn.2026-01.test:clone/0", "storageHost": "10.0.0.5"})

`session` is a XenAPI.Session; give its transport CloudStack's time-out of 60 s. The module expects the answers that
CloudStack expects, and keeps CloudStack's odd habits. A failure whose text has "successfully resigned" is a success. It
rolls nothing back if a host cannot plug.
Source: apache/cloudstack, XenServerStorageProcessor.resignature, CitrixResourceBase.getIscsiSR and removeSR,
XenServerConnectionPool.connect (docs/host.rst, "CloudStack's contract"). tests/clients/test_java_sdk.py compares
`to_string` with the SDK that CloudStack pins.
"""

import socket
import xmlrpc.client
from typing import NamedTuple

import XenAPI

from . import datamodel

#: seconds for which CloudStack waits for the answer to a call: `xapiwait`
WAIT_S = 60

IQN, STORAGE_HOST = "iqn", "storageHost"
CHAP_USER, CHAP_SECRET = "chapInitiatorUsername", "chapInitiatorSecret"
LVMOISCSI, RELVMOISCSI = "lvmoiscsi", "relvmoiscsi"


class CloudRuntimeException(Exception):
    """CloudStack's own exception; its text is what operators find in the log."""


class Answer(NamedTuple):
    """A ResignatureAnswer."""

    result: bool
    details: str  #: the error's text; None on success
    size: int  #: bytes
    path: str  #: UUID of the VDI
    format: str


def supports_resign(sm_list):
    """Whether CloudStack takes a host for capable: `xe sm-list | grep "resigning of duplicates"` prints something."""
    return any("resigning of duplicates" in line for line in sm_list.splitlines())


#: codes for which the Java SDK has a class
_CLASSES = frozenset((datamodel.DATA / "sdk_exceptions.txt").read_text(encoding="ascii").splitlines()[1:])


def class_of(code):
    """The class of the Java SDK's exception for an error."""
    return "".join(map(str.capitalize, code.split("_"))) if code in _CLASSES else "XenAPIException"


def to_string(failure):
    """What toString() of the Java SDK's exception gives: code and parameters, nothing between them. An exception with a
    class of its own prints a fixed sentence, which has neither; here it is the name of the class.
    """
    code = failure.details[0]
    return f"({class_of(code)})" if code in _CLASSES else "".join(failure.details)


class CloudStack:
    """The agent of one XenServer host."""

    def __init__(self, session, host_uuid):
        self._api = session.xenapi
        self._host_uuid = host_uuid

    def resignature(self, details):
        """ResignatureCommand; `details` has the keys above. Gives an Answer; raises CloudRuntimeException without a
        connection.
        """
        self._check_connection()
        sr = None
        try:
            iqn, target = details[IQN], details[STORAGE_HOST]
            sr = self.get_iscsi_sr(iqn, target, iqn, details.get(CHAP_USER), details.get(CHAP_SECRET))
            vdis = self._api.SR.get_VDIs(sr)
            if len(vdis) != 1:
                raise CloudRuntimeException(f"There were {len(vdis)} VDIs in the SR.")
            size, path = int(self._api.VDI.get_virtual_size(vdis[0])), self._api.VDI.get_uuid(vdis[0])
            return Answer(True, None, size, path, "VHD")
        except (CloudRuntimeException, XenAPI.Failure, xmlrpc.client.Error, OSError) as error:
            return Answer(False, _text(error), 0, None, None)
        finally:
            if sr is not None:
                self.remove_sr(sr)

    def _check_connection(self):
        """Of a connection that is kept, before each command: CloudStack makes a new one where the calls fail."""
        if not self._api.host.get_enabled(self._api.host.get_by_uuid(self._host_uuid)):
            raise CloudRuntimeException("Cannot connect this host due to the host is not enabled")

    def get_iscsi_sr(self, label, target, path, user=None, secret=None):
        """The SR on a LUN, introduced, plugged on every host and scanned. Raises CloudRuntimeException."""
        config = {}
        try:
            return self._iscsi_sr(config, label, target, path, user, secret)
        except (XenAPI.Failure, CloudRuntimeException, xmlrpc.client.Error, OSError) as error:
            raise CloudRuntimeException(f"Unable to create Iscsi SR  {config} due to  {_text(error)}") from error

    def _iscsi_sr(self, config, label, target, path, user, secret):
        """`config` is filled for the caller, whose error text shows it."""
        _, target_iqn, lun_id = path.split("/")
        self._look_for_the_lun(label, target, target_iqn, lun_id)
        config.update(target=target, targetIQN=target_iqn)
        if user and user.strip() and secret and secret.strip():
            config.update(chapuser=user, chappassword=secret)
        host = self._api.host.get_by_uuid(self._host_uuid)

        config["SCSIid"] = self._scsi_id(host, config, label, lun_id)
        sr_uuid = self._probe(host, config)
        if sr_uuid is None:
            sr = self._create(host, config, label, LVMOISCSI)
        else:
            sr_uuid = self._resign(host, config, label)
            sr = self._api.SR.introduce(sr_uuid, label, label, LVMOISCSI, "user", True, {})
            for each in self._api.host.get_all():
                pbd = self._api.PBD.create({"device_config": config, "host": each, "SR": sr})
                self._api.PBD.plug(pbd)
        self._api.SR.scan(sr)
        return sr

    def _look_for_the_lun(self, label, target, target_iqn, lun_id):
        """Does an SR of this name have the LUN? A PBD that CloudStack has made has no `lunid`, so it goes on."""
        for sr in self._api.SR.get_by_name_label(label):
            pbds = self._api.SR.get_PBDs(sr) if self._api.SR.get_type(sr) == LVMOISCSI else []
            config = self._api.PBD.get_device_config(pbds[0]) if pbds else {}
            if [config.get(key) for key in ("target", "targetIQN", "lunid")] == [target, target_iqn, lun_id]:
                raise CloudRuntimeException(f"There is a SR using the same configuration {config}")

    def _create(self, host, config, label, type_):
        return self._api.SR.create(host, config, "0", label, label, type_, "user", True, {})

    def _scsi_id(self, host, config, label, lun_id):
        """From the list of LUNs in the error that creating without a SCSIid gives."""
        try:
            self._create(host, config, label, LVMOISCSI)
        except XenAPI.Failure as failure:
            text = to_string(failure)
            if "SR_BACKEND_FAILURE_107" not in text:
                raise CloudRuntimeException(f"Unable to create Iscsi SR  {config} due to  {text}") from failure
            for lun in text.split("<LUN>")[1:]:
                if _between(lun, "LUNid") == lun_id:
                    return _between(lun, "SCSIid")
            raise CloudRuntimeException(f"can not find LUN {lun_id} in {text}") from failure
        return ""  # it has made an SR on a LUN it was not given; CloudStack goes on

    def _probe(self, host, config):
        """The first UUID in the probe's answer, if it has 36 characters."""
        found = _between(self._api.SR.probe(host, config, LVMOISCSI, {}), "UUID")
        return found if found is not None and len(found) == 36 else None

    def _resign(self, host, config, label):
        """The UUID of the SR on the LUN after it was resignatured."""
        try:
            self._create(host, config, label, RELVMOISCSI)
        except XenAPI.Failure as failure:
            if "successfully resigned" not in to_string(failure):
                raise
        else:
            raise CloudRuntimeException("Problem resigning the metadata")
        sr_uuid = self._probe(host, config)
        if sr_uuid is None:
            raise CloudRuntimeException("Non-existent or invalid SR UUID")
        return sr_uuid

    def remove_sr(self, sr):
        """Forget an SR. CloudStack tries this twice, and only warns."""
        for vdi in self._api.SR.get_VDIs(sr):
            self._api.VDI.forget(vdi)
        for pbd in self._api.SR.get_PBDs(sr):
            self._api.PBD.unplug(pbd)
            self._api.PBD.destroy(pbd)
        assert not self._api.SR.get_PBDs(sr)
        self._api.SR.forget(sr)


def _text(error):
    if isinstance(error, XenAPI.Failure):
        return to_string(error)
    if isinstance(error, socket.timeout):
        return "Read timed out"
    return str(error)


def _between(text, tag):
    """What stands in the first `<tag>`, trimmed; None without one."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    if opening not in text:
        return None
    start = text.index(opening) + len(opening)
    return text[start : text.index(closing)].strip()
