# SPDX-License-Identifier: LGPL-2.1-only
"""Snapshot of the pool's hosts and SRs, each class read once; and relvmoiscsi's marks on SRs."""

import os
import re
import string
import time
import unicodedata
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.known_sr import KnownSr
from relvmoiscsi.pool.calls import Calls, PoolFailure, Record, Records, passing
from relvmoiscsi.portal import DEFAULT_PORT, is_host
from relvmoiscsi.scsi_id_text import NamedLuns, certain_scsi_id, names_lun
from relvmoiscsi.sr_types import HBA_SR, ISCSI_SR, OWN_TYPES, STOCK_TYPES, SrType
from relvmoiscsi.untrusted import xml_safe
from relvmoiscsi.wording import nearest, said, shell_command, some_of

#: Unicode categories that a name must not contain: control characters, surrogates, unassigned
_NO_TEXT = ("Cc", "Cs", "Cn")

LVM_TYPES = (*STOCK_TYPES, "lvm")  #: clones of these SRs can be resignatured

#: prefix of keys of pool.other_config. The value lists the SCSIids of the LUNs that a run attaches, until the SRs of
#: these LUNs have marks.
AT_WORK = "relvmoiscsi:at-work:"

#: values of VBD.userdevice. Source: xen-api ocaml/xapi-idl/xen/device_number.ml
DEVICE = re.compile("[0-9]{1,9}|(?:xvd|hd|sd|fd)[a-z]{1,3}[0-9]{0,5}")
NO_DEVICE = "neither a number nor a name such as xvda"

#: keys of SR.other_config and of VDI.other_config
RUN, ORIGINAL_SR, SCSI_ID, CHANGED, OLD_VDI = (
    "relvmoiscsi:run",
    "relvmoiscsi:original-sr",
    "relvmoiscsi:scsi-id",
    "relvmoiscsi:changed",
    "relvmoiscsi:old",
)
#: key of VDI.other_config: the UUID of the VDI, and the UUIDs that its disk had before, the latest first (vms/lineage)
WAS = "relvmoiscsi:was"


def shown_device(text: str) -> str:
    """Return a device of a VM for a sentence: in quotes and cut, where a vm-admin has written another text."""
    return text if DEVICE.fullmatch(text) else said(text)


def shown_uuid(text: str) -> str:
    """Return a UUID of the pool for a sentence: in quotes and cut, where another text was given for one.

    VDI.pool_introduce takes any text that begins as a UUID, and SR.introduce any.
    """
    return text if is_uuid(text) else said(text)


