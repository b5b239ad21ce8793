# SPDX-License-Identifier: LGPL-2.1-only
"""The file with the records of a VM: ova.xml in a tar, XML-RPC. Pure.

The file is a struct of `version` and `objects`. Each object is a struct of `class`, `id` ("Ref:5") and `snapshot`, the
record. References in the record to other objects of the file have the form of an id. Unknown parts of the file stay
unchanged, for files of any xapi release. Source: xen-api ocaml/xapi/{export,import,importexport}.ml.
"""

import re
import tarfile
import xml.etree.ElementTree as ET
from collections import Counter
from typing import Collection, Dict, Iterable, List, Mapping, Sequence, Union

from relvmoiscsi import untrusted_xml
from relvmoiscsi.errors import Refused
from relvmoiscsi.wording import said

ID = re.compile("Ref:[0-9]+")  #: of an object in the file. Without this check, an object could have the id of NULL

_NAME = "ova.xml"
_BLOCK = 512  #: bytes of a tar block


# --- values: `<value>` elements of XML-RPC, read and changed in place


def text_of(value: ET.Element) -> str:
    return (value[0] if len(value) else value).text or ""


def members_of(value: ET.Element) -> Dict[str, ET.Element]:
    """Return the members of a struct by name."""
    found = {}
    for member in value.findall("struct/member"):
        name, inside = member.find("name"), member.find("value")
        if name is not None and inside is not None:
            found[name.text or ""] = inside
    return found


def put(value: ET.Element, new: Union[str, bool, Mapping[str, str], Sequence[str]]) -> None:
    """Replace the content of a value by a text, a boolean, a map or a list of texts."""
    for child in list(value):
        value.remove(child)
    value.text = new if isinstance(new, str) else None
    if isinstance(new, bool):
        ET.SubElement(value, "boolean").text = "1" if new else "0"
    elif isinstance(new, Mapping):
        struct = ET.SubElement(value, "struct")
        for name, text in new.items():
            member = ET.SubElement(struct, "member")
            ET.SubElement(member, "name").text = name
            ET.SubElement(member, "value").text = text
    elif not isinstance(new, str):
        data = ET.SubElement(ET.SubElement(value, "array"), "data")
        for text in new:
            ET.SubElement(data, "value").text = text


#: tags of a value other than struct and array; xapi writes no other tags
_LEAVES = ("string", "boolean", "int", "i4", "i8", "double", "dateTime.iso8601", "nil")
_TRUTHS = ("0", "1")
_OF_RECORD = 3  #: the level of the struct of a record; a deeper struct is a map
_DEEPEST = 12  #: levels of nested structs and arrays: a record has at most a list of maps
_MOST_BYTES = 64 << 20
_MOST_OBJECTS = 20000


def _verify_plain(value: ET.Element, depth: int = 0) -> None:
    """Raises Refused for XML-RPC that two readers may read differently.

    xapi ignores the case of the names in its header. Of two members with one name, xapi takes the first or the last.
    """
    inside = list(value)
    if value.tag != "value" or len(inside) > 1 or depth > _DEEPEST:
        raise _not_plain()
    for one in inside:
        if (value.text or "").strip() or (one.tail or "").strip():
            raise _not_plain()
        if one.tag == "struct":
            names = [_only(member, "member", "name", "value")[0] for member in one]
            twice = [text for text, count in Counter(name.text or "" for name in names).items() if count > 1]
            if twice and depth > _OF_RECORD:
                # xapi keeps a map that a client has set with one key twice. Each reader of XML takes CR for LF, so xapi
                # itself sees one key; `xml_safe` makes the other
                problem = "The records of the VM have one key twice, or two keys that differ only in the kind of their"
                raise Refused(f"{problem} line ends, or in a character that XML forbids: {said(twice[0])}.").advising(
                    "Remove one of these keys, such as a custom field, from the VM. If the records are of `save-vms`, "
                    "save them again."
                )
            if any(len(name) for name in names) or twice:
                raise _not_plain()
            for member in one:
                _verify_plain(member[1], depth + 1)
        elif one.tag == "array":
            for data in _only(one, "array", "data") if len(one) else []:
                for each in data:
                    _verify_plain(each, depth + 1)
        elif one.tag not in _LEAVES or len(one) or (one.tag == "boolean" and one.text not in _TRUTHS):
            raise _not_plain()


def _only(element: ET.Element, tag: str, *tags: str) -> List[ET.Element]:
    """Return the children of an element with the tag `tag`. Raises Refused for children other than `tags`."""
    children = list(element)
    if element.tag != tag or [child.tag for child in children] != list(tags):
        raise _not_plain()
    return children


def _verify_names(names: Collection[str], exactly: Collection[str] = ()) -> None:
    """Raises Refused for names other than `exactly`, and for names that differ only in case (a map may have these)."""
    alike = {name.strip().lower() for name in names}
    if len(alike) != len(names) or (exactly and set(names) != set(exactly)):
        raise _not_plain()


