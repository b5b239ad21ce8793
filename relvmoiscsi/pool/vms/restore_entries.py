# SPDX-License-Identifier: LGPL-2.1-only
"""Read the entries of the journal of a restore from a VM's record. No other code reads an entry. Pure.

A vm-admin may write each key of a VM. So an entry counts only if a run could have written the entry. Of an unreadable
entry, each UUID in its text counts: `discard` refuses a copy with such a UUID, and the VM has the data of such a VDI.
"""

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Set, Tuple

from relvmoiscsi import untrusted
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats.identity import UUID_PATTERN, is_uuid
from relvmoiscsi.pool import marks
from relvmoiscsi.pool.calls import Record
from relvmoiscsi.pool.records import DEVICE, NO_DEVICE
from relvmoiscsi.pool.vdis import Origin
from relvmoiscsi.pool.vms.device_numbers import AT_ANOTHER
from relvmoiscsi.wording import said

#: keys of VM.other_config; each key ends in the device of the disk. RESTORED: the journal. A key with another end was
#: written by no run and counts for nothing: such a name may have characters that no call can carry, such as CR
RESTORED = "relvmoiscsi:restore:"
#: a run began to move the VDI of the copy home
LEAVING = "relvmoiscsi:restore-home:"
#: UUID of the moved VDI
ARRIVED = "relvmoiscsi:restore-arrived:"
KEYS = (RESTORED, LEAVING, ARRIVED)  #: in the order of removal

BEFORE = " before restore "  #: in the name of a disk that a restore has replaced, before the date of the restore

#: fields of a VBD that stay when a disk is swapped, and their types
VBD: Mapping[str, type] = {
    "bootable": bool, "mode": str, "type": str, "unpluggable": bool, "other_config": dict, "qos_algorithm_type": str,
    "qos_algorithm_params": dict,
}  # fmt: skip

#: members of an entry. A run locks the copy `sr`, and names the VDIs in commands for a person
_UUIDS = ("old", "new", "of", "sr", "home")

MOST = 256  #: keys of each kind of a VM that count; xapi has devices for 255 disks
_UUID = re.compile(f"(?=({UUID_PATTERN}))")  #: at each place, also where two overlap


class Swap(NamedTuple):
    """A disk of a VM before and after a restore: an entry of the journal."""

    vm: str  #: UUID
    userdevice: str
    old: str  #: UUID of the VDI
    new: str  #: UUID of the VDI
    of: str  #: UUID of the VDI of which `new` is the copy: `old`, unless the disk came home from another copy before
    date: str  #: of the restore, in the name of the old VDI while no VM has the old VDI
    sr: str  #: UUID of the copy
    home: str  #: UUID of the SR of the old VDI
    vbd: Dict[str, Any]

    def facts(self) -> Dict[str, str]:
        return {"userdevice": self.userdevice, "old_vdi": self.old, "new_vdi": self.new}

    def waiting_name(self, name: str) -> str:
        """Return the name of the old VDI while no VM has it. SM reads the name from XML."""
        return name if name.endswith(BEFORE + self.date) else untrusted.xml_safe(name + BEFORE + self.date)

    def own_name(self, name: str) -> str:
        """Return the name of the old VDI for its VM: a name that a person has given it meanwhile stays."""
        end = BEFORE + self.date
        return name[: -len(end)] if name.endswith(end) else name


def read(vm: Record) -> Tuple[List[Swap], List[Tuple[str, str]]]:
    """Return (the journal, sorted by device; the unreadable keys, with the reasons).

    A clone of a restored VM has the keys of that VM; such keys are left out.
    """
    found = []
    spoiled = [(key, "a VM has no device for so many disks") for begin in KEYS for key in keys_of(vm, begin)[MOST:]]
    for key in keys_of(vm, RESTORED)[:MOST]:
        try:
            found.append(_swap_of(vm["other_config"][key]))
        except ValueError as error:
            spoiled.append((key, str(error)))
    return [swap for swap in found if swap.vm == vm["uuid"]], spoiled


def devices_of(vm: Record) -> List[str]:
    """Return the devices of the journal, also those of unreadable entries, as the keys say; at most MOST."""
    swaps, spoiled = read(vm)
    names = (key[len(RESTORED) :] for key, _ in spoiled if key.startswith(RESTORED))
    return [*dict.fromkeys([*(swap.userdevice for swap in swaps), *names])][:MOST]