def run_id(mark: str = "") -> str:
    """Return the id of this run for its marks: start time, process id, and a mark, if any, between colons."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + f"-{os.getpid()}" + (f":{mark}:" if mark else "")


def mark_of(run: str) -> str:
    """Return the mark in the id of a run; "" without a mark."""
    return "".join(run.split(":")[1:2])


def is_marked(record: Record, mark: str) -> bool:
    """Did a run with this mark make the SR or VM? True for any record if the mark is ""."""
    return mark in ("", mark_of(str(record["other_config"].get(RUN, ""))))


def now() -> str:
    """Return the date and the time for names that must differ within a day."""
    return time.strftime("%Y-%m-%d %H:%M:%S")


def verify_name(option: str, text: str) -> None:
    """Raises UsageError for a name that no object gets: a blank one, or one that a pool cannot send as XML."""
    if any(unicodedata.category(character) in _NO_TEXT for character in text):
        raise UsageError(f"{option} {text!r} contains bytes that are not text.")
    if not text.strip():
        raise UsageError(f"{option} {text!r} is blank.").advising("Give a name.")


def parts_of_template(template: str, *fields: str) -> List[Tuple[str, str]]:
    """Return the parts of a template for names: a text, and the field after the text ("" for none).

    Raises UsageError for a template with other fields, and as `verify_name`.
    """
    verify_name("--name", template)
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise UsageError(f"--name {template!r} cannot be read: {error}.") from error
    if any(field not in (*fields, None) or spec or conversion for _, field, spec, conversion in parts):
        allowed = f"{', '.join(fields[:-1])} and {fields[-1]}"
        raise UsageError(f"--name {template!r} may contain only the fields {allowed} in braces.")
    return [(text, field or "") for text, field, _, _ in parts]


def unused_name(wish: str, taken: Dict[str, int], behind: str = "") -> str:
    """Return the name, with a number where `taken` has the name; `taken` gets the result.

    `behind` follows the number. `taken` has the last number that each name got, 1 at first: a stranger may have named
    thousands of VMs alike. A stranger may also have named the SR or VM in the wish, with characters that XML forbids.
    """
    wish, behind = xml_safe(wish), xml_safe(behind)
    name, number = wish + behind, taken.get(wish + behind, 1)
    while name in taken:
        number += 1
        name = f"{wish} ({number}){behind}"
    taken[wish + behind] = number
    taken.setdefault(name, 1)
    return name


#: keys of device-config, in the order of the fields of Portal
_PORTAL_KEYS = (
    *("target", "targetIQN", "port", "chapuser", "chappassword_secret"),
    *("incoming_chapuser", "incoming_chappassword_secret"),
)


_MOST_PLACE = 300  #: characters of a list of addresses in a sentence


class ProbePortal(NamedTuple):
    """Where a probe looks for LUNs: the device-config without the SCSIid."""

    target: str  #: "" for HBA: LUNs that an array maps to adapters
    iqn: str = ""  #: "" for all IQNs of the target
    port: str = ""
    chap_user: str = ""
    chap_secret: str = ""  #: UUID of a Secret
    target_user: str = ""  #: user with which the target authenticates itself, for mutual CHAP
    target_secret: str = ""

    @property
    def sr_type(self) -> SrType:
        """Return the type of the SRs behind this portal."""
        return ISCSI_SR if self.target else HBA_SR

    @property
    def address(self) -> Tuple[str, str]:
        """Return address and port. Behind another port may be a program that is not to learn of a password."""
        return self.target, self.port or str(DEFAULT_PORT)

    @property
    def place(self) -> str:
        """Return the target for a sentence; in quotes, and cut, a text of a PBD that is no list of addresses."""
        addresses = self.target.split(",") if len(self.target) <= _MOST_PLACE else [""]
        return self.target if all(is_host(one.strip("[]")) for one in addresses) else said(self.target)

    @property
    def named(self) -> str:
        """Return the target and its IQN for a sentence."""
        return self.place + (f" {said(self.iqn)}" if self.iqn else "")

    def config(self, scsi_id: str = "") -> Dict[str, str]:
        """Return the device-config of one LUN, or without `scsi_id` of the list of LUNs."""
        return {key: value for key, value in zip((*_PORTAL_KEYS, "SCSIid"), (*self, scsi_id)) if value}

    def with_chap_of(self, other: "ProbePortal") -> "ProbePortal":
        return ProbePortal(*self[:3], *other[3:])

    def as_known(self, known: Iterable["ProbePortal"]) -> "ProbePortal":
        """Return this portal with the CHAP of the first known portal of the same address and target."""
        for other in known:
            if other.address == self.address and self.iqn in ("", other.iqn):
                return self.with_chap_of(other)
        return self


HBA = ProbePortal("")  #: Fibre Channel, SAS: the device-config holds only the SCSIid


def portal_of(config: Mapping[str, str]) -> ProbePortal:
    """Return the portal in the device-config of a PBD."""
    return ProbePortal(*(config.get(key, "") for key in _PORTAL_KEYS))


class HostPlan(NamedTuple):
    """The steps that an SR still needs on one host; hosts.py takes them."""

    host: str  #: reference
    name: str
    pbd: str = ""  #: reference of the PBD; "" where `attach` creates the PBD
    is_plugged: bool = False
    is_down: bool = False  #: the host is down and has not plugged the SR; a later run plugs the SR

    @property
    def creates(self) -> bool:
        """Does the host need a PBD? xapi creates a PBD for a host that is down as well."""
        return not self.pbd

    @property
    def plugs(self) -> bool:
        return not (self.is_plugged or self.is_down)


class Pool:
    """A snapshot of the pool. Keys are references.

    A target may list thousands of LUNs, and each LUN asks for an SR. So the records are read once, into indexes.
    """

    def __init__(
        self,
        ref: str,
        master: str,
        hosts: Records,
        live: Dict[str, bool],
        srs: Records,
        pbds: Records,
        other_config: Mapping[str, str],
    ) -> None:
        """`live` is by host, `other_config` that of the pool."""
        self.ref, self.master, self.hosts, self.live = ref, master, hosts, live
        self.srs, self.pbds, self.other_config = srs, pbds, other_config
        begun = {key: text for key, text in other_config.items() if key.startswith(AT_WORK)}
        #: SCSIids by key: LUNs that runs have begun and not introduced
        self.at_work = {key: frozenset(text.split()) for key, text in begun.items()}
        self._by_uuid = {str(sr["uuid"]): ref for ref, sr in reversed(list(srs.items()))}  # the first SR counts
        self._pbds_of: Dict[str, List[Tuple[str, Record]]] = {}
        for pbd_ref, pbd in pbds.items():
            self._pbds_of.setdefault(pbd["SR"], []).append((pbd_ref, pbd))
        self._named: Optional[NamedLuns] = None  #: the SRs by the LUNs of their PBDs, from the first question on
        self._marked = {str(sr["other_config"].get(SCSI_ID)): ref for ref, sr in reversed(list(self.copies()))}

    def with_records(self, srs: Records, pbds: Records) -> "Pool":
        """Return the same pool with newer records of these two classes."""
        return Pool(self.ref, self.master, self.hosts, self.live, srs, pbds, self.other_config)

    def hosts_in_order(self) -> List[str]:
        """Return the hosts: the master first, then the members by name."""
        return sorted(self.hosts, key=lambda ref: (ref != self.master, str(self.hosts[ref]["name_label"]), ref))

    def host_name(self, ref: str) -> str:
        """Return the name of a host, with its UUID where another host has the same name."""
        if ref not in self.hosts:
            return ref
        name = str(self.hosts[ref]["name_label"])
        same = [host for host in self.hosts.values() if host["name_label"] == name]
        return name if len(same) == 1 else f"{name} ({self.hosts[ref]['uuid']})"

    def is_live(self, host: str) -> bool:
        """Does the host answer? False for the host of a PBD that the pool does not have."""
        return self.live.get(host, False)

    def pbds_of(self, sr: str) -> Dict[str, Tuple[str, Record]]:
        """Return (reference, record) of the PBDs of an SR, by host."""
        return {pbd["host"]: (ref, pbd) for ref, pbd in self._pbds_of.get(sr, ())}

    def host_plans(self, sr: Optional[str]) -> List[HostPlan]:
        """Return the plan of an SR for each host, the master first; None is an SR that the pool does not have yet."""
        pbds = self.pbds_of(sr) if sr is not None else {}
        found = []
        for host in self.hosts_in_order():
            ref, pbd = pbds.get(host, ("", {}))
            is_plugged = bool(pbd.get("currently_attached"))
            is_down = not (is_plugged or self.is_live(host) or host == self.master)
            found.append(HostPlan(host, self.host_name(host), ref, is_plugged, is_down))
        return found

    def sr_by_uuid(self, uuid: str) -> Optional[str]:
        return self._by_uuid.get(uuid)

    def known_sr(self, uuid: str) -> Optional[KnownSr]:
        """Return the SR with this UUID, and its PBDs."""
        ref = self.sr_by_uuid(uuid)
        return None if ref is None else KnownSr(ref, self.srs[ref], [pbd for _, pbd in self._pbds_of.get(ref, ())])

    def sr_on(self, scsi_id: str) -> Optional[str]:
        """Return the SR with a PBD on this LUN, or the SR that `attach` has introduced for this LUN."""
        if self._named is None:
            of_pbds = [
                (str(value), ref)
                for ref, pbds in self._pbds_of.items()
                if ref in self.srs and self.srs[ref]["type"] not in OWN_TYPES
                for _, pbd in pbds
                for value in pbd["device_config"].values()
            ]
            self._named = NamedLuns(of_pbds)
        named = self._named.refs(scsi_id)
        return named[0] if named else self._marked.get(scsi_id)

    def is_on(self, sr: str, scsi_id: str) -> Optional[bool]:
        """Is the SR on the LUN with this SCSIid? None: the pool knows no LUN of the SR."""
        record = self.srs[sr]
        texts = [str(value) for _, pbd in self.pbds_of(sr).values() for value in pbd["device_config"].values()]
        if not texts:
            known = (record["other_config"].get(SCSI_ID), *record.get("sm_config", {}).values())
            texts = [str(text) for text in known if text and (text == known[0] or "scsi-" in text)]
        return any(names_lun(text, scsi_id) for text in texts) if texts else None

    def lun_of(self, sr: str) -> Optional[str]:
        """Return the SCSIid of the SR's LUN. None where no PBD and no note of the storage manager names one LUN.

        A PBD leads hosts to its LUN. The mark of `attach` is only a note, which a pool-operator can change.
        """
        listed = {str(pbd["device_config"].get("SCSIid", "")) for _, pbd in self.pbds_of(sr).values()}
        if listed:
            return listed.pop() if len(listed) == 1 else None
        marked = str(self.srs[sr]["other_config"].get(SCSI_ID, ""))
        notes = [text for text in map(str, self.srs[sr].get("sm_config", {}).values()) if "scsi-" in text]
        return marked if marked and notes and all(names_lun(text, marked) for text in notes) else None

    def is_begun(self, scsi_id: str) -> bool:
        """Has a run of this pool begun to resignature this LUN, and not yet marked the SR of the LUN?"""
        return any(scsi_id in begun for begun in self.at_work.values())

    def copies(self) -> Iterator[Tuple[str, Record]]:
        """Yield the SRs with relvmoiscsi's marks."""
        for ref, sr in self.srs.items():
            if is_copy(sr):
                yield ref, sr

    def portals(self) -> List[ProbePortal]:
        """Return the portals of the pool's LVM SRs, with the CHAP of the PBD; each target once."""
        found: Dict[Tuple[str, str, str], ProbePortal] = {}
        for pbd in self.pbds.values():
            config = pbd["device_config"]
            sr = self.srs.get(pbd["SR"])
            if sr is None or sr["type"] != ISCSI_SR.stock or not config.get("target"):
                continue
            portal = portal_of(config)
            if not set("*,").isdisjoint(portal.iqn):  # XenCenter's wildcard: a probe needs a single IQN
                portal = portal._replace(iqn="")
            found.setdefault(portal[:3], portal)
        return [found[key] for key in sorted(found)]