def _not_plain() -> Refused:
    return Refused(
        "The records of the VM cannot be read: they are ambiguous and were not written by xapi. Records of "
        "`save-vms` were changed by another program."
    )


#: begin of the names of the fields of a vTPM, which xapi writes by a function of its own. Source: importexport.ml
_VTPM_BEGIN = "vTPM'_"


class Thing:
    """An object of the file: its class, its id, and the fields of its record."""

    def __init__(self, value: ET.Element) -> None:
        members = members_of(value)
        _verify_names(members, ("class", "id", "snapshot"))
        self.value = value
        self.cls, self.id = text_of(members["class"]), text_of(members["id"])
        if ID.fullmatch(self.id) is None:
            raise _not_plain()
        written = members_of(members["snapshot"])
        begin = _VTPM_BEGIN if self.cls == "VTPM" else ""
        self.fields = {name[len(begin) :] if name.startswith(begin) else name: each for name, each in written.items()}
        if len(self.fields) != len(written):
            raise _not_plain()
        _verify_names(self.fields)

    def text(self, name: str) -> str:
        return text_of(self.fields[name]) if name in self.fields else ""

    def truth(self, name: str) -> bool:
        return self.text(name) in ("1", "true")

    def texts(self, name: str) -> List[str]:
        """Return the texts of a list."""
        return [text_of(each) for each in self.fields[name].findall("array/data/value")] if name in self.fields else []

    def map(self, name: str) -> Dict[str, str]:
        members = members_of(self.fields[name]) if name in self.fields else {}
        return {key: text_of(value) for key, value in members.items()}

    def set(self, name: str, new: Union[str, bool, Mapping[str, str], Sequence[str]]) -> None:
        """Set a field. A field that this release of xapi lacks is ignored."""
        if name in self.fields:
            put(self.fields[name], new)

    def remove(self, names: Collection[str]) -> None:
        """Remove fields."""
        struct = members_of(self.value)["snapshot"].find("struct")
        if names and struct is not None:
            struct[:] = [member for member in struct if (member.findtext("name") or "") not in names]
            self.fields = {name: value for name, value in self.fields.items() if name not in names}


class Ova:
    """The parsed file. Raises Refused for another file."""

    def __init__(self, document: bytes) -> None:
        if len(document) > _MOST_BYTES:
            raise Refused(f"The records of the VM cannot be read: they have {len(document)} bytes.")
        try:
            self.root = untrusted_xml.xml_of(document)
            _verify_plain(self.root)
            header = members_of(self.root)
            _verify_names(header, ("version", "objects"))
            self._data = header["objects"].findall("array/data")[0]
            objects = self._data.findall("value")
            if len(objects) > _MOST_OBJECTS:
                raise Refused(f"The records of the VM cannot be read: they have {len(objects)} objects.")
            self.things = [Thing(each) for each in objects]
        except (ValueError, KeyError, IndexError) as error:
            raise Refused(f"The records of the VM cannot be read: {error}.") from error
        if len({thing.id for thing in self.things}) != len(self.things):
            raise _not_plain()

    def of(self, cls: str) -> List[Thing]:
        return [thing for thing in self.things if thing.cls == cls]

    def by_id(self, cls: str) -> Dict[str, Thing]:
        return {thing.id: thing for thing in self.of(cls)}

    def drop(self, things: Iterable[Thing]) -> None:
        """Remove these objects, all at once: the time grows with the size of the file alone."""
        gone = {id(thing) for thing in things}
        self.things = [thing for thing in self.things if id(thing) not in gone]
        self._data[:] = [thing.value for thing in self.things]

    def main(self) -> Thing:
        """Return the VM that is no snapshot. Raises Refused."""
        found = [vm for vm in self.of("VM") if not vm.truth("is_a_snapshot")]
        if len(found) != 1:
            raise Refused(f"The records describe {len(found)} VMs, expected one.")
        return found[0]

    def document(self) -> bytes:
        return ET.tostring(self.root, encoding="unicode").encode("utf-8")


# --- the tar


def unpack(archive: bytes) -> bytes:
    """Return ova.xml of an export: a regular file, the first of the archive. Raises Refused.

    Only the first header is read: no header of a long name, of pax or of a sparse file leads to another place or size.
    """
    try:
        member = tarfile.TarInfo.frombuf(archive[:_BLOCK], "utf-8", "surrogateescape")
        if not 0 <= member.size <= len(archive) - _BLOCK:
            raise tarfile.ReadError("it ends before its first file ends")
    except tarfile.TarError as error:
        raise Refused(f"The export of the pool is not a tar archive: {error}.") from error
    if member.name != _NAME or member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise Refused("The export of the pool has no ova.xml.")
    return archive[_BLOCK : _BLOCK + member.size]


def pack(document: bytes) -> bytes:
    """Return a tar with ova.xml: header, file and end marker, without the padding, which xapi may not read."""
    member = tarfile.TarInfo(_NAME)
    member.size = len(document)
    padding = -len(document) % _BLOCK
    return member.tobuf(tarfile.USTAR_FORMAT) + document + bytes(padding + 2 * _BLOCK)
