# SPDX-License-Identifier: LGPL-2.1-only
"""The request for a resignature. Pure."""

from contextlib import contextmanager
from typing import Iterator, NamedTuple, Optional, Tuple

from relvmoiscsi.arguments import FLAG, TEXT, TEXTS, Kind, an, optional, verify
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats import mapfile
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.scsi_id_text import named_scsi_id


class OneVdiRequest(NamedTuple):
    """A caller's request for a LUN with one VDI."""

    vdi: Optional[str] = None  #: UUID of the leaf; needed when the LUN has several live VDIs
    most_bytes: Optional[int] = None  #: a merge may copy and fill at most so many bytes; None: any number
    note: str = ""  #: a sentence for refusals that names the setting which asks for one VDI; may be empty


class ResignatureRequest(NamedTuple):
    """The request for a resignature."""

    scsi_id: Optional[str] = None  #: of this LUN; a finished run for the same SCSIid is not repeated
    chosen: Optional[IdMap] = None  #: new ids that the caller chooses
    again: bool = False  #: resignature a resignatured LUN again
    sr_uuid: Optional[str] = None  #: of the new SR; None for a random UUID
    one: Optional[OneVdiRequest] = None  #: reduce the LUN to one VDI
    clear_databases: bool = False  #: clear the flag in MGT that marks a VDI as a pool database
    without: Tuple[str, ...] = ()  #: UUIDs of VDIs to leave behind, with the VDIs that were made of them
    words: Tuple[str, ...] = ()  #: the command that makes this request, for messages with another command

    def checked(self) -> "ResignatureRequest":
        """Return the request with its SCSIid in udev's form, and its UUIDs in SM's.

        Raises UsageError for a value that a field cannot have.
        """
        for name, kind in _FIELDS.items():
            verify(f"The field {name} of the request", getattr(self, name), kind)
        for name, kind in _FIELDS_OF_ONE.items() if self.one is not None else ():
            verify(f"The field one.{name} of the request", getattr(self.one, name), kind)
        for name, kind in _FIELDS_OF_MAP.items() if self.chosen is not None else ():
            verify(f"The field chosen.{name} of the request", getattr(self.chosen, name), kind)
        without = tuple(map(mapfile.checked_uuid, self.without))
        sr_uuid = None if self.sr_uuid is None else mapfile.checked_uuid(self.sr_uuid)
        scsi_id = None if self.scsi_id is None else named_scsi_id(self.scsi_id)
        return self._replace(scsi_id=scsi_id, without=without, sr_uuid=sr_uuid, words=tuple(self.words))


_UUID = optional(an("a UUID as text", str))
_IDS = Kind("a dict of texts", lambda ids: isinstance(ids, dict) and all(map(TEXT.holds, [*ids, *ids.values()])))
#: what the fields of a request may be
_FIELDS = {
    "scsi_id": optional(TEXT),
    "chosen": optional(an("an IdMap", IdMap)),
    "again": FLAG,
    "sr_uuid": _UUID,
    "one": optional(an("a OneVdiRequest", OneVdiRequest)),
    "clear_databases": FLAG,
    "without": TEXTS,
    "words": TEXTS,
}
_FIELDS_OF_ONE = {
    "vdi": _UUID,
    "most_bytes": optional(Kind("a number of bytes", lambda most: type(most) is int and most >= 0)),
    "note": TEXT,
}
_FIELDS_OF_MAP = {"sr": TEXT, "uuids": _IDS, "lvm_ids": _IDS}


@contextmanager
def naming_who_asks(request: Optional[OneVdiRequest]) -> Iterator[None]:
    """Add the request's note to a refusal that is raised in the block."""
    try:
        yield
    except Refused as error:
        if request is not None and request.note:
            error.message += " " + request.note
        raise