def is_copy(sr: Record) -> bool:
    """Has `attach` introduced this SR? xapi takes any text for the UUID of an SR; a copy has a real one."""
    return ORIGINAL_SR in sr["other_config"] and is_uuid(sr["uuid"])


def original_of(pool: Pool, copy: str) -> str:
    """Return the UUID of the SR that an SR (its UUID) is a copy of; "" where the pool does not know."""
    sr = pool.sr_by_uuid(copy)
    return "" if sr is None else str(pool.srs[sr]["other_config"].get(ORIGINAL_SR, ""))


def verify_copy(pool: Pool, sr: str) -> None:
    """Raises Refused for an SR that `attach` has not introduced."""
    record = pool.srs[sr]
    if not is_copy(record):
        raise Refused(
            f"The SR {record['name_label']!r} ({shown_uuid(record['uuid'])}) was not introduced by "
            "`relvmoiscsi pool attach`."
        ).advising("Give the SR of an attached copy.")


def verify_not_discarded(calls: Calls, sr_uuids: Iterable[str]) -> None:
    """Raises Refused where the pool no longer has a copy that a plan names, as after a question; PoolFailure."""
    there = {sr["uuid"] for sr in calls.records("SR").values()}
    gone = sorted(set(sr_uuids) - there)
    if gone:
        raise _discarded(*gone)


