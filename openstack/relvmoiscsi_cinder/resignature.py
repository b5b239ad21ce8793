# SPDX-License-Identifier: LGPL-2.1-only
"""The mixin for the class of a Cinder driver:

    class ResignaturePureISCSIDriver(ResignatureMixin, pure.PureISCSIDriver): ...

The volume type requests new identities by `relvmoiscsi:resignature=true`, and a single VDI by `relvmoiscsi:vdis=one`.
Then a volume from a snapshot or from another volume is exported to this host, and the command resignatures the volume.
The command logs in to a LUN behind iSCSI. os-brick attaches and detaches any other volume. The new SR has the UUID of
the volume.
"""

import contextlib
import contextvars
import textwrap
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from cinder import exception, objects
from cinder.db import api as db
from cinder.volume import group_types, volume_utils

from relvmoiscsi.lun.url_login import initiator_name
from relvmoiscsi_cinder import cinder_log
from relvmoiscsi_cinder.asking import VDIS, WANTED, vdis_wanted
from relvmoiscsi_cinder.command import Told, give_identities
from relvmoiscsi_cinder.place import Place, on_this_host, place_of

__all__ = ["CAPABILITY", "METADATA", "VDIS", "WANTED", "ResignatureFailed", "ResignatureMixin"]

Update = Optional[Dict[str, Any]]

CAPABILITY = "relvmoiscsi"  #: capability that a back end with the mixin reports to the scheduler: True
METADATA = "relvmoiscsi"  #: metadata key of a volume: the result, for a user who cannot read Cinder's log
_METADATA_LENGTH = 255  # characters that Cinder stores
_UNEXPECTED = "The volume could not be resignatured; the log of cinder-volume gives the cause."
_NOT_ATTACHED = (
    "The volume has no new identities: the host of cinder-volume could not attach the volume; its log gives the cause."
)
_NOT_DETACHED = (
    "The volume has its new identities, but the host of cinder-volume could not detach the volume: see its log."
)

#: Does a driver method run that the manager has called? Its inner calls are not changed. The value is separate for each
#: thread and greenthread.
_at_work = contextvars.ContextVar("relvmoiscsi_at_work", default=False)

#: the initiator during the attachment for a resignature; None at other times
_initiator: "contextvars.ContextVar[Optional[str]]" = contextvars.ContextVar("relvmoiscsi_initiator", default=None)


class ResignatureFailed(exception.ImageCopyFailure):
    """The volume gets the status `error`, with the sentence in its metadata; the cause is in the log.

    After this type of failure, Cinder does not make the volume on another back end. The volume exists on this back end,
    as after a failed copy of an image to the volume.
    """

    message = "%(reason)s"


