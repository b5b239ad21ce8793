# SPDX-License-Identifier: LGPL-2.1-only
"""Every error that relvmoiscsi raises on purpose, its exit status and its SM error key.

A message is one or more full sentences: what and where, what was found and what was expected. What a person does next
is apart, as the advice: a program that calls the engine has functions and fields in place of commands.
The state of the disk is a separate sentence. The caller that knows the state adds the sentence (`in_state`).
A person reads what happened, then the state of the disk, then the advice (`__str__`).

Any other exception is a bug: its traceback is printed and the command exits with 70.
"""

import errno
import logging
import re
import resource
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar, Union

from relvmoiscsi import __version__
from relvmoiscsi.wording import cut, quoted, shell_command, with_options

__all__ = [
    "AGAIN", "NOTHING_CHANGED", "NOTHING_WRITTEN", "NO_WAY_OUT", "BadChecksum", "BadMagic", "Busy", "CommandFailed",
    "DeviceError", "FormatError", "LoginRefused", "Lost", "Malformed", "NoAddress", "NoConnection", "NoRoom",
    "NotFound", "NotInstalled", "OnDefect", "Overtaken", "Partial", "Place", "Refused", "RelvmoiscsiError",
    "SHORT", "StructureError", "Truncated", "Unfinished", "Unreachable", "Unsupported", "UsageError", "WayOut",
    "error_facts", "failing_alone", "in_options", "in_state", "interruption", "raise_defect", "reading",
    "refuse_if_short", "short", "shown_bytes",
]  # fmt: skip

log = logging.getLogger(__name__)

NOTHING_WRITTEN = "Nothing was written."
NOTHING_CHANGED = "Nothing was changed."
AGAIN = "Repeat the command."

SelfError = TypeVar("SelfError", bound="RelvmoiscsiError")
SelfFormatError = TypeVar("SelfFormatError", bound="FormatError")


class Place(NamedTuple):
    """A byte inside a named container: a device, or a logical volume."""

    container: str  #: "/dev/sdc", "VHD-7ee28c74-464e-4cca-9e34-67690e352b90"
    offset: int  #: bytes from the start of the container

    def __str__(self) -> str:
        return f"byte {self.offset} of {self.container}"

    def plus(self, offset: int) -> "Place":
        """Return the place `offset` bytes further on."""
        return Place(self.container, self.offset + offset)


class RelvmoiscsiError(Exception):
    """Base of all errors that a person can act on.

    `exit_status` is the exit status of the command. `sm_key` names the entry of SM's XE_SR_ERRORCODES.xml for the
    answer of the SR driver.
    """

    exit_status = 70
    sm_key = "SMGeneral"

    def __init__(self, message: str, sm_key: Optional[str] = None) -> None:
        super().__init__(message)
        self.message = message
        self.advices: List[str] = []  #: one sentence or more each, as `advising` has got them
        self.commands: List[str] = []  #: of the advice, as a shell reads them: nobody looks for commands in a text
        self.disk_state = ""
        if sm_key is not None:
            self.sm_key = sm_key

    def in_state(self: SelfError, sentence: str) -> SelfError:
        """Add the state of the disk, unless the error has a state; return the error."""
        self.disk_state = self.disk_state or sentence
        return self

    def advising(self: SelfError, sentences: str, command: str = "") -> SelfError:
        """Add what a person does next, with a command for a shell; return the error. A program has its own way on.

        `command` is the command in the sentences that can be the next step. No sentence has words that a LUN chooses,
        but for names in a command, quoted.
        """
        self.advices += [sentences] if sentences else []
        self.commands += [command] if command else []
        return self

    @property
    def advice(self) -> str:
        """What a person does next; "" where nothing is known."""
        return " ".join(self.advices)

    @property
    def told(self) -> str:
        """The message and the advice, without the state of the disk."""
        return self.told_before("")

    def told_before(self, step: str, state: str = "") -> str:
        """The same for a caller that says the next step itself: where the step ends the advice, without the step."""
        advices = self.advices[:-1] if self.advices[-1:] == [step] else self.advices
        return " ".join(filter(None, (self.message, state, *advices)))

    def __str__(self) -> str:
        return self.told_before("", self.disk_state)


def in_options(error: RelvmoiscsiError) -> None:
    """Name the fields of a request in an error of the engine as the options of the command."""
    error.message, error.advices = with_options(error.message), [with_options(each) for each in error.advices]


@contextmanager
def in_state(
    sentence: Union[str, Callable[[], str]], *kinds: Type[RelvmoiscsiError], advice: str = ""
) -> Iterator[None]:
    """Add the state of the disk to errors of these kinds (default: all kinds) from the block, and what to do then.

    A state that an inner block has added stays, without this advice. A callable `sentence` is called after the error. A
    KeyboardInterrupt gets the sentences of a DeviceError as its arguments: `interruption` reads them.
    """
    try:
        yield
    except RelvmoiscsiError as error:
        if not error.disk_state and (not kinds or isinstance(error, kinds)):
            error.in_state(sentence if isinstance(sentence, str) else sentence()).advising(advice)
        raise
    except KeyboardInterrupt as stop:
        if not stop.args and (not kinds or DeviceError in kinds):
            state = sentence if isinstance(sentence, str) else sentence()
            stop.args = (state, advice)
        raise


