# SPDX-License-Identifier: LGPL-2.1-only
"""The file with the records of a VM: ova.xml in a tar, XML-RPC. Pure.

It is a struct of `version` and `objects`; each of them a struct of `class`, `id` ("Ref:5") and `snapshot`, the record,
in which references to other objects of the file have that form. What is not changed here stays as it is, whatever
release has written it. Source: xen-api ocaml/xapi/{export,import,importexport}.ml.
"""

import io
import tarfile
import xml.etree.ElementTree as ET
from typing import Collection, Dict, List, Mapping, Sequence

from relvmoiscsi.errors import Refused

_NAME = "ova.xml"
_BLOCK = 512  #: of a tar


# --- values


class Value:
    """A `<value>` of XML-RPC, in place."""

    def __init__(self, element: ET.Element) -> None:
        self.element = element

    def _inside(self) -> ET.Element:
        return self.element[0] if len(self.element) else self.element

    @property
    def text(self) -> str:
        return self._inside().text or ""

    @text.setter
    def text(self, text: str) -> None:
        for child in list(self.element):
            self.element.remove(child)
        self.element.text = text

    @property
    def truth(self) -> bool:
        return self.text in ("1", "true")

    @truth.setter
    def truth(self, is_true: bool) -> None:
        self.text = ""
        self.element.text = None
        ET.SubElement(self.element, "boolean").text = "1" if is_true else "0"

    def members(self) -> Dict[str, "Value"]:
        """Of a struct."""
        found = {}
        for member in self.element.findall("struct/member"):
            name, value = member.find("name"), member.find("value")
            if name is not None and value is not None:
                found[name.text or ""] = Value(value)
        return found

    def items(self) -> List["Value"]:
        """Of an array."""
        return [Value(value) for value in self.element.findall("array/data/value")]

    @property
    def map(self) -> Dict[str, str]:
        return {name: value.text for name, value in self.members().items()}

    def set_map(self, entries: Mapping[str, str]) -> None:
        self.text = ""
        self.element.text = None
        struct = ET.SubElement(self.element, "struct")
        for name, text in entries.items():
            member = ET.SubElement(struct, "member")
            ET.SubElement(member, "name").text = name
            ET.SubElement(member, "value").text = text

    def set_list(self, texts: Sequence[str]) -> None:
        self.text = ""
        self.element.text = None
        data = ET.SubElement(ET.SubElement(self.element, "array"), "data")
        for text in texts:
            ET.SubElement(data, "value").text = text


#: what a value may be besides struct, array and bare text; xapi writes no others
_LEAVES = ("string", "boolean", "int", "i4", "i8", "double", "dateTime.iso8601", "nil")
_TRUTHS = ("0", "1")
_DEEPEST = 12  #: structs and arrays in one another: a record has a map or a list of maps
_MOST_BYTES = 64 << 20


def _verify_plain(value: ET.Element, depth: int = 0) -> None:
    """Raises Refused for what one reader may take otherwise than another: xapi takes names of its header in any case,
    and of two members now the first, now the last.
    """
    inside = list(value)
    if value.tag != "value" or len(inside) > 1 or depth > _DEEPEST:
        raise _not_plain()
    if not inside:
        return
    (one,) = inside
    if (value.text or "").strip() or (one.tail or "").strip():
        raise _not_plain()
    if one.tag == "struct":
        _verify_struct(one, depth)
    elif one.tag == "array":
        for data in _only(one, ["data"] if len(one) else []):
            for each in data:
                _verify_plain(each, depth + 1)
    elif one.tag not in _LEAVES or len(one) or (one.tag == "boolean" and one.text not in _TRUTHS):
        raise _not_plain()


def _verify_struct(struct: ET.Element, depth: int) -> None:
    names = set()
    for member in struct:
        if member.tag != "member":
            raise _not_plain()
        name, value = _only(member, ["name", "value"])
        if len(name) or name.text in names:
            raise _not_plain()
        names.add(name.text)
        _verify_plain(value, depth + 1)


def _only(element: ET.Element, tags: Sequence[str]) -> List[ET.Element]:
    children = list(element)
    if [child.tag for child in children] != list(tags):
        raise _not_plain()
    return children