class ResignatureMixin:
    """A volume driver whose copies of SRs can be used beside their originals."""

    def create_volume_from_snapshot(self, volume: Any, snapshot: Any, *args: Any, **kwargs: Any) -> Update:
        """Call the driver, then resignature the volume if its type requests new identities."""
        make = super().create_volume_from_snapshot
        return self._made(volume, snapshot, lambda: make(volume, snapshot, *args, **kwargs))

    def create_cloned_volume(self, volume: Any, src_vref: Any, *args: Any, **kwargs: Any) -> Update:
        """Call the driver, then resignature the volume if its type requests new identities."""
        make = super().create_cloned_volume
        return self._made(volume, src_vref, lambda: make(volume, src_vref, *args, **kwargs))

    def create_group_from_src(self, context: Any, group: Any, volumes: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the driver, then resignature each volume whose type requests new identities.

        A driver may leave the volumes to Cinder by NotImplementedError. Cinder makes the volumes one by one and sets
        each volume to `available`, also after a failure. So this method makes the volumes, and a failure stays visible.
        """
        make = super().create_group_from_src
        sources = _sources(args, kwargs)
        try:
            return self._made_together(volumes, sources, lambda: make(context, group, volumes, *args, **kwargs))
        except NotImplementedError:
            is_cinders = group_types.is_default_cgsnapshot_type(group.group_type_id)  # made by the next method
            if _at_work.get() or is_cinders or not _wanted(volumes, sources):
                raise
        return self._made_one_by_one(volumes, sources)

    def create_consistencygroup_from_src(
        self, context: Any, group: Any, volumes: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Do the same for a consistency group."""
        make = super().create_consistencygroup_from_src
        sources = _sources(args, kwargs)
        return self._made_together(volumes, sources, lambda: make(context, group, volumes, *args, **kwargs))

    def get_volume_stats(self, refresh: bool = False) -> Update:
        """Return the driver's stats, with the capability for the back end and for each of its pools."""
        stats = super().get_volume_stats(refresh)
        for one in [stats, *(stats.get("pools") or [])] if stats else []:
            one[CAPABILITY] = True
        return stats

    def _made(self, volume: Any, source: Any, make: Callable[[], Update]) -> Update:
        """Return the driver's model update. Raises ResignatureFailed."""
        if _at_work.get():
            return make()
        vdis = _vdis_wanted(volume, source)
        with _driver_at_work():
            update = make()
        return update if vdis is None else self._resignatured(volume, update, vdis)

    def _made_together(self, volumes: Any, sources: Dict[str, Any], make: Callable[[], Any]) -> Any:
        """Return the driver's updates of group and volumes. Raises ResignatureFailed at the first failed volume."""
        if _at_work.get():
            return make()
        wanted = _wanted(volumes, sources)
        with _driver_at_work():
            of_group, of_volumes = make()
        updates = {one["id"]: one for one in of_volumes or []}
        for volume in volumes if wanted else []:  # before any failure, because Cinder saves nothing after a failure
            _known(volume, updates.get(volume.id))
        for volume, vdis in wanted:
            update = self._resignatured(volume, updates.get(volume.id), vdis)
            updates.update({volume.id: update} if update else {})
        return of_group, list(updates.values()) if updates else of_volumes

    def _made_one_by_one(self, volumes: Any, sources: Dict[str, Any]) -> Any:
        updates = []
        for volume in volumes:
            make = self.create_volume_from_snapshot if volume.snapshot_id else self.create_cloned_volume
            update = make(volume, _source(volume, sources)) or {}
            _known(volume, update)
            updates.append({"status": "available", **update, "id": volume.id})
        return {"status": "available"}, updates

    def _resignatured(self, volume: Any, update: Update, vdis: str) -> Update:
        """Return the model update, with the result in its metadata, if any. Raises ResignatureFailed."""
        try:
            self._resignature(_known(volume, update), vdis)
        except Exception as problem:  # drivers and connectors raise any exception
            raise _failed(volume, problem) from problem
        told = {METADATA: f"resignatured as SR {volume.id}"}
        _tell(volume, told)
        return {**update, "metadata": {**update["metadata"], **told}} if update and "metadata" in update else update

    def _resignature(self, volume: Any, vdis: str) -> None:
        """Attach, resignature, detach. A failure to detach does not hide an earlier failure."""
        context = volume.obj_context
        try:
            properties = volume_utils.brick_get_connector_properties(
                self.configuration.use_multipath_for_image_xfer, self.configuration.enforce_multipath_for_image_xfer
            )
            with _attaching(properties):
                attached, volume = self._attach_volume(context, volume, properties)
        except Exception as problem:
            raise Told(_NOT_ATTACHED) from problem
        try:
            give_identities(self._execute, _place(attached["device"]), volume.id, vdis)
        except Exception:
            self._is_detached(context, attached, volume, properties)
            raise
        if not self._is_detached(context, attached, volume, properties):
            raise Told(_NOT_DETACHED)

    def _connect_device(self, conn: Any) -> Any:
        """Call the driver. But a LUN behind iSCSI that is attached for a resignature gets no device on this host."""
        initiator = _initiator.get()
        place = place_of(conn, initiator) if initiator is not None else None
        if place is None:
            return super()._connect_device(conn)
        return {"conn": conn, "device": place, "connector": _NoConnector()}

    def _is_detached(self, context: Any, attached: Any, volume: Any, properties: Any) -> bool:
        """Detach the volume; return False, with the cause in the log, after a failure."""
        try:
            self._detach_volume(context, attached, volume, properties, force=True)
        except Exception as problem:  # noqa: BLE001 - drivers and connectors raise any exception
            cinder_log.error(f"Volume {volume.id} could not be detached from this host.", problem)
            return False
        return True


class _NoConnector:
    """In place of os-brick's connector, for a volume without a device on this host."""

    def disconnect_volume(self, *_args: Any, **_kwargs: Any) -> None:
        """Do nothing."""


def _place(device: Any) -> Place:
    return device if isinstance(device, Place) else on_this_host(device["path"])


@contextlib.contextmanager
def _attaching(properties: Dict[str, Any]) -> Iterator[None]:
    """Set the initiator for the attachment. Without open-iscsi and adapters, the command's initiator name is used."""
    if not properties.get("wwpns"):
        properties.setdefault("initiator", initiator_name(None))
    before = _initiator.set(properties.get("initiator"))
    try:
        yield
    finally:
        _initiator.reset(before)


@contextlib.contextmanager
def _driver_at_work() -> Iterator[None]:
    before = _at_work.set(True)
    try:
        yield
    finally:
        _at_work.reset(before)


def _sources(args: Any, kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """Return the source snapshots or volumes of a group by id, from the lists in the arguments."""
    return {one.id: one for given in (*args, *kwargs.values()) if isinstance(given, (list, tuple)) for one in given}


def _source(volume: Any, sources: Dict[str, Any]) -> Any:
    return sources.get(volume.snapshot_id or volume.source_volid)


def _wanted(volumes: Any, sources: Dict[str, Any]) -> List[Tuple[Any, str]]:
    """Return the volumes to resignature, with the value for --vdis. Raises ResignatureFailed."""
    found = ((volume, _vdis_wanted(volume, _source(volume, sources))) for volume in volumes)
    return [(volume, vdis) for volume, vdis in found if vdis is not None]


def _vdis_wanted(volume: Any, source: Any) -> Optional[str]:
    """Return the value of `asking.vdis_wanted`. A refusal goes into the volume's metadata. Raises ResignatureFailed."""
    try:
        return vdis_wanted(volume, source)
    except Told as problem:
        raise _failed(volume, problem) from problem


def _known(volume: Any, update: Update) -> Any:
    """Save the driver's update of a volume, which attaching and deleting need; return the volume.

    The returned record is a new object, because the manager's object cannot always be saved at this time.
    """
    known = objects.Volume.get_by_id(volume.obj_context.elevated(), volume.id)
    known.update({name: value for name, value in (update or {}).items() if name not in ("id", "status")})
    known.save()
    return known


def _failed(volume: Any, problem: Exception) -> ResignatureFailed:
    """Return the exception for Cinder. The metadata gets the sentence too, because only the operator sees the log."""
    sentence = problem.sentence if isinstance(problem, Told) else _UNEXPECTED
    cinder_log.error(f"Volume {volume.id} was not resignatured: {sentence}", problem)
    _tell(volume, {METADATA: textwrap.shorten(sentence, _METADATA_LENGTH, placeholder=" ...")})
    return ResignatureFailed(reason=sentence)


def _tell(volume: Any, told: Dict[str, str]) -> None:
    """Add the text to the metadata of a volume. A failure does not change the result."""
    try:
        db.volume_metadata_update(volume.obj_context.elevated(), volume.id, told, False)
    except Exception as problem:  # noqa: BLE001 - a database raises any exception
        cinder_log.error(f"Volume {volume.id} cannot be told what became of it: {told[METADATA]}", problem)
