# SPDX-License-Identifier: LGPL-2.1-only
"""The disks that xapi takes the name of a device for: 0, xvda, hda, d0 and 0x0 are one disk. Pure.

VBD.create refuses a device of which another VBD of the VM has a name. But VBD.set_userdevice takes any text, and
VBD.create takes names beyond the last disk of a bus, such as sdq: these are no disk here, and no run writes them.
Source: xen-api ocaml/xapi/xapi_vm_helpers.ml, possible_VBD_devices_of_string; ocaml/xapi-idl/xen/device_number.ml.
"""

import re
from typing import Dict, FrozenSet, Optional, Tuple

Place = Tuple[str, int, int]  #: bus, disk, partition

AT_ANOTHER = "Attach the disk to the VM again, at another device."  #: what helps where xapi would make no such drive

#: the last disk and the last partition of a bus
_LAST: Dict[str, Tuple[int, int]] = {"xvd": ((1 << 20) - 1, 15), "sd": (15, 15), "fd": (2, 0), "hd": (19, 63)}
_NAME = re.compile("(xvd|sd|fd|hd)([a-z]+)([0-9]*)")
_D_NAME = re.compile("d([0-9]+)(?:p([0-9]+))?")

#: what int_of_string of OCaml reads
_NUMBER = re.compile(
    "[+-]?(?:0[xX]([0-9a-fA-F][0-9a-fA-F_]*)|0[oO]([0-7][0-7_]*)|0[bB]([01][01_]*)|(?:0[uU])?([0-9][0-9_]*))"
)
_BASES = (16, 8, 2, 10)
_MOST_DIGITS = 21  #: of the last disk, in base 2
_INT_BITS = 63  #: of an int of OCaml, which wraps: 26 ** 63 is 0 there


def places_of(text: str) -> FrozenSet[Place]:
    """Return the disks that xapi takes a device for: of a number, one of each of two buses; none for no device.

    The writer of the text may be a stranger.
    """
    found = _NUMBER.fullmatch(text)
    if found is not None:
        (digits, base), *_ = [pair for pair in zip(found.groups(), _BASES) if pair[0] is not None]
        number = _number(digits, base)
        if number is None or (number and text.startswith("-")):
            return frozenset()
        return _existing(("hd" if number < 4 else "xvd", number, 0), ("xvd", number, 0))
    named, numbered = _NAME.fullmatch(text), _D_NAME.fullmatch(text)
    if named is not None:
        bus, letters, digits = named.groups()
        return _existing((bus, _disk(letters), _number(digits or "0")))
    if numbered is not None:
        disk, digits = numbered.groups()
        return _existing(("xvd", _number(disk), _number(digits or "0")))
    return frozenset()


def _existing(*places: Tuple[str, Optional[int], Optional[int]]) -> FrozenSet[Place]:
    """Return the places of disks that a bus has."""
    found = set()
    for bus, disk, partition in places:
        last_disk, last_partition = _LAST[bus]
        if disk is not None and partition is not None and 0 <= disk <= last_disk and partition <= last_partition:
            found.add((bus, disk, partition))
    return frozenset(found)


def _number(digits: str, base: int = 10) -> Optional[int]:
    """Return the number; None for a number beyond every disk."""
    kept = digits.replace("_", "").lstrip("0")
    return int(kept or "0", base) if len(kept) <= _MOST_DIGITS else None


def _disk(letters: str) -> int:
    """Return the number of the disk: 0 for a, 26 for aa."""
    number = 0
    for letter in letters[-_INT_BITS:]:
        number = (26 * number + ord(letter) - ord("a") + 1) % (1 << _INT_BITS)
    return number - 1