def _verify_names(names: Collection[str], exactly: Collection[str] = ()) -> None:
    """Of a struct that is a record, and no map: alike in any case is the same. Raises Refused."""
    alike = {name.strip().lower() for name in names}
    if len(alike) != len(names) or (exactly and set(names) != set(exactly)):
        raise _not_plain()


def _not_plain() -> Refused:
    return Refused(
        "The records of the VM cannot be read: they are ambiguous and were not written by xapi. Records of "
        "`save-vms` were changed by another program."
    )


class Thing:
    """An object of the file."""

    def __init__(self, value: Value) -> None:
        members = value.members()
        _verify_names(members, ("class", "id", "snapshot"))
        self.value = value
        self.cls, self.id = members["class"].text, members["id"].text
        self.fields = members["snapshot"].members()
        _verify_names(self.fields)

    def text(self, name: str) -> str:
        return self.fields[name].text if name in self.fields else ""

    def truth(self, name: str) -> bool:
        return name in self.fields and self.fields[name].truth

    def map(self, name: str) -> Dict[str, str]:
        return self.fields[name].map if name in self.fields else {}

    def set_text(self, name: str, text: str) -> None:
        """Fields that this release does not have are left out."""
        if name in self.fields:
            self.fields[name].text = text

    def set_truth(self, name: str, is_true: bool) -> None:
        if name in self.fields:
            self.fields[name].truth = is_true

    def set_map(self, name: str, entries: Mapping[str, str]) -> None:
        if name in self.fields:
            self.fields[name].set_map(entries)


class Ova:
    """The file, parsed. Raises Refused for what is no such file."""

    def __init__(self, document: bytes) -> None:
        if b"<!" in document:  # entities of its own: xapi writes none
            raise Refused("The records of the VM cannot be read: they were not written by xapi.")
        if len(document) > _MOST_BYTES:
            raise Refused(f"The records of the VM cannot be read: they have {len(document)} bytes.")
        try:
            self.root = ET.fromstring(document)
            _verify_plain(self.root)
            header = Value(self.root).members()
            _verify_names(header, ("version", "objects"))
            self._data = header["objects"].element.findall("array/data")[0]
            self.things = [Thing(each) for each in header["objects"].items()]
        except (ET.ParseError, KeyError, IndexError) as error:
            raise Refused(f"The records of the VM cannot be read: {error}.") from error
        if len({thing.id for thing in self.things}) != len(self.things):
            raise _not_plain()

    def of(self, cls: str) -> List[Thing]:
        return [thing for thing in self.things if thing.cls == cls]

    def by_id(self, cls: str) -> Dict[str, Thing]:
        return {thing.id: thing for thing in self.of(cls)}

    def drop(self, thing: Thing) -> None:
        self._data.remove(thing.value.element)
        self.things.remove(thing)

    def main(self) -> Thing:
        """The VM itself. Raises Refused."""
        found = [vm for vm in self.of("VM") if not vm.truth("is_a_snapshot")]
        if len(found) != 1:
            raise Refused(f"The records describe {len(found)} VMs, expected one.")
        return found[0]

    def document(self) -> bytes:
        return ET.tostring(self.root, encoding="unicode").encode("utf-8")


# --- the tar


def unpack(archive: bytes) -> bytes:
    """ova.xml of an export. Raises Refused."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            member = tar.next()
            file = tar.extractfile(member) if member is not None and member.name == _NAME else None
            if file is None:
                raise Refused("The export of the pool has no ova.xml.")
            return file.read()
    except tarfile.TarError as error:
        raise Refused(f"The export of the pool is not a tar archive: {error}.") from error


def pack(document: bytes) -> bytes:
    """A tar with ova.xml: header, file, and the end, without padding, at which xapi may hang up."""
    member = tarfile.TarInfo(_NAME)
    member.size = len(document)
    padding = -len(document) % _BLOCK
    return member.tobuf(tarfile.USTAR_FORMAT) + document + bytes(padding + 2 * _BLOCK)


def without_vtpm(document: bytes) -> bytes:
    """The records without vTPMs, whose contents are secrets. Raises Refused."""
    ova = Ova(document)
    for thing in ova.of("VTPM"):
        ova.drop(thing)
    return ova.document()