def interruption(stop: KeyboardInterrupt) -> Tuple[str, str]:
    """Return the state of the disk and the advice that `in_state` has added to Ctrl-C, each "" for none."""
    state, advice = (*map(str, stop.args), "", "")[:2]
    return state, advice


@contextmanager
def failing_alone(name: str) -> Iterator[None]:
    """Make a bug in the block, which looks at one of several LUNs, an error about the LUN of this name; log the bug."""
    try:
        yield
    except (RelvmoiscsiError, MemoryError):
        raise
    except Exception as bug:
        log.exception("a bug in the look at %s", name)
        told = f"{name} was not read, because of a bug in relvmoiscsi {__version__}: {cut(repr(bug))}."
        raise RelvmoiscsiError(told) from bug


class UsageError(RelvmoiscsiError):
    """The request is invalid."""

    exit_status = 2
    sm_key = "InvalidArg"


class NotFound(RelvmoiscsiError):
    """A device, LUN, portal or volume group does not exist."""

    exit_status = 3
    sm_key = "VolNotFound"


class Refused(RelvmoiscsiError):
    """The operation would be unsafe: active, in use, not a clone, not enough room for the journal.

    Nothing was written, or only what the state of the disk names. A refusal in the middle of a run is Unfinished.
    """

    exit_status = 4
    sm_key = "SRInUse"


class Busy(Refused):
    """Another process, or another client of the pool, works on the LUN or the copy; or this very process does."""


#: numbers of the errors of a process that can open no more files, or has no memory
SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_OF_WHOLE_HOST = {
    errno.ENFILE: "End other programs, or raise the limit of the whole host: `sysctl fs.file-max` shows it.",
    errno.ENOMEM: "End other programs: this host, or the slice of this program, has no memory left.",
}
_ENOUGH = 1024  #: the limit of open files to advise


def refuse_if_short(error: OSError) -> None:
    """Raise Refused for an error that says nothing about the file or the portal: this process can open no more."""
    if error.errno in SHORT:
        raise short(error) from error


