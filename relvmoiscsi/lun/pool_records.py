# SPDX-License-Identifier: LGPL-2.1-only
"""What the records of a pool say about a LUN: the SRs and VDIs with data on it. users.py has the rule for a write.

    PBD.device_config    SCSIid (lvmoiscsi, lvmohba), ScsiId (gfs2); device: paths, with commas between (lvm, ext)
    SR.sm_config         devserial: scsi-<SCSIid>, with commas between; SCSIid; a key scsi-<SCSIid> (old releases)
    VDI.sm_config        SCSIid: an SR of type iscsi or hba makes a VDI of each LUN, used by a VM or not
    VDI.location         a link in /dev/xapi/block: the VDI is a LUN that VMs use as it is, in an SR of type udev

A detached SR is a user as well, because its data is on the LUN. This module reads the values of all keys, because SR
drivers of other vendors have keys of their own. A vm-admin can write both fields of a VDI, and only a pool-operator the
fields of an SR and a PBD. So a VDI counts only where it can be a LUN, and only for a refusal (read_srs).
Source: SM drivers/util.py (test_SCSIid, test_hostPBD_devs), mpathcount.py (get_SCSIidlist), LUNperVDI.py, HBASR.py,
RawISCSISR.py, udevSR.py.
"""

import re
from itertools import chain
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from relvmoiscsi import untrusted
from relvmoiscsi.host.disk.scsi_id import scsi_id_at
from relvmoiscsi.scsi_id_text import NamedLuns, is_printed, luns_named, names_lun
from relvmoiscsi.sr_types import OWN_TYPES

Records = Mapping[str, Mapping[str, Any]]
#: Returns the SCSIid of the LUN that a path of this host leads to; None without a LUN or without a SCSIid.
Look = Callable[[str], Optional[str]]

#: Directories of links that lead to the same LUN on every host: this host may follow another host's path there.
_SAME_EVERYWHERE = ("/dev/disk/by-id/", "/dev/disk/by-scsid/")
_DEVICES = ("/dev/",)
#: Keys of names and passwords. No SR driver stores a LUN under such a key.
_OF_LOGINS = re.compile("pass|secret|chap|user", re.IGNORECASE)
_GIVEN_AS_THEY_ARE = "/dev/xapi/block/"
#: SR types whose VDIs are volumes or files, whatever their fields say. An unknown type may be another vendor's, with a
#: LUN for each VDI, so its VDIs count.
_VOLUME_TYPES = (
    "lvm", "lvmoiscsi", "lvmohba", "lvmofcoe", "gfs2", "ext", "xfs", "zfs", "largeblock", "file", "nfs", "smb", "iso",
    "cephfs", "moosefs", "glusterfs", "linstor",
)  # fmt: skip


class PoolRecords:
    """Records of three classes from xapi, by reference: all PBDs and SRs, and the VDIs that can be LUNs."""

    def __init__(self, pbds: Records, srs: Records, vdis: Records) -> None:
        self.pbds, self.srs = pbds, srs
        of_volumes = {ref for ref, sr in srs.items() if sr.get("type") in _VOLUME_TYPES}
        self.vdis = {ref: vdi for ref, vdi in vdis.items() if vdi.get("SR") not in of_volumes}
        self._named: Optional[NamedLuns] = None  #: from the first question on
        self._with_paths: List[str] = []  #: references of records with a path, which may lead to any LUN

    def about(self, scsi_id: str) -> List[Records]:
        """Return the few PBDs, SRs and VDIs that can be about the LUN: records with a path, and records that name it.

        A scan asks for thousands of LUNs. So each text is read once.
        """
        if self._named is None:
            every = chain(self.pbds.items(), self.srs.items(), self.vdis.items())
            texts = [(text, ref) for ref, record in every for pair in _pairs_of(record) for text in pair]
            self._with_paths = [
                ref for ref, pbd in self.pbds.items() if any("/dev/" in value for _, value in _pairs_of(pbd))
            ]
            self._with_paths += [ref for ref, vdi in self.vdis.items() if _has_path(vdi)]
            self._named = NamedLuns(texts)
        refs = dict.fromkeys([*self._named.refs(scsi_id), *self._with_paths])
        return [{ref: all_[ref] for ref in refs if ref in all_} for all_ in (self.pbds, self.srs, self.vdis)]


class User(NamedTuple):
    """An SR or a VDI with data on the LUN."""

    sentence: str
    sr: Mapping[str, Any]  #: the SR's record; empty if xapi has none
    sr_ref: str
    vdi: Mapping[str, Any]  #: the VDI's record; empty for an SR

    @property
    def is_own(self) -> bool:
        """Is the SR the record of a call to relvmoiscsi? The lock of the LUN orders calls."""
        return bool(self.sr.get("type") in OWN_TYPES)


def read_pool(xapi: Any) -> PoolRecords:
    """Read the records from xapi, for the question whether a write is refused. Raises XapiFailure."""
    return PoolRecords(*_pbds_and_srs(xapi), xapi.records("VDI"))


def read_srs(xapi: Any) -> PoolRecords:
    """Read the records of PBDs and SRs, for the question which LUNs of a scan stay visible. Raises XapiFailure.

    A vm-admin can make a VDI for any LUN, in the udev SR of a host. A VDI must not have an untouched clone stay visible
    beside its original. SM scans for the LUN of a VDI when a VM needs the LUN.
    """
    return PoolRecords(*_pbds_and_srs(xapi), {})