def _discarded(*sr_uuids: str) -> Refused:
    return Refused(f"Another client has discarded the copy {', '.join(sr_uuids)}.").advising(
        "`relvmoiscsi pool luns` lists the copies."
    )


def verify_readable(calls: Calls, sr_uuid: str) -> None:
    """Raises PoolFailure where the storage manager cannot read a copy, such as on a LUN that is damaged or unmapped.

    Raises Refused for a copy that is gone meanwhile.

    The pool's records show an SR as its last scan found it, and a scan may change these records: no dry run calls this.
    A vm-admin may not scan, and does not get this check.
    """
    try:
        ref = calls.call("SR.get_by_uuid", sr_uuid)
        name = calls.call("SR.get_name_label", ref)  # behind the scan, its failure would hide that of the scan
        try:
            with passing("RBAC_PERMISSION_DENIED"):
                calls.run("SR.scan", ref)
        except PoolFailure as failure:
            failure.message = f"The copy {name!r} ({sr_uuid}) cannot be read. {failure.message}"
            discard = shell_command("relvmoiscsi pool discard", sr_uuid)
            failure.advising(f"If its LUN is damaged, run `{discard}`, and attach another clone of the snapshot.")
            raise
    except PoolFailure as failure:
        if failure.description[:2] not in (["UUID_INVALID", "SR"], ["HANDLE_INVALID", "SR"]):
            raise
        raise _discarded(sr_uuid) from failure


def verify_on_own_lun(pool: Pool, sr: str) -> None:
    """Raises Refused where a PBD of a copy leads to another LUN than the mark of the copy names."""
    record = pool.srs[sr]
    marked = str(record["other_config"].get(SCSI_ID, ""))
    named = {str(pbd["device_config"].get("SCSIid", "")) for _, pbd in pool.pbds_of(sr).values()} - {"", marked}
    if named:
        uuid, luns = record["uuid"], ", ".join(sorted(named))
        of_mark = f"the LUN {marked}" if marked else "no LUN"
        correct = shell_command("xe sr-param-set", f"uuid={uuid}", f"other-config:{SCSI_ID}={min(named)}")
        raise Refused(
            f"The SR {record['name_label']!r} ({uuid}) is marked as a copy on {of_mark}, but its PBDs name the LUN "
            f"{luns}. The SR may be an original."
        ).advising(f"If the SR is a copy, correct the mark: `{correct}`.")


