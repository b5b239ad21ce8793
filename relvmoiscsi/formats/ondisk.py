# SPDX-License-Identifier: LGPL-2.1-only
"""On-disk structures as tables: a `Record` holds the bytes of a structure, a `Field` reads and replaces some of them.

    class LabelHeader(Record, size=32):
        id     = raw(0, 8)
        sector = le64(8)

    header = LabelHeader.at(buffer, 512)     # reads; raises Truncated
    header.sector                            # decodes
    header.replace(sector=1)                 # a new record; the bytes of all other fields stay
    bytes(header)                            # the bytes, as read
    LabelHeader.sector.offset                # the only way to name a position

A Record class cannot be defined unless its fields cover [0, size) without a gap or an overlap.
"""

import sys
from array import array
from functools import partial
from struct import Struct, error
from typing import Any, Callable, Generic, Iterable, List, NamedTuple, Optional, Type, TypeVar, Union, overload

from relvmoiscsi.errors import BadMagic, Place, Truncated

T = TypeVar("T")
R = TypeVar("R", bound="Record")

NOWHERE = Place("a buffer", 0)


class Field(Generic[T]):
    """The bytes of a record that hold one value; `offset` counts from the start of the record."""

    def __init__(
        self, offset: int, layout: Struct, encode: Callable[[T], bytes], decode: Optional[Callable[[Any], T]] = None
    ) -> None:
        self.offset, self.size, self.end = offset, layout.size, offset + layout.size
        self.name = ""
        self._unpack = layout.unpack_from
        self._encode, self._decode = encode, decode

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
        return value if self._decode is None else self._decode(value)

    def stored(self, record: "Record") -> bytes:
        """The field's bytes in a record."""
        return record._bytes[self.offset : self.end]

    def encode(self, value: T) -> bytes:
        """The field's bytes for a value. Raises ValueError when the value does not fit into the field."""
        try:
            data = self._encode(value)
        except error as problem:
            raise ValueError(f"{self.name}: {value} does not fit into {self.size} bytes") from problem
        if len(data) != self.size:
            raise ValueError(f"{self.name}: {len(data)} bytes given, the field has {self.size}")
        return data


class Record:
    """An immutable structure of a fixed size. Reserved and unknown bytes stay as read."""

    SIZE = 0
    __slots__ = ("_bytes",)

    def __init_subclass__(cls, size: int) -> None:
        super().__init_subclass__()
        cls.SIZE = size
        position = 0
        for field in cls.fields():
            if field.offset != position:
                raise TypeError(f"{cls.__name__}.{field.name} is at {field.offset}, expected {position}")
            position = field.end
        if position != size:
            raise TypeError(f"the fields of {cls.__name__} end at {position}, its size is {size}")

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
        """A record of zeros, with `values` in the named fields."""
        return cls(bytes(cls.SIZE)).replace(**values)

    def replace(self: R, **values: Any) -> R:
        """A copy of the record, with `values` in the named fields."""
        data = bytearray(self._bytes)
        for name, value in values.items():
            field = getattr(type(self), name)
            data[field.offset : field.end] = field.encode(value)
        return type(self)(bytes(data))

    def __bytes__(self) -> bytes:
        return self._bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and type(self) is type(other) and bytes(self) == bytes(other)

    def __hash__(self) -> int:
        return hash((type(self), self._bytes))

    def __repr__(self) -> str:
        values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in self.fields())
        return f"{type(self).__name__}({values})"


def _integer(form: str, offset: int) -> "Field[int]":
    layout = Struct(form)
    return Field(offset, layout, layout.pack)


#: the kernel's names of integers, which carry width and byte order: each takes the offset of the field
u8, le32, le64, be32, be64 = (partial(_integer, form) for form in ("B", "<I", "<Q", ">I", ">Q"))


def raw(offset: int, size: int) -> "Field[bytes]":
    return Field(offset, Struct(f"{size}s"), bytes)


def big_endian(code: str, data: Iterable[int]) -> "array[int]":
    """The numbers in big-endian bytes; or, from numbers, an array whose bytes are big-endian. `code`: "I" or "Q"."""
    numbers = array(code, data)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def expect_magic(what: str, where: Place, found: bytes, expected: bytes) -> None:
    """Raises BadMagic unless `found` equals `expected`."""
    if found != expected:
        raise BadMagic(what, where, found, expected)


class Change(NamedTuple):
    """Bytes of a volume that a new identity changes; `old` and `new` have the same length.

    With a `kind`, the bytes are a structure with a checksum, in which SM or tapdisk writes, too (`vhd.STRUCTURES`).
    Then only the bytes that differ between `old` and `new` belong to the identity.
    """

    offset: int  #: bytes from the start of the volume
    old: bytes
    new: bytes
    what: str  #: for the printed plan: "VHD header of VHD-7ee28c74-..."
    kind: str = ""
