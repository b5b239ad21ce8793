# SPDX-License-Identifier: LGPL-2.1-only
"""Never the original: who in this pool uses a LUN, by its SCSIid, as far as xapi knows. Attached or not: data are data.

    PBD.device_config    SCSIid (lvmoiscsi, lvmohba), ScsiId (gfs2); device: paths, with commas between (lvm, ext)
    SR.sm_config         devserial: scsi-<SCSIid>, with commas between; SCSIid; a key scsi-<SCSIid> (old releases)
    VDI.sm_config        SCSIid: an SR of type iscsi or hba makes a VDI of each LUN, whether a VM has it or not
    VDI.location         a link in /dev/xapi/block: the VDI is a LUN that was given to VMs as it is

Every value is looked at, whatever its key: SRs of other makers have theirs.
Source: SM drivers/util.py (test_SCSIid, test_hostPBD_devs), mpathcount.py (get_SCSIidlist), LUNperVDI.py.
"""

import re
from itertools import chain
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from relvmoiscsi.errors import Refused
from relvmoiscsi.host.disk.scsi_id import scsi_id_at
from relvmoiscsi.scsi_id_text import is_printed, luns_named, names_lun

#: SRs of our types are those of calls under way, or left over from one that died with xapi; the LUN's lock orders calls
OWN_TYPES = ("relvmoiscsi", "relvmohba")

Records = Mapping[str, Mapping[str, Any]]
#: The SCSIid of what a path leads to on this host; None if there is nothing, or nothing that has one.
Look = Callable[[str], Optional[str]]

#: Directories of links that lead to the same LUN on every host, so that following them here says something of there.
_SAME_EVERYWHERE = ("/dev/disk/by-id/", "/dev/disk/by-scsid/")
_DEVICES = ("/dev/",)
#: Keys whose values are names and passwords; one that holds a LUN has another name, in whatever driver.
_OF_LOGINS = re.compile("pass|secret|chap|user", re.IGNORECASE)
_GIVEN_AS_THEY_ARE = "/dev/xapi/block/"


class Pool(NamedTuple):
    """What is asked of xapi: all records of three classes, by reference."""

    pbds: Records
    srs: Records
    vdis: Records


class User(NamedTuple):
    """Somebody who has something on the LUN."""

    sentence: str
    sr: Mapping[str, Any]  #: its record; empty where xapi has none
    sr_ref: str
    vdi: Mapping[str, Any]  #: its record, for a VDI

    @property
    def is_own(self) -> bool:
        """Is it the record of a call to us?"""
        return bool(self.sr.get("type") in OWN_TYPES)

    @property
    def sr_name(self) -> str:
        return _name(self.sr)


def read_pool(xapi: Any) -> Pool:
    """What xapi knows. Raises XapiFailure."""
    return Pool(xapi.records("PBD"), xapi.records("SR"), xapi.records("VDI"))


def verify_unused(scsi_id: str, pool: Pool, own_sr: str = "", look: Look = scsi_id_at, here: str = "") -> None:
    """Raises Refused when anybody in the pool uses the LUN, but the temporary SRs of calls to us; `own_sr` is one.

    `here` is the host that looks: what its own PBDs name as a device is followed, whatever the name.
    An SR that was made on the LUN counts, whether hosts are connected to it or not: forgetting it frees the LUN.
    That is the original, or the clone after it was introduced, or an array that gives a clone its original's id.
    """
    found = users_of(scsi_id, pool, look, here)
    users = [user for user in found if not user.is_own and user.sr_ref != own_sr]
    if users:
        raise Refused(
            "The LUN with the SCSIid {} is in use in this pool. {} A clone must have a SCSIid of its own; an SR or VDI "
            "whose LUN is to be written must be forgotten first.".format(
                scsi_id, " ".join(user.sentence for user in users)
            )
        ).in_state("Nothing was written.")