def named_vdis(vm: Record) -> Set[str]:
    """Return the UUIDs of the VDIs that a VM had or has at its devices, by its journal."""
    swaps, spoiled = read(vm)
    texts = [vm["other_config"][key] for key, _ in spoiled]
    return {uuid for swap in swaps for uuid in (swap.old, swap.of, swap.new)}.union(*map(_UUID.findall, texts))


def keys_of(vm: Record, *begins: str) -> List[str]:
    """Return the keys that a run can have written, in the order of `begins`, then by device."""
    keys = sorted(vm["other_config"])
    return [key for begin in begins for key in keys if key.startswith(begin) and DEVICE.fullmatch(key[len(begin) :])]


def _swap_of(text: str) -> Swap:
    """Return the entry in the value of a key. Raises ValueError for values that no run has written."""
    values = marks.values_of(text)
    vbd = values.get("vbd")
    if set(values) != set(Swap._fields) or not isinstance(vbd, dict) or set(vbd) != set(VBD):
        raise ValueError("it has other members than a run writes")
    for name, value in vbd.items():
        if not isinstance(value, VBD[name]):
            raise ValueError(f"{name} of the VBD has a value of another type")
        for each in value.values() if isinstance(value, dict) else ():
            _sendable(each)
    if vbd["type"] != "Disk" or vbd["mode"] not in ("RO", "RW"):  # xapi would make no such disk of the VDI
        raise ValueError("its VBD is no disk")
    texts = {name: _sendable(value) for name, value in values.items() if name != "vbd"}
    if not DEVICE.fullmatch(texts["userdevice"]):
        raise ValueError(f"its device is {NO_DEVICE}")
    for name in _UUIDS:
        if not is_uuid(texts[name]):
            raise ValueError(f"its member {name!r} is no UUID")
    if Origin(texts["sr"], None, {}).new_of(texts["of"]) != texts["new"]:
        raise ValueError("its new VDI is no copy of its old VDI")
    return Swap(**texts, vbd=vbd)


def verify_readable(vm: Record, swap: Swap) -> None:
    """Raises Refused for an entry that no later run could read, such as one of a device 0x0: xapi takes such a name."""
    try:
        _swap_of(marks.text_of(swap._asdict()))
    except ValueError as error:
        disk = f"the disk {said(swap.userdevice)} of the VM {vm['name_label']!r}"
        raise Refused(f"A restore cannot note {disk} in its journal: {error}.").advising(
            f"{AT_ANOTHER} Or restore the other disks alone, with --disk."
        ) from error


def _sendable(value: Any) -> str:
    """Return a text. Raises ValueError for another value, and for characters that no pool stores.

    XML has neither U+FFFE nor U+FFFF, and xapi 25.31 and later stores both.
    """
    untrusted.text_of(value)
    kept: str = value.translate({0xFFFE: None, 0xFFFF: None})
    if untrusted.xml_safe(kept) != kept:
        raise ValueError("a text has characters that no pool stores")
    return str(value)


def journal_of(vm: Record) -> List[Swap]:
    """Return the journal, sorted by device. Raises Refused for an unreadable key."""
    swaps, spoiled = read(vm)
    for key, why in spoiled:
        raise Refused(f"{key} of the VM {vm['name_label']!r} cannot be read: {why}.")
    return swaps


def arrived_as(record: Record, swap: Swap) -> str:
    """Return the UUID of the moved VDI of this disk; "" where the journal names none."""
    values = _values(record, ARRIVED + swap.userdevice)
    return str(values["arrived"]) if values.get("new") == swap.new else ""


def all_arrived(record: Record) -> List[str]:
    """Return the UUIDs of all moved VDIs of this VM, for any state of the journal; at most MOST."""
    found = [_values(record, key) for key in keys_of(record, ARRIVED)[:MOST]]
    return [values["arrived"] for values in found if values]


def _values(record: Record, key: str) -> Dict[str, Any]:
    """Return the content of an ARRIVED key; {} for a missing or unreadable key, or another VM's key."""
    try:
        values = marks.values_of(record["other_config"].get(key, "{}"))
    except ValueError:
        values = {}
    is_of_vm = values.get("vm") == record["uuid"] and isinstance(values.get("arrived"), str)
    return values if is_of_vm and untrusted.text_of(values["arrived"]) == values["arrived"] else {}