def read(calls: Calls) -> Pool:
    """Read the records of the pool. Raises PoolFailure."""
    ref, pool = calls.pool()
    metrics = calls.records("host_metrics")
    hosts = calls.records("host")
    return Pool(
        ref=ref,
        master=pool["master"],
        hosts=hosts,
        live={host: bool(metrics.get(record["metrics"], {}).get("live", True)) for host, record in hosts.items()},
        srs=calls.records("SR"),
        pbds=calls.records("PBD"),
        other_config=pool["other_config"],
    )


_MOST_UUIDS = 20  #: in a message


def find(
    there: Records,
    text: str,
    what: str,
    listed: str,
    others: Sequence[str] = (),
    details: Callable[[Record], str] = lambda _: "",
) -> str:
    """Return the reference of the record with this UUID; else with this name; else the only one of `others`.

    No text in the form of a UUID is a name: else whoever names a record after the UUID of a gone record would lead a
    command to the wrong record. `listed` is the advice: the command that lists the records. `details` tells records of
    one name apart. Raises NotFound, with the nearest name; UsageError for an ambiguous name, and for a name in the form
    of a UUID.
    """
    refs = [ref for ref, record in there.items() if record["uuid"] == text.lower()]
    same = [ref for ref, record in there.items() if record["name_label"] == text]
    if not refs and same and is_uuid(text.lower()):
        uuids = ", ".join(sorted(shown_uuid(there[ref]["uuid"]) for ref in same))
        raise UsageError(f"There is no {what} with the UUID {text}.").advising(
            f"To use the {what} with this name, give {uuids}."
        )
    refs = refs or same or list(others)
    if not refs:
        near = nearest(text, (str(record["name_label"]) for record in there.values()))
        meant = "".join(f" Did you mean {said(name)}?" for name in near)
        raise NotFound(f"There is no {what} {text!r}.{meant}").advising(listed)
    if len(refs) > 1:
        uuids = some_of(sorted(shown_uuid(there[ref]["uuid"]) + details(there[ref]) for ref in refs), _MOST_UUIDS)
        raise UsageError(f"{len(refs)} {what}s have the name {text!r}.").advising(f"Give a UUID: {uuids}.")
    return refs[0]


class NotAttached(NotFound):
    """No SR of the pool is on the LUN with this SCSIid."""


def find_sr(pool: Pool, text: str) -> str:
    """Return the SR with this UUID, the only SR with this name, or the copy on the LUN with this SCSIid.

    Raises NotFound, NotAttached, UsageError.
    """
    scsi_id = "" if is_uuid(text.lower()) else certain_scsi_id(text)
    on_lun = [ref for ref, sr in pool.copies() if sr["other_config"].get(SCSI_ID) == (scsi_id or text)]
    listed = "`xe sr-list params=uuid,name-label` lists the SRs, `relvmoiscsi pool luns` the LUNs of the copies."
    try:
        return find(pool.srs, text, "SR", listed, on_lun)
    except NotFound:
        if not scsi_id:
            raise
    there = pool.sr_on(scsi_id)
    if there is not None:
        raise NotFound(
            f"The LUN with the SCSIid {scsi_id} is that of the SR {pool.srs[there]['name_label']!r}, which is no copy."
        ).advising(f"Give a copy. For a command on the original, give its UUID, {shown_uuid(pool.srs[there]['uuid'])}.")
    attach = shell_command("relvmoiscsi pool attach", scsi_id)
    raise NotAttached(f"The LUN with the SCSIid {scsi_id} is not attached.").advising(
        f"`{attach}` attaches it.", attach
    )


def has_sr(pool: Pool, text: str) -> bool:
    """May `text` mean an SR of the pool? False where `find_sr` raises NotFound. The Ansible collection asks."""
    try:
        find_sr(pool, text)
    except NotFound:
        return False
    except UsageError:
        pass
    return True


def original_uuid(pool: Pool, text: str) -> str:
    """Return the UUID of an SR from its UUID or name. Raises NotFound, UsageError.

    The pool may lack an SR with the given UUID: the SR may exist only on LUNs.
    """
    if is_uuid(text.lower()) and pool.sr_by_uuid(text.lower()) is None:
        return text.lower()
    return str(pool.srs[find_sr(pool, text)]["uuid"])
