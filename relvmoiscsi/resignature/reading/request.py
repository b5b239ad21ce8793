# SPDX-License-Identifier: LGPL-2.1-only
"""The request for a resignature. Pure."""

from contextlib import contextmanager
from typing import Iterator, NamedTuple, Optional, Tuple

from relvmoiscsi.errors import Refused
from relvmoiscsi.formats.identity import IdMap


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


@contextmanager
def naming_who_asks(request: Optional[OneVdiRequest]) -> Iterator[None]:
    """Add the request's note to a refusal that is raised in the block."""
    try:
        yield
    except Refused as error:
        if request is not None and request.note:
            error.message += " " + request.note
        raise