def _pbds_and_srs(xapi: Any) -> Tuple[Records, Records]:
    """Read the records of two classes. An SR that is forgotten between the two answers takes its PBDs along.

    So a PBD without an SR counts only if xapi still has that PBD. The SR of a call that has just ended is no user.
    """
    pbds, srs = xapi.records("PBD"), xapi.records("SR")
    if any(pbd.get("SR") not in srs for pbd in pbds.values()):
        left = xapi.records("PBD")
        pbds = {ref: pbd for ref, pbd in pbds.items() if ref in left}
    return pbds, srs


def _pairs_of(record: Mapping[str, Any]) -> List[Tuple[str, str]]:
    """Return the keys and values of a PBD, an SR or a VDI that may name a LUN. No other function knows the fields."""
    pairs = chain(record.get("device_config", {}).items(), record.get("sm_config", {}).items())
    location = str(record.get("location", ""))
    paths = [("location", location)] if "/dev/" in location else []
    return [(str(key), str(value)) for key, value in pairs] + paths


def _has_path(vdi: Mapping[str, Any]) -> bool:
    """Is the location of the VDI a link that may lead to any LUN? No other field of a VDI is followed.

    A vm-admin can write any location. So the link is one name in the directory where root alone makes links: another
    path may lead to a file system that does not answer, and this process would wait for ever.
    """
    location = str(vdi.get("location", ""))
    name = location[len(_GIVEN_AS_THEY_ARE) :]
    return location.startswith(_GIVEN_AS_THEY_ARE) and "/" not in name and name not in ("", ".", "..")


def _names(record: Mapping[str, Any], scsi_id: str) -> bool:
    return any(names_lun(text, scsi_id) for pair in _pairs_of(record) for text in pair)


def users_of(scsi_id: str, pool: PoolRecords, look: Look = scsi_id_at, here: str = "") -> List[User]:
    """Return every SR and VDI with data on the LUN, each once, SRs first, each with a sentence about its use.

    An SR that was made on the LUN counts, attached or not. An SR is attached if any host has it attached.
    """
    attached: Dict[str, bool] = {}  # SRs with a PBD on the LUN
    pbds, srs, vdis = pool.about(scsi_id)
    for pbd in pbds.values():
        if names_in_pbd(scsi_id, pbd, look, here):
            ref = str(pbd.get("SR"))
            attached[ref] = attached.get(ref, False) or bool(pbd.get("currently_attached"))
    found: List[User] = []
    for ref, is_attached in attached.items():
        sr, state = pool.srs.get(ref, {}), "attached" if is_attached else "detached"
        sentence = f"The {state} SR {name_of(sr)} has this LUN in the device-config of a PBD."
        found.append(User(sentence, sr, ref, {}))
    for ref, sr in srs.items():
        if ref not in attached and _names(sr, scsi_id):
            state = "hosts are connected to it" if sr.get("PBDs") else "no host is connected to it"
            found.append(User(f"The SR {name_of(sr)} was made on this LUN, and {state}.", sr, ref, {}))
    for vdi in vdis.values():
        if _names(vdi, scsi_id) or _has_path(vdi) and look(str(vdi["location"])) == scsi_id:
            sr = pool.srs.get(str(vdi.get("SR")), {})
            sentence = f"This LUN is the VDI {name_of(vdi)} of the SR {name_of(sr)}."
            found.append(User(sentence, sr, str(vdi.get("SR")), vdi))
    return found


def names_in_pbd(scsi_id: str, pbd: Mapping[str, Any], look: Look, here: str) -> bool:
    """Does the device-config of a PBD name the LUN, or lead to the LUN by a path that this host may follow?"""
    paths = (path.strip() for _, value in _pairs_of(pbd) for path in value.split(","))
    return _names(pbd, scsi_id) or any(lun_of_path(look, here, pbd, path) == scsi_id for path in paths)


def lun_of_path(look: Look, here: str, pbd: Mapping[str, Any], path: str) -> Optional[str]:
    """Return the SCSIid of the LUN to which a path in a PBD leads; None for a path that this host may not follow.

    A client may write any path.
    """
    roots = _DEVICES if here and pbd.get("host") == here else _SAME_EVERYWHERE
    return look(path) if untrusted.is_below(path, *roots) else None


def ids_named(pool: PoolRecords) -> List[str]:
    """Return all texts of PBDs and SRs that may be a SCSIid.

    The SRs of calls to relvmoiscsi are left out: these SRs name clones. Passwords are left out: callers write the
    result to a file and to logs.
    """
    own = {ref for ref, sr in pool.srs.items() if sr.get("type") in OWN_TYPES}
    records = [pbd for pbd in pool.pbds.values() if pbd.get("SR") not in own]
    records += [sr for ref, sr in pool.srs.items() if ref not in own]
    pairs = chain.from_iterable(map(_pairs_of, records))
    texts = set(chain.from_iterable(pair for pair in pairs if not _OF_LOGINS.search(pair[0])))
    return sorted(filter(is_printed, set(chain.from_iterable(map(luns_named, texts)))))


def name_of(record: Mapping[str, Any]) -> str:
    return "{} ({!r})".format(record.get("uuid", "unknown"), record.get("name_label", ""))
