# SPDX-License-Identifier: LGPL-2.1-only
"""The command `relvmoiscsi` on a volume that this host can reach, and what of its words a user gets to see.

The command rather than the engine: it holds the LUN's and LVM's locks.
"""

import json
import re
from typing import Any, Callable, Dict, Optional, Tuple

from oslo_concurrency import processutils
from oslo_log import log as logging

from relvmoiscsi_cinder.place import Place

LOG = logging.getLogger(__name__)

Execute = Callable[..., Tuple[str, str]]  #: that of a driver: what was printed to stdout and to stderr

_YES = ("--yes", "--not-in-use")  #: the volume was made a moment ago, is attached here alone, and is Cinder's own

_DOES_NOT_RUN = "The command relvmoiscsi does not run on the host of cinder-volume, whose log says why."
_NOT_REACHED = "The volume has no new identities: the host of cinder-volume could not log in to it; its log says why."
_BROKE_OFF = "The resignature broke off; the log of cinder-volume says why. "
_AFTER = {
    "clean": "The volume is a copy still, with the identities of what it was made from.",
    "unfinished": "The volume has some of its new identities and not others: delete it and make it anew.",
}
_UNKNOWN = "What is on the volume is not known: delete it and make it anew."


class Told(Exception):
    """A sentence of our own, for whoever sees the volume: there is nothing in it that only an operator may know."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class _BrokeOff(Exception):
    """It was not started, or killed, or has printed no result: the cause is for the log."""


def give_identities(execute: Execute, place: Place, sr_uuid: str, vdis: str) -> None:
    """The SR on the volume has this UUID afterwards; where it has it already, nothing is written. Raises Told."""
    command = _Command(execute, place)
    try:
        found = command.look()
        if found["state"] == "unfinished":
            command.settle()
            found = command.look()
    except _BrokeOff as problem:
        raise Told(f"{_DOES_NOT_RUN} The volume was made, and has no new identities.") from problem
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
    return found.get("state") == "resignatured" and bool(found["sr"]["uuid"] == sr_uuid)


class _Command:
    def __init__(self, execute: Execute, place: Place) -> None:
        self._execute, self._place = execute, place
        self._path = place.devices[0]

    def look(self) -> Dict[str, Any]:
        """What `show` says, at the first path or URL by which the volume can be read. Raises Told, or _BrokeOff."""
        failure = Told(_NOT_REACHED)
        for path in self._place.devices:
            self._path = path
            try:
                return self.run("show")
            except Told as problem:
                LOG.info("The volume cannot be read at %s: %s", path, problem)
                failure = failure if self._place.hidden else problem
        raise failure

    def run(self, action: str, *options: str) -> Dict[str, Any]:
        """What it says. Raises Told, or _BrokeOff."""
        argv = ["relvmoiscsi", action, self._path, "--json", *self._place.options, *options]
        LOG.info("%s", " ".join(argv))
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
        """The source was copied in the middle of a resignature.

        Where `recover` refuses to finish it, as on a LUN that is known for another one than the run was begun on, the
        resignature takes it back itself.
        """
        try:
            self.run("recover", *_YES)
        except (Told, _BrokeOff) as problem:
            LOG.info("The resignature in the source of this volume is left to the next one: %s", problem)

    def after_all(self) -> Dict[str, Any]:
        """What `show` says when a resignature has not said how it ended; nothing if that breaks off as well."""
        try:
            return self.look()
        except (Told, _BrokeOff):
            return {}


def _sentence(stdout: Any) -> Optional[str]:
    """What the command has said for people, in JSON; None if it did not come to that."""
    try:
        error = json.loads(stdout)["error"]
        return f"{error['message']} {error['disk_state']}".strip()
    except (TypeError, ValueError, KeyError):
        return None


def of_the_volume(sentence: str, path: str) -> str:
    """Without the path, by which nobody finds the volume any more; commands have a DEVICE in its place."""
    device = re.escape(path) + r"(?![\w-])"
    sentence = re.sub(r"(`relvmoiscsi [^`]*?)" + device, r"\1DEVICE", sentence)
    sentence = re.sub(r"(^|[.:!?] )" + device, r"\1The volume", sentence)
    return re.sub(device, "the volume", sentence)