def short(error: OSError) -> Refused:
    """Return the refusal for an error with a number of SHORT."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = f"`{shell_command('ulimit -n 1024')}` lets a command of the same shell open enough."
    if error.errno in _OF_WHOLE_HOST:
        advice = _OF_WHOLE_HOST[error.errno]
    elif 0 <= hard < _ENOUGH:  # the shell would be refused
        advice = f"The hard limit (`ulimit -Hn`) is {hard} here, and only root may raise it: log in anew, or ask root."
    return Refused(f"This process cannot open enough files: {error.strerror}.").advising(advice)


class WayOut(NamedTuple):
    """A command that works on the clone, against an error about its content; without a field, no command helps.

    `resignature.reading.way_out` makes the sentence.
    """

    lvm: Tuple[str, ...] = ()  #: command and options of LVM, all our own; the options that hide the original come later
    names: Tuple[str, ...] = ()  #: the arguments behind the options: a writer of the LUN may have chosen these words
    config: str = ""  #: more of LVM's configuration for this command
    vdi: str = ""  #: UUID of a VDI to leave behind
    sentence: str = ""  #: in place of a command


NO_WAY_OUT = WayOut()


class FormatError(RelvmoiscsiError):
    """Bytes on the disk that do not form the expected structure."""

    exit_status = 5
    sm_key = "LVMRead"
    way_out = NO_WAY_OUT

    def with_way_out(self: SelfFormatError, way_out: WayOut) -> SelfFormatError:
        """Add a way out, unless the error has a way out; return the error."""
        if self.way_out == NO_WAY_OUT:
            self.way_out = way_out
        return self


def shown_bytes(data: bytes) -> str:
    """Return bytes for a message: in quotes where all are printable ASCII, otherwise as hexadecimal digits.

    A quote or a backslash is no part of a text: nobody has to know how Python writes it.
    """
    if re.match(rb"[ !#-&(-\[\]-~]+\Z", data):
        return f'"{data.decode("ascii")}"'
    return "the bytes " + " ".join(f"{byte:02x}" for byte in data) if data else "no bytes"


class StructureError(FormatError):
    """A structure at a known place, with a problem. Each kind of problem has a class."""

    consequence = ""  #: a second sentence of the message

    def __init__(self, what: str, where: Place, problem: str) -> None:
        super().__init__(f"{what} at {where}: {problem}.{self.consequence}")
        self.what, self.where, self.problem = what, where, problem


class BadMagic(StructureError):
    """A structure does not start with its magic bytes."""

    def __init__(self, what: str, where: Place, found: bytes, expected: bytes) -> None:
        super().__init__(what, where, f"it begins with {shown_bytes(found)}, expected {shown_bytes(expected)}")


class BadChecksum(StructureError):
    """The stored checksum of a structure and the checksum of its content differ."""

    def __init__(self, what: str, where: Place, stored: int, computed: int) -> None:
        super().__init__(what, where, f"its checksum is 0x{stored:08x}, its content gives 0x{computed:08x}")


class Truncated(StructureError):
    """A structure extends past the end of its container."""

    def __init__(self, what: str, where: Place, needed: int, available: int) -> None:
        super().__init__(what, where, f"it needs {needed} bytes, only {max(0, available)} are there")


class Malformed(StructureError):
    """A structure with valid magic whose values contradict each other."""


class Unsupported(StructureError):
    """A known or well-formed structure that relvmoiscsi cannot rewrite."""

    consequence = " This is not supported."


#: called by a reader for unreadable bytes: `raise_defect`, or a function that stores the error
OnDefect = Callable[[FormatError], None]


def raise_defect(problem: FormatError) -> None:
    """Stop at the first defect, before a write."""
    raise problem


@contextmanager
def reading(on_defect: OnDefect) -> Iterator[None]:
    """Pass a FormatError of the block to `on_defect`. If `on_defect` returns, the block has ended early."""
    try:
        yield
    except FormatError as problem:
        on_defect(problem)


class CommandFailed(RelvmoiscsiError):
    """A program ended with an exit status that means failure."""

    exit_status = 6

    def __init__(self, argv: Sequence[str], status: int, stderr: str) -> None:
        super().__init__(f"`{quoted(*argv)}` failed with exit status {status}: {stderr.strip() or 'no message'}")
        self.argv, self.status, self.stderr = tuple(argv), status, stderr


class NotInstalled(CommandFailed):
    """A part of relvmoiscsi, or a Python module that it needs, is not on this machine."""

    def __init__(self, message: str) -> None:
        RelvmoiscsiError.__init__(self, message)


class DeviceError(RelvmoiscsiError):
    """A read, write or flush of a device failed."""

    exit_status = 7
    sm_key = "EIO"

    def __init__(self, device: str, action: str, offset: int, length: int, reason: str, errno: Any = None) -> None:
        where = f" of {length} bytes at byte {offset}" if length else ""
        super().__init__(f"{device}: {action}{where} failed: {reason}.")
        self.device, self.action, self.offset, self.length, self.errno = device, action, offset, length, errno


class NoRoom(DeviceError):
    """A write found no room: on the file system of an image file, or on an array. It cannot land later."""

    def __init__(self, device: str, action: str, offset: int, length: int, reason: str, errno: Any = None) -> None:
        super().__init__(device, action, offset, length, reason, errno)
        self.advising("Make room there: on the file system of the image file, or on the array.")


class Unfinished(RelvmoiscsiError):
    """The disk holds a run that was cut: an earlier run, or this run itself."""

    exit_status = 8
    sm_key = "SRUnavailable"


class Partial(RelvmoiscsiError):
    """Some of the requested objects are done and some are not; the result lists both."""

    exit_status = 9


class Overtaken(RelvmoiscsiError):
    """Another run, or another host, has changed the LUN since this run looked at it. This run has stopped."""

    exit_status = 10
    sm_key = "SRInUse"

    def __init__(self, device: str, offset: int) -> None:
        super().__init__(
            f"{device} changed at byte {offset} during this run: another run or another host works on the LUN, "
            "or the array has restored it. This run has stopped, and writes no more."
        )
        self.offset = offset


class NoConnection(RelvmoiscsiError):
    """No connection to a target or to a pool, or the target or the pool refuses the login. Nothing was begun there."""

    exit_status = 11
    sm_key = "ISCSITarget"


class NoAddress(NoConnection, NotFound):
    """The name of a target or a pool is unknown, or the resolver does not answer in time."""

    sm_key = "DNSError"


class Lost(NoConnection, NotFound):
    """The connection has ended. Unfinished commands can be repeated on a new connection."""

    sm_key = "ISCSITarget"


class Unreachable(Lost):
    """No TCP connection to a portal, or to a host of a pool, is possible."""


class LoginRefused(NoConnection, Refused):
    """The target or the pool answers a login with a refusal. `status` is that of a target."""

    sm_key = "ISCSILogin"

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def error_facts(error: RelvmoiscsiError) -> Dict[str, Any]:
    """Return the facts of an error, for `--json` of any command."""
    return {
        "error": {
            "class": type(error).__name__,
            "exit_status": error.exit_status,
            "message": error.message,
            "disk_state": error.disk_state,
            "advice": error.advice,
        },
    }
