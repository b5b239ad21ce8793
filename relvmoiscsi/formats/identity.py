# SPDX-License-Identifier: LGPL-2.1-only
"""The two kinds of identity on a LUN, and the map from old to new identities.

UUIDs of SRs and VDIs are 36 lower-case characters (RFC 4122); SM's patterns accept nothing else.
An LVM id has 32 characters out of 64. The metadata text puts dashes into an LVM id (6-4-4-4-4-4-6), the label does not.

Only the UUID of the new SR is random. Every other new id follows from the new SR UUID and the old id. So a program that
knows the new SR UUID and the old ids can compute the map without the LUN. docs/scripting.rst promises that: never
change what `derived_uuid` and `derived_lvm_id` return.
"""

import hashlib
import re
from typing import Callable, Container, Dict, Iterable, List, Mapping, NamedTuple, Tuple

from relvmoiscsi.errors import Malformed, Place, UsageError
from relvmoiscsi.wording import said

#: gives n random bytes for n
Entropy = Callable[[int], bytes]

UUID_PATTERN = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_UUID = re.compile(UUID_PATTERN + r"\Z")

_LVM_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LVM_ID = re.compile(r"[0-9a-zA-Z!#]{32}\Z")
_LVM_GROUPS = tuple(map(slice, (0, 6, 10, 14, 18, 22, 26), (6, 10, 14, 18, 22, 26, 32)))

#: the middle of a UUID and of a dashed LVM id; the characters of the identity before and behind the start of the middle
_MIDDLE = re.compile("-(?=(?:[0-9A-Za-z!#]{4}-){3})")
_AROUND = ((8, 28), (6, 32))  # 8-4-4-4-12, 6-4-4-4-4-4-6


def is_uuid(text: str) -> bool:
    return _UUID.match(text) is not None


def sightings(text: str, ids: Container[str]) -> List[Tuple[int, str]]:
    """Each UUID or dashed LVM id of `ids` in a text, whatever the letters around it: its place, and the identity."""
    spans = (
        (match.start() - before, match.start() + behind)
        for match in _MIDDLE.finditer(text)
        for before, behind in _AROUND
    )
    return [(start, text[start:end]) for start, end in spans if start >= 0 and text[start:end] in ids]


def with_new_ids(text: str, ids: Mapping[str, str]) -> str:
    """`text` with each UUID and dashed LVM id of `ids` replaced by the new identity; the length of the text stays."""
    for at, old in sightings(text, ids):
        text = text[:at] + ids[old] + text[at + len(old) :]
    return text


def derived_uuid(new_sr: str, old: str) -> str:
    """The new UUID of `old` on the SR `new_sr`: the version 5 UUID of the name `old` in the namespace `new_sr`.

    Do not ask for the UUID of the old SR: the old SR UUID becomes `new_sr`.
    Source: RFC 4122 4.3; Python's uuid.uuid5 gives the same UUID.
    """
    return uuid_of_version(5, hashlib.sha1(uuid_to_bytes(new_sr) + old.encode("utf-8")).digest()[:16])


def may_become(new_sr: str, old: str, new: str) -> bool:
    """Whether a run that made the SR `new_sr` can have given the VDI `old` the UUID `new`.

    A UUID of version 5 is derived, so it must be derived from `old`. A person may choose any other UUID (--map).
    """
    return new[14:15] != "5" or new == derived_uuid(new_sr, old)


def uuid_of_version(version: int, data: bytes) -> str:
    """A UUID made of 16 bytes; version and variant replace six bits. Version 4 is random. Source: RFC 4122 4.1."""
    number = int.from_bytes(data, "big")
    number = number & ~(0xF << 76) | version << 76
    number = number & ~(0x3 << 62) | 2 << 62
    return uuid_from_bytes(number.to_bytes(16, "big"))


def uuid_to_bytes(uuid: str) -> bytes:
    """The 16 bytes of a UUID in the order of its text, as CBT logs store it."""
    return bytes.fromhex(uuid.replace("-", ""))


def uuid_from_bytes(data: bytes) -> str:
    digits = data.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def parse_lvm_id(text: str, what: str, where: Place) -> str:
    """The 32 characters of an LVM id, without dashes. Raises Malformed for text that is not an LVM id."""
    plain = text.replace("-", "")
    if not _LVM_ID.match(plain):
        raise Malformed(what, where, f"{said(text)} is not an LVM id")
    return plain


def is_lvm_id(text: str) -> bool:
    """Whether `text` is an LVM id without dashes."""
    return _LVM_ID.match(text) is not None


def dashed(lvm_id: str) -> str:
    """The text form of an LVM id: 38 characters."""
    return "-".join([lvm_id[group] for group in _LVM_GROUPS])


def derived_lvm_id(new_sr: str, old: str) -> str:
    """The new id of a PV, VG or LV with the LVM id `old` on the SR `new_sr`; old and new id have no dashes.

    A SHA-256 as a number in base 62: its last 32 digits, the lowest digit first. LVM makes ids of these letters and
    digits only, too. LVM accepts `!` and `#` in an id, but never makes such an id.
    """
    text = f"relvmoiscsi:lvm-id:{new_sr}:{old}"
    number = int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest(), "big")
    letters = []
    for _ in range(32):
        number, index = divmod(number, len(_LVM_ALPHABET))
        letters.append(_LVM_ALPHABET[index])
    return "".join(letters)


class IdMap(NamedTuple):
    """Every identity of a LUN and the new identity that replaces it. Both maps are one to one."""

    sr: str  #: the old SR UUID; a key of `uuids`
    uuids: Dict[str, str]  #: SR and VDI UUIDs, old to new
    lvm_ids: Dict[str, str]  #: PV, VG and LV ids without dashes, old to new

    def __repr__(self) -> str:
        """In one line: a LUN may have thousands of identities."""
        return f"IdMap(sr={self.sr!r}, {len(self.uuids)} UUIDs, {len(self.lvm_ids)} LVM ids)"

    @property
    def new_sr(self) -> str:
        """Return the new SR UUID. Raises UsageError for a part of a map that does not choose it."""
        if self.sr not in self.uuids:
            raise UsageError(f"This map chooses no UUID in place of the SR {self.sr or '(unnamed)'}.")
        return self.uuids[self.sr]

    def names(self) -> Dict[str, str]:
        """Old to new as texts have identities: UUIDs, and LVM ids with their dashes."""
        return {**self.uuids, **{dashed(old): dashed(new) for old, new in self.lvm_ids.items()}}

    def reversed(self) -> "IdMap":
        """The map that gives the old identities back."""
        return IdMap(
            sr=self.new_sr,
            uuids={new: old for old, new in self.uuids.items()},
            lvm_ids={new: old for old, new in self.lvm_ids.items()},
        )


def check_one_to_one(ids: Mapping[str, str], what: str, names: Iterable[str] = ()) -> None:
    """Raises UsageError when two old ids have the same new id, or when a new id is also an old id.

    A new id in one of `names` is an error too: then two volumes might get one name.
    """
    wanted = set(ids.values())
    taken = {identity for name in names for _at, identity in sightings(name, wanted)}
    seen: Dict[str, str] = {}
    for old, new in sorted(ids.items()):
        if new in ids or new in taken:
            raise UsageError(f"The new {what} {new} is already on the LUN.").advising("Choose another one.")
        if new in seen:
            raise UsageError(f"{seen[new]} and {old} would both become the {what} {new}.")
        seen[new] = old
