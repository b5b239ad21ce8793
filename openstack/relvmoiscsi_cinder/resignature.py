# SPDX-License-Identifier: LGPL-2.1-only
"""What is put before a Cinder driver's class:

    class ResignaturePureISCSIDriver(ResignatureMixin, pure.PureISCSIDriver): ...

Where the volume type asks for it (`relvmoiscsi:resignature=true`, and `relvmoiscsi:vdis=one` for a single VDI), a
volume made from a snapshot or from another volume is attached to this host by os-brick, resignatured by the command,
and detached. Its SR has the UUID of the volume then. The command rather than the engine: it holds the LUN's and LVM's
locks.
"""

import json
from typing import Any, Dict, Optional

from cinder import exception
from cinder.volume import volume_utils
from oslo_concurrency import processutils
from oslo_log import log as logging
from oslo_utils import strutils

LOG = logging.getLogger(__name__)

WANTED = "relvmoiscsi:resignature"  #: extra spec of a volume type: true or false
VDIS = "relvmoiscsi:vdis"  #: extra spec of a volume type: all or one
METADATA = "relvmoiscsi"  #: of a volume: what became of it, for whoever cannot read Cinder's log
_METADATA_LENGTH = 255  # characters, of which Cinder keeps no more


class ResignatureFailed(exception.ImageCopyFailure):
    """The volume goes into `error`, with the sentence in its metadata and in the log.

    It is one of those failures after which Cinder does not make the same volume on another back end as well: this one
    exists here, as it does when an image could not be copied to it.
    """

    message = "The volume was made, but it has no new identities: %(reason)s"


class _CommandFailed(exception.CinderException):
    """The command's own sentence and nothing else."""

    message = "%(sentence)s"


class ResignatureMixin:
    """A volume driver whose copies of SRs can be used beside their originals."""

    def create_volume_from_snapshot(self, volume: Any, snapshot: Any) -> Optional[Dict[str, Any]]:
        """As the driver does it, then new identities where the volume's type asks for them."""
        return self._resignatured(volume, super().create_volume_from_snapshot(volume, snapshot))

    def create_cloned_volume(self, volume: Any, src_vref: Any) -> Optional[Dict[str, Any]]:
        """As the driver does it, then new identities where the volume's type asks for them."""
        return self._resignatured(volume, super().create_cloned_volume(volume, src_vref))

    def _resignatured(self, volume: Any, update: Optional[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
        """The model update, with the new SR in it. Raises ResignatureFailed."""
        specs = _extra_specs(volume)
        if not _is_wanted(volume, specs):
            return update
        if update:
            volume.update(update)  # where the volume is may be said there, and attaching it needs that
        try:
            _refuse_what_cannot_be(volume, specs)
            sr_uuid = self._resignature(volume, specs.get(VDIS, "all"))
        except Exception as problem:  # drivers and connectors raise what they like
            raise _failed(volume, problem) from problem
        told = {**(volume.metadata or {}), METADATA: f"resignatured as SR {sr_uuid}"}
        return {**(update or {}), "metadata": told}

    def _resignature(self, volume: Any, vdis: str) -> str:
        """Attach, resignature, detach: the UUID of the new SR."""
        properties = volume_utils.brick_get_connector_properties(
            self.configuration.use_multipath_for_image_xfer, self.configuration.enforce_multipath_for_image_xfer
        )
        context = volume.obj_context.elevated()
        attached, volume = self._attach_volume(context, volume, properties)
        try:
            return self._give_identities(attached["device"]["path"], volume.id, vdis)
        finally:
            self._detach_volume(context, attached, volume, properties, force=True)

    def _give_identities(self, path: str, sr_uuid: str, vdis: str) -> str:
        found = self._run("show", path)
        if found.get("state") == "resignatured" and found["sr"]["uuid"] == sr_uuid:
            return sr_uuid
        done = {}  # type: Dict[str, Any]
        for _ in range(2):  # the source may hold a resignature that was cut: the first finishes that
            done = self._run("resignature", path, "--yes", "--again", "--sr-uuid", sr_uuid, "--vdis", vdis)
            if done["sr"]["new"] == sr_uuid:
                return sr_uuid
        raise _CommandFailed(sentence=f"The volume is SR {done['sr']['new']} now, and not {sr_uuid}.")

    def _run(self, action: str, path: str, *options: str) -> Dict[str, Any]:
        """What the command says. Raises _CommandFailed."""
        argv = ["relvmoiscsi", action, path, "--json", *options]
        LOG.info("%s", " ".join(argv))
        try:
            said, _ = self._execute(*argv, run_as_root=True)
        except processutils.ProcessExecutionError as failure:
            raise _CommandFailed(sentence=_of_the_volume(_sentence(failure), path)) from failure
        return json.loads(said)


def _extra_specs(volume: Any) -> Dict[str, str]:
    return (volume.volume_type.extra_specs or {}) if volume.volume_type_id else {}


def _is_wanted(volume: Any, specs: Dict[str, str]) -> bool:
    """Volumes that Cinder makes for itself, to back one up or to set it back, must stay what they are copies of.

    They are those that count for no quota.
    """
    return volume.use_quota and strutils.bool_from_string(specs.get(WANTED, "").replace("<is>", "").strip())


def _refuse_what_cannot_be(volume: Any, specs: Dict[str, str]) -> None:
    if specs.get(VDIS, "all") not in ("all", "one"):
        raise exception.InvalidVolumeType(reason=f"{VDIS} is {specs[VDIS]!r}; it can be all or one.")
    if volume.encryption_key_id:
        raise exception.InvalidVolumeType(
            reason="Cinder encrypts its volumes, so no SR can be read on one; take a type without encryption."
        )


def _sentence(failure: processutils.ProcessExecutionError) -> str:
    """What the command has printed for people, in JSON or not."""
    try:
        error = json.loads(failure.stdout)["error"]
        return f"{error['message']} {error['disk_state']}".strip()
    except (TypeError, ValueError, KeyError):
        return (failure.stderr or "").strip() or str(failure)


def _of_the_volume(sentence: str, path: str) -> str:
    """Without the path, by which nobody finds the volume any more."""
    start = "The volume" + sentence[len(path) :] if sentence.startswith(path) else sentence
    return start.replace(path, "the volume")


def _failed(volume: Any, problem: Exception) -> ResignatureFailed:
    """The exception for Cinder; the volume itself tells it too, as nobody but the operator sees the log."""
    reason = problem.msg if isinstance(problem, exception.CinderException) else f"{type(problem).__name__}: {problem}"
    LOG.error("Volume %s was not resignatured: %s", volume.id, reason)
    volume.metadata = {**(volume.metadata or {}), METADATA: reason[:_METADATA_LENGTH]}
    volume.save()
    return ResignatureFailed(reason=reason)
