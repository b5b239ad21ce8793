# SPDX-License-Identifier: LGPL-2.1-only
"""Run the command `relvmoiscsi` on a volume that this host reaches, and filter its messages for the user.

This package runs the command instead of the engine, because the command takes the locks of the LUN and of LVM.
"""

import json
import re
from typing import Any, Callable, Dict, Optional, Tuple

from oslo_concurrency import processutils

from relvmoiscsi.wording import printable
from relvmoiscsi_cinder import cinder_log
from relvmoiscsi_cinder.place import Place

Execute = Callable[..., Tuple[str, str]]  #: `_execute` of a driver; returns stdout and stderr

_YES = ("--yes", "--not-in-use")  #: the volume is new, belongs to Cinder, and is attached only to this host

_DOES_NOT_RUN = "The command relvmoiscsi does not run on the host of cinder-volume; its log gives the cause."
_NOT_REACHED = (
    "The volume has no new identities: the host of cinder-volume could not log in to the volume; "
    "its log gives the cause."
)
_BROKE_OFF = "The resignature did not end; the log of cinder-volume gives the cause. "
_AFTER = {
    "clean": "The volume still has the identities of its source.",
    "unfinished": "Only some identities of the volume are new: delete the volume and make a new volume.",
}
_UNKNOWN = "The content of the volume is unknown: delete the volume and make a new volume."


class Told(Exception):
    """A sentence for the user of the volume. The sentence contains nothing that only an operator may know."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class _BrokeOff(Exception):
    """The command did not start, was killed, or printed no result. The cause is only for the log."""


def give_identities(execute: Execute, place: Place, sr_uuid: str, vdis: str) -> None:
    """Give the SR on the volume this UUID; write nothing if the SR has this UUID. Raises Told."""
    command = _Command(execute, place)
    try:
        found = command.look()
        if found["state"] == "unfinished":
            command.settle()
            found = command.look()
    except _BrokeOff as problem:
        raise Told(f"{_DOES_NOT_RUN} The volume was made without new identities.") from problem
    if _has(found, sr_uuid):
        return
    try:
        command.run("resignature", *_YES, "--again", "--sr-uuid", sr_uuid, "--vdis", vdis)
    except (Told, _BrokeOff) as problem:
        if isinstance(problem, Told) and not any(word in problem.sentence for word in place.hidden):
            raise
        found = command.after_all()
        if not _has(found, sr_uuid):
            raise Told(_BROKE_OFF + _AFTER.get(found.get("state", ""), _UNKNOWN)) from problem


def _has(found: Dict[str, Any], sr_uuid: str) -> bool:
    return found.get("state") == "resignatured" and bool(found["sr"] == sr_uuid)


class _Command:
    def __init__(self, execute: Execute, place: Place) -> None:
        self._execute, self._place = execute, place
        self._path = place.devices[0]

    def look(self) -> Dict[str, Any]:
        """Return the answer of `show` at the first path or URL of a readable volume. Raises Told, or _BrokeOff."""
        failure = Told(_NOT_REACHED)
        for path in self._place.devices:
            self._path = path
            try:
                return self.run("show")
            except Told as problem:
                cinder_log.info(f"The volume cannot be read at {path}: {problem}")
                failure = failure if self._place.hidden else problem
        raise failure

    def run(self, action: str, *options: str) -> Dict[str, Any]:
        """Run the command and return its answer. Raises Told, or _BrokeOff."""
        argv = ["relvmoiscsi", action, self._path, "--json", *self._place.options, *options]
        cinder_log.info(" ".join(argv))
        try:
            said, _ = self._execute(*argv, **self._place.how())
            return dict(json.loads(said))
        except processutils.ProcessExecutionError as failure:
            sentence = _sentence(failure.stdout)
            if sentence is None:
                raise _BrokeOff from failure
            raise Told(of_the_volume(sentence, self._path)) from failure
        except (OSError, ValueError) as failure:
            raise _BrokeOff from failure

    def settle(self) -> None:
        """Settle a resignature that was interrupted when the source was copied.

        `recover` refuses to finish a run that was begun on another LUN. Then the next `resignature` rolls the run back.
        """
        try:
            self.run("recover", *_YES)
        except (Told, _BrokeOff) as problem:
            cinder_log.info(f"The resignature in the source of this volume is left for the next one. {problem}")

    def after_all(self) -> Dict[str, Any]:
        """Return the answer of `show` after a resignature without a result; {} if `show` fails too."""
        try:
            return self.look()
        except (Told, _BrokeOff):
            return {}


def _sentence(stdout: Any) -> Optional[str]:
    """Return the command's error message from its JSON; None without a message.

    A message quotes the volume, into which its user writes. JSON brings control characters back, which could write
    lines of their own into Cinder's log.
    """
    try:
        error = json.loads(stdout)["error"]
        return printable(" ".join(filter(None, [error["message"], error["disk_state"], error["advice"]])))
    except (TypeError, ValueError, KeyError):
        return None


def of_the_volume(sentence: str, path: str) -> str:
    """Return the sentence without the path of the volume, which soon no longer exists. Commands get DEVICE instead.

    The option --vdis becomes the extra spec. There is none for --vdi: nobody can name a VDI here.
    """
    sentence = re.sub(r"Name (?:it|one) \(`--vdi`\), or ask", "Ask", sentence)
    sentence = re.sub(r"`--vdis (\w+)`", r"`relvmoiscsi:vdis=\1`", sentence)
    device = re.escape(path) + r"(?![\w-])"
    sentence = re.sub(r"(`relvmoiscsi [^`]*?)" + device, r"\1DEVICE", sentence)
    sentence = re.sub(r"(^|[.:!?] )" + device, r"\1The volume", sentence)
    return re.sub(device, "the volume", sentence)