def users_of(scsi_id: str, pool: Pool, look: Look = scsi_id_at, here: str = "") -> List[User]:
    """Everybody in the pool who has something on the LUN, each once, SRs first; with a sentence that says what.

    An SR that was made on the LUN counts, whether any host is still connected to the SR or not.
    """
    found = {user.sr_ref: user for user in _by_pbds(scsi_id, pool, look, here)}
    for user in _made_on(scsi_id, pool):
        found.setdefault(user.sr_ref, user)
    return [*found.values(), *_vdis(scsi_id, pool, look)]


def _made_on(scsi_id: str, pool: Pool) -> Iterator[User]:
    """The SRs whose sm-config says that they were made on the LUN."""
    for ref, sr in pool.srs.items():
        config = sr.get("sm_config", {})
        if any(names_lun(str(text), scsi_id) for text in [*config, *config.values()]):
            state = "hosts are connected to it" if sr.get("PBDs") else "no host is connected to it"
            yield User(f"The SR {_name(sr)} was made on it, and {state}.", sr, ref, {})


def ids_named(pool: Pool) -> List[str]:
    """Whatever could be a SCSIid in the records; but not in those of calls to us, which name clones.

    Passwords are not among it: what this gives is written to a file and said in logs.
    """
    own = {ref for ref, sr in pool.srs.items() if sr.get("type") in OWN_TYPES}
    configs = [pbd.get("device_config", {}) for pbd in pool.pbds.values() if pbd.get("SR") not in own]
    configs += [sr.get("sm_config", {}) for ref, sr in pool.srs.items() if ref not in own]
    configs += [vdi.get("sm_config", {}) for vdi in pool.vdis.values()]
    pairs = [pair for config in configs for pair in config.items() if not _OF_LOGINS.search(pair[0])]
    texts = set(map(str, chain.from_iterable(pairs)))
    return sorted(filter(is_printed, set(chain.from_iterable(map(luns_named, texts)))))


def _by_pbds(scsi_id: str, pool: Pool, look: Look, here: str) -> Iterator[User]:
    """The SRs with a PBD on the LUN; attached are those that any host has attached."""
    attached: Dict[str, bool] = {}
    for pbd in pool.pbds.values():
        roots = _DEVICES if here and pbd.get("host") == here else _SAME_EVERYWHERE
        if _is_on(scsi_id, pbd.get("device_config", {}), look, roots):
            ref = str(pbd.get("SR"))
            attached[ref] = attached.get(ref, False) or bool(pbd.get("currently_attached"))
    for ref, is_attached in attached.items():
        sr = pool.srs.get(ref, {})
        state = "attached" if is_attached else "detached"
        yield User(f"The {state} SR {_name(sr)} has it in the device-config of a PBD.", sr, ref, {})


def _vdis(scsi_id: str, pool: Pool, look: Look) -> Iterator[User]:
    for vdi in pool.vdis.values():
        location = str(vdi.get("location", ""))
        values = map(str, vdi.get("sm_config", {}).values())
        leads_there = location.startswith(_GIVEN_AS_THEY_ARE) and look(location) == scsi_id
        if leads_there or any(names_lun(value, scsi_id) for value in values):
            ref = str(vdi.get("SR"))
            sr = pool.srs.get(ref, {})
            yield User(f"It is the VDI {_name(vdi)} of the SR {_name(sr)}.", sr, ref, vdi)


def _is_on(scsi_id: str, device_config: Mapping[str, Any], look: Look, roots: Tuple[str, ...]) -> bool:
    values = [str(value) for value in device_config.values()]
    paths = [path.strip() for value in values for path in value.split(",")]
    return any(names_lun(value, scsi_id) for value in values) or any(
        path.startswith(roots) and look(path) == scsi_id for path in paths
    )


def _name(record: Mapping[str, Any]) -> str:
    return "{} ({!r})".format(record.get("uuid", "unknown"), record.get("name_label", ""))
