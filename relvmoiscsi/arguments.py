# SPDX-License-Identifier: LGPL-2.1-only
"""The arguments of the functions that docs/python.rst promises to programs: a value of another type is a UsageError.

A promised function names the kind of each of its arguments once, in its decorator. Pure.
"""

from functools import wraps
from typing import Any, Callable, NamedTuple, TypeVar, cast

from relvmoiscsi.device import Device
from relvmoiscsi.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])


class Kind(NamedTuple):
    """A kind of value: the words for the kind, and the test."""

    expected: str  #: behind "expected": "True or False"
    holds: Callable[[Any], bool]


def an(expected: str, *classes: type) -> Kind:
    """The kind of the instances of these classes."""
    return Kind(expected, lambda value: isinstance(value, classes))


def some(expected: str, one: Kind) -> Kind:
    """The kind of lists and tuples with values of one kind."""
    return Kind(expected, lambda value: isinstance(value, (list, tuple)) and all(map(one.holds, value)))


def optional(kind: Kind) -> Kind:
    """The kind, or None."""
    return Kind(f"{kind.expected}, or None", lambda value: value is None or kind.holds(value))


TEXT = an("a text", str)
TEXTS = some("a tuple of texts", TEXT)
FLAG = an("True or False", bool)
FUNCTION = Kind("a function", callable)
ENTROPY = Kind("a function, as os.urandom is", callable)
DEVICE = Kind("an open device of open_device", lambda value: isinstance(value, Device) and not value.is_closed)


def verify(what: str, value: object, kind: Kind) -> None:
    """Raise UsageError, which names the argument or the field, unless the value is of the kind."""
    if kind.holds(value):
        return
    if kind is DEVICE and isinstance(value, Device):
        raise UsageError(f"{value.name} is closed: {what[0].lower()}{what[1:]} must be open.")
    shown = f"the device {value.name}" if isinstance(value, Device) else f"{value!r:.80}"  # its repr is an address
    raise UsageError(f"{what} is {shown}, expected {kind.expected}.")


def _sized(entropy: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """The entropy, whose every result is verified: a function of a caller may give less than it was asked for."""

    def draw(size: int) -> bytes:
        drawn = entropy(size)
        verify(f"entropy({size})", drawn, Kind(f"{size} bytes", lambda data: type(data) is bytes and len(data) == size))
        return drawn

    return draw


def promised(**kinds: Kind) -> Callable[[Function], Function]:
    """Decorate a function: each argument of a call must be of its kind. Every argument of the function has a kind."""

    def decorated(function: Function) -> Function:
        code = function.__code__  # the module `inspect` costs each call of a driver the import of 14 modules
        assert tuple(kinds) == code.co_varnames[: code.co_argcount], function

        @wraps(function)
        def call(*values: Any, **named: Any) -> Any:
            for name, value in [*zip(kinds, values), *named.items()]:
                if name in kinds:  # else Python raises its TypeError
                    verify(f"The argument {name} of {function.__name__}", value, kinds[name])
            sized = [_sized(value) if kind is ENTROPY else value for kind, value in zip(kinds.values(), values)]
            named = {name: _sized(value) if kinds.get(name) is ENTROPY else value for name, value in named.items()}
            return function(*sized, *values[len(kinds) :], **named)

        return cast(Function, call)

    return decorated
