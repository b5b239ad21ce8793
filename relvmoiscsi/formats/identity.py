# SPDX-License-Identifier: LGPL-2.1-only
"""The two kinds of identity on a LUN, and the map from old ones to new ones.

UUIDs of SRs and VDIs are 36 lower-case characters (RFC 4122); SM's patterns accept nothing else.
LVM ids are 32 characters out of 64; the text form groups them 6-4-4-4-4-4-6 with dashes, the label does not.

Only the UUID of the new SR is drawn. Every other new id follows from it and the old id, so a program that knows both
can tell the map, without the LUN. docs/scripting.rst promises that: `derived_uuid` and `derived_lvm_id` stay as they
are.
"""

import hashlib
import re
from typing import Callable, Dict, List, Mapping, NamedTuple

from relvmoiscsi.errors import Malformed, Place, UsageError

#: n -> n random bytes
Entropy = Callable[[int], bytes]

UUID_PATTERN = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_UUID = re.compile(UUID_PATTERN + r"\Z")
_FIND_UUID = re.compile("(?<![0-9a-f])" + UUID_PATTERN + "(?![0-9a-f])")

_LVM_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LVM_ID = re.compile(r"[0-9a-zA-Z!#]{32}\Z")
_LVM_GROUPS = tuple(map(slice, (0, 6, 10, 14, 18, 22, 26), (6, 10, 14, 18, 22, 26, 32)))


def is_uuid(text: str) -> bool:
    return _UUID.match(text) is not None


def find_uuids(text: str) -> List[str]:
    """The UUIDs in a text, in their order."""
    return _FIND_UUID.findall(text)


def replace_uuids(text: str, uuids: Mapping[str, str]) -> str:
    """`text` with every UUID in it that the map knows exchanged; its length stays."""
    return _FIND_UUID.sub(lambda match: uuids.get(match.group(), match.group()), text)


def new_uuid(entropy: Entropy) -> str:
    """A random UUID, version 4."""
    return _uuid_of_version(4, entropy(16))


def derived_uuid(new_sr: str, old: str) -> str:
    """What the UUID `old` becomes on the SR `new_sr`: the UUID of version 5 of that name in that namespace.

    The UUID of the old SR itself is the one that becomes `new_sr` instead.
    Source: RFC 4122 4.3; Python's uuid.uuid5 gives the same.
    """
    return _uuid_of_version(5, hashlib.sha1(uuid_to_bytes(new_sr) + old.encode("utf-8")).digest()[:16])


def _uuid_of_version(version: int, data: bytes) -> str:
    """16 bytes as a UUID: six bits of them give way to version and variant. Source: RFC 4122 4.1."""
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
    """The 32 characters of an LVM id, dashes removed. Raises FormatError."""
    plain = text.replace("-", "")
    if not _LVM_ID.match(plain):
        raise Malformed(what, where, f"{text!r} is not an LVM id")
    return plain


def is_lvm_id(text: str) -> bool:
    """Whether this is an LVM id without dashes."""
    return _LVM_ID.match(text) is not None


def dashed(lvm_id: str) -> str:
    """The text form of an LVM id: 38 characters."""
    return "-".join([lvm_id[group] for group in _LVM_GROUPS])


def lvm_id_from_bytes(data: bytes) -> str:
    """An LVM id of 32 bytes: the last 32 digits to base 62 of the number they are, lowest first.

    LVM's own ids are of these letters and digits as well, never of `!` and `#`.
    """
    number = int.from_bytes(data, "big")
    letters = []
    for _ in range(32):
        number, index = divmod(number, len(_LVM_ALPHABET))
        letters.append(_LVM_ALPHABET[index])
    return "".join(letters)


def derived_lvm_id(new_sr: str, old: str) -> str:
    """What the LVM id `old` of a PV, VG or LV becomes on the SR `new_sr`; both ids without dashes."""
    text = f"relvmoiscsi:lvm-id:{new_sr}:{old}"
    return lvm_id_from_bytes(hashlib.sha256(text.encode("utf-8")).digest())


class IdMap(NamedTuple):
    """Every identity of a LUN and what replaces it. Both maps are one to one."""

    sr: str  #: the old SR UUID; a key of `uuids`
    uuids: Dict[str, str]  #: SR and VDI UUIDs, old to new
    lvm_ids: Dict[str, str]  #: PV, VG and LV ids without dashes, old to new

    @property
    def new_sr(self) -> str:
        return self.uuids[self.sr]

    def reversed(self) -> "IdMap":
        """The map that gives the old identities back."""
        return IdMap(
            sr=self.new_sr,
            uuids={new: old for old, new in self.uuids.items()},
            lvm_ids={new: old for old, new in self.lvm_ids.items()},
        )


def check_one_to_one(ids: Mapping[str, str], what: str) -> None:
    """Raises UsageError unless every new id is used once and none is an old one as well."""
    seen: Dict[str, str] = {}
    for old, new in sorted(ids.items()):
        if new in ids:
            raise UsageError(f"The new {what} {new} is already on the LUN; choose another one.")
        if new in seen:
            raise UsageError(f"{seen[new]} and {old} would both become the {what} {new}.")
        seen[new] = old
