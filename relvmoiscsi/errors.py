# SPDX-License-Identifier: LGPL-2.1-only
"""Every error this project raises on purpose, its exit status and its SM error key.

A message is one or more full sentences: what and where, what was found and what was expected, what to do next.
The state the disk is in is a sentence of its own, added by whoever knows it (`in_state`) and printed last.

Anything that is not a `RelvmoiscsiError` is a bug; its traceback goes through and the command exits with 70.
"""

from contextlib import contextmanager
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence, Type, TypeVar, Union

__all__ = [
    "NOTHING_WRITTEN", "BadChecksum", "BadMagic", "CommandFailed", "DeviceError", "FormatError", "Malformed",
    "NotFound", "OnDefect", "Partial", "Place", "Refused", "RelvmoiscsiError", "Truncated", "Unfinished",
    "Unsupported", "UsageError", "in_state", "raise_defect", "reading",
]  # fmt: skip

NOTHING_WRITTEN = "Nothing was written."

SelfError = TypeVar("SelfError", bound="RelvmoiscsiError")


class Place(NamedTuple):
    """A byte inside something that has a name: a device, or a logical volume."""

    container: str  #: "/dev/sdc", "VHD-7ee28c74-464e-4cca-9e34-67690e352b90"
    offset: int  #: bytes from the start of the container

    def __str__(self) -> str:
        return f"byte {self.offset} of {self.container}"

    def plus(self, offset: int) -> "Place":
        """The place `offset` bytes further on."""
        return Place(self.container, self.offset + offset)


class RelvmoiscsiError(Exception):
    """Base of all errors that a person can act on.

    `exit_status` is what the command exits with; `sm_key` names the entry of SM's XE_SR_ERRORCODES.xml that the
    SR driver answers with.
    """

    exit_status = 70
    sm_key = "SMGeneral"

    def __init__(self, message: str, sm_key: Optional[str] = None) -> None:
        super().__init__(message)
        self.message = message
        self.disk_state = ""
        if sm_key is not None:
            self.sm_key = sm_key

    def in_state(self: SelfError, sentence: str) -> SelfError:
        """The same error, which now says what state the disk is in; the first sentence given stays."""
        self.disk_state = self.disk_state or sentence
        return self

    def __str__(self) -> str:
        return (self.message + " " + self.disk_state).strip()


@contextmanager
def in_state(sentence: Union[str, Callable[[], str]], *kinds: Type[RelvmoiscsiError]) -> Iterator[None]:
    """Errors of these kinds, of any kind by default, that come from within say that the disk is in this state.

    As with the method, a sentence that was given further in stays. One that is not known yet is called for. A
    KeyboardInterrupt says what a DeviceError would say: the sentence is its argument.
    """
    try:
        yield
    except RelvmoiscsiError as error:
        if not kinds or isinstance(error, kinds):
            error.in_state(sentence if isinstance(sentence, str) else sentence())
        raise
    except KeyboardInterrupt as stop:
        if not stop.args and (not kinds or DeviceError in kinds):
            stop.args = (sentence if isinstance(sentence, str) else sentence(),)
        raise


class UsageError(RelvmoiscsiError):
    """The request cannot be meant."""

    exit_status = 2
    sm_key = "InvalidArg"


class NotFound(RelvmoiscsiError):
    """A device, LUN, portal or volume group is not there."""

    exit_status = 3
    sm_key = "VolNotFound"


class Refused(RelvmoiscsiError):
    """It would be unsafe: active, in use, not a clone, not enough room for the journal."""

    exit_status = 4
    sm_key = "SRInUse"


class FormatError(RelvmoiscsiError):
    """Bytes on the disk that cannot be read as what they should be."""

    exit_status = 5
    sm_key = "LVMRead"


class BadMagic(FormatError):
    """A structure does not begin with the bytes that mark it."""

    def __init__(self, what: str, where: Place, found: bytes, expected: bytes) -> None:
        super().__init__(f"{what} at {where}: it begins with {found!r}, expected {expected!r}.")
        self.what, self.where, self.found, self.expected = what, where, found, expected


class BadChecksum(FormatError):
    """The stored checksum of a structure and the checksum of its content differ."""

    def __init__(self, what: str, where: Place, stored: int, computed: int) -> None:
        super().__init__(f"{what} at {where}: its checksum is 0x{stored:08x}, its content gives 0x{computed:08x}.")
        self.what, self.where, self.stored, self.computed = what, where, stored, computed


class Truncated(FormatError):
    """A structure goes on past the end of what holds it."""

    def __init__(self, what: str, where: Place, needed: int, available: int) -> None:
        super().__init__(f"{what} at {where}: it needs {needed} bytes, only {max(0, available)} are there.")
        self.what, self.where, self.needed, self.available = what, where, needed, available


class Malformed(FormatError):
    """A structure whose marks are right and whose values contradict themselves or each other."""

    def __init__(self, what: str, where: Place, problem: str) -> None:
        super().__init__(f"{what} at {where}: {problem}.")
        self.what, self.where, self.problem = what, where, problem


class Unsupported(FormatError):
    """A structure that is known, or well formed, but that this project does not rewrite."""

    def __init__(self, what: str, where: Place, problem: str) -> None:
        super().__init__(f"{what} at {where}: {problem}. This is not supported.")
        self.what, self.where, self.problem = what, where, problem


#: what a reader does with bytes that do not read: `raise_defect`, or keep the error and read on
OnDefect = Callable[[FormatError], None]


def raise_defect(problem: FormatError) -> None:
    """Stop at the first defect: for whoever is going to write."""
    raise problem


@contextmanager
def reading(on_defect: OnDefect) -> Iterator[None]:
    """A FormatError from within the block goes to `on_defect`. Where that returns, the block has ended early."""
    try:
        yield
    except FormatError as problem:
        on_defect(problem)


class CommandFailed(RelvmoiscsiError):
    """A program that was run gave an exit status that means failure."""

    exit_status = 6

    def __init__(self, argv: Sequence[str], status: int, stderr: str) -> None:
        shown = " ".join(argv)
        super().__init__("`{}` failed with exit status {}: {}".format(shown, status, stderr.strip() or "no message"))
        self.argv, self.status, self.stderr = tuple(argv), status, stderr


class DeviceError(RelvmoiscsiError):
    """A read, write or flush of a device failed."""

    exit_status = 7
    sm_key = "EIO"

    def __init__(self, device: str, action: str, offset: int, length: int, reason: str, errno: Any = None) -> None:
        where = "" if action == "flush" else f" of {length} bytes at byte {offset}"
        super().__init__(f"{device}: {action}{where} failed: {reason}.")
        self.device, self.action, self.offset, self.length, self.errno = device, action, offset, length, errno


class Unfinished(RelvmoiscsiError):
    """A journal on the disk says that an earlier run was cut."""

    exit_status = 8
    sm_key = "SRUnavailable"


class Partial(RelvmoiscsiError):
    """Of several things asked for some are done, and some are not; the result says which."""

    exit_status = 9
