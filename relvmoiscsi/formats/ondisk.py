# SPDX-License-Identifier: LGPL-2.1-only
"""On-disk structures as tables: a `Record` is its bytes, a `Field` is a window on them.

    class LabelHeader(Record, size=32):
        id     = raw(0, 8)
        sector = le64(8)

    header = LabelHeader.at(buffer, 512)     # reads; raises Truncated
    header.sector                            # decodes
    header.replace(sector=1)                 # a new record; every byte that no field names stays
    bytes(header)                            # the bytes, as they were
    LabelHeader.sector.offset                # the only way to name a position

When a Record class is made, its fields are checked to tile [0, size) without a gap or an overlap.
"""

from struct import Struct, error
from typing import Any, Callable, Dict, Generic, List, NamedTuple, Optional, Type, TypeVar, Union, overload

from relvmoiscsi.errors import BadMagic, Place, Truncated

T = TypeVar("T")
R = TypeVar("R", bound="Record")

NOWHERE = Place("a buffer", 0)


class Field(Generic[T]):
    """Bytes of a record from `offset` on, and how they stand for a value: `layout` has one value."""

    def __init__(self, offset: int, layout: Struct, encode: Callable[[T], bytes]) -> None:
        self.offset, self.size, self.end = offset, layout.size, offset + layout.size
        self.name = ""
        self._unpack = layout.unpack_from
        self._encode = encode

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, record: None, owner: type) -> "Field[T]": ...

    @overload
    def __get__(self, record: "Record", owner: type) -> T: ...

    def __get__(self, record: "Optional[Record]", owner: type) -> "Union[Field[T], T]":
        if record is None:
            return self
        value: T = self._unpack(record._bytes, self.offset)[0]
        return value

    def stored(self, record: "Record") -> bytes:
        """The field's bytes in a record."""
        return record._bytes[self.offset : self.end]

    def encode(self, value: T) -> bytes:
        """The field's bytes for a value. Raises ValueError when it does not fit."""
        data = self._encode(value)
        if len(data) != self.size:
            raise ValueError(f"{self.name}: {len(data)} bytes given, the field has {self.size}")
        return data


class Record:
    """An immutable structure of a fixed size. What nobody changed survives, reserved bytes included."""

    SIZE = 0
    __slots__ = ("_bytes",)

    def __init_subclass__(cls, size: int) -> None:
        super().__init_subclass__()
        cls.SIZE = size
        _check_tiling(cls.__name__, cls.fields(), size)

    def __init__(self, data: bytes) -> None:
        if len(data) != self.SIZE:
            raise ValueError(f"{type(self).__name__} has {self.SIZE} bytes, {len(data)} given")
        self._bytes = data

    @classmethod
    def fields(cls) -> "List[Field[Any]]":
        """The fields in the order of their offsets."""
        found = [value for value in vars(cls).values() if isinstance(value, Field)]
        return sorted(found, key=lambda field: field.offset)

    @classmethod
    def at(cls: Type[R], buffer: bytes, offset: int = 0, where: Place = NOWHERE) -> R:
        """The record that starts at `offset` of `buffer`; `where` is the place of the record, for messages.

        Raises Truncated when the buffer ends before the record does.
        """
        data = buffer[offset : offset + cls.SIZE]
        if len(data) != cls.SIZE:
            raise Truncated(cls.__name__, where, cls.SIZE, len(data))
        return cls(bytes(data))

    @classmethod
    def zero(cls: Type[R], **values: Any) -> R:
        """A record of zero bytes, but for the values given."""
        return cls(bytes(cls.SIZE)).replace(**values)

    def replace(self: R, **values: Any) -> R:
        """A copy with other values in the named fields."""
        data = bytearray(self._bytes)
        for name, value in values.items():
            field = getattr(type(self), name)
            data[field.offset : field.end] = field.encode(value)
        return type(self)(bytes(data))

    def without(self, *fields: "Field[Any]") -> bytes:
        """The bytes that lie in none of these fields, which are given in their order."""
        ends, starts = [0, *(field.end for field in fields)], [*(field.offset for field in fields), self.SIZE]
        return b"".join([self._bytes[end:start] for end, start in zip(ends, starts)])

    def as_dict(self) -> Dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in self.fields()}

    def __bytes__(self) -> bytes:
        return self._bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and type(self) is type(other) and bytes(self) == bytes(other)

    def __hash__(self) -> int:
        return hash((type(self), self._bytes))

    def __repr__(self) -> str:
        values = ", ".join("{}={!r}".format(*item) for item in self.as_dict().items())
        return f"{type(self).__name__}({values})"


def _check_tiling(name: str, fields: "List[Field[Any]]", size: int) -> None:
    position = 0
    for field in fields:
        if field.offset != position:
            raise TypeError(f"{name}.{field.name} is at {field.offset}, expected {position}")
        position = field.end
    if position != size:
        raise TypeError(f"the fields of {name} end at {position}, its size is {size}")


def _integer(offset: int, form: str) -> "Field[int]":
    layout = Struct(form)

    def encode(value: int) -> bytes:
        try:
            return layout.pack(value)
        except error as problem:
            raise OverflowError(f"{value} does not fit into {layout.size} bytes") from problem

    return Field(offset, layout, encode)


def u8(offset: int) -> "Field[int]":
    return _integer(offset, "B")


def le32(offset: int) -> "Field[int]":
    return _integer(offset, "<I")


def le64(offset: int) -> "Field[int]":
    return _integer(offset, "<Q")


def be32(offset: int) -> "Field[int]":
    return _integer(offset, ">I")


def be64(offset: int) -> "Field[int]":
    return _integer(offset, ">Q")


def raw(offset: int, size: int) -> "Field[bytes]":
    return Field(offset, Struct(f"{size}s"), bytes)


def expect_magic(what: str, where: Place, found: bytes, expected: bytes) -> None:
    """Raises BadMagic unless the two are equal."""
    if found != expected:
        raise BadMagic(what, where, found, expected)


class Structure(NamedTuple):
    """What changed bytes are part of, where others write to it as well: a header, a record.

    `kind` is one of those that `resignature.protocol.structure` knows.
    """

    kind: str
    offset: int  #: bytes from the start of the volume
    length: int


class Change(NamedTuple):
    """Bytes of a volume that a new identity changes; `old` and `new` have the same length.

    With `within`, only bytes that differ are the identity's, and a checksum in them follows from the rest.
    """

    offset: int  #: bytes from the start of the volume
    old: bytes
    new: bytes
    what: str  #: "VHD header of VHD-7ee28c74-...", for the plan that people read
    within: Optional[Structure] = None
