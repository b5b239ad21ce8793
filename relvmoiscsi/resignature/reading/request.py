# SPDX-License-Identifier: LGPL-2.1-only
"""The request for a resignature. Pure."""

from contextlib import contextmanager
from typing import Any, Iterator, NamedTuple, Optional, Tuple

from relvmoiscsi.errors import Refused, UsageError
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
        """Return the request with its SCSIid in udev's form. Raises UsageError for a value that a field cannot have."""
        _verify("chosen", self.chosen, "an IdMap", self.chosen is None or isinstance(self.chosen, IdMap))
        _verify("one", self.one, "a OneVdiRequest", self.one is None or isinstance(self.one, OneVdiRequest))
        texts = {"sr_uuid": self.sr_uuid}
        if self.one is not None:
            texts["one.vdi"], most = self.one.vdi, self.one.most_bytes
            _verify("one.most_bytes", most, "a number of bytes", most is None or isinstance(most, int) and most >= 0)
            _verify("one.note", self.one.note, "a text", isinstance(self.one.note, str))
        for name, text in texts.items():
            _verify(name, text, "a UUID as text", text is None or isinstance(text, str))
        for name, flag in (("again", self.again), ("clear_databases", self.clear_databases)):
            _verify(name, flag, "True or False", isinstance(flag, bool))
        for name, several in (("without", self.without), ("words", self.words)):
            is_of_texts = isinstance(several, (tuple, list)) and all(isinstance(each, str) for each in several)
            _verify(name, several, "a tuple of texts", is_of_texts)
        scsi_id = None if self.scsi_id is None else named_scsi_id(self.scsi_id)
        return self._replace(scsi_id=scsi_id, without=tuple(self.without), words=tuple(self.words))


def _verify(name: str, value: Any, expected: str, holds: bool) -> None:
    """Raise UsageError, with the name of the field and the expected kind of value, unless the value has this kind."""
    if not holds:
        raise UsageError(f"The field {name} of the request is {value!r:.80}, expected {expected}.")


@contextmanager
def naming_who_asks(request: Optional[OneVdiRequest]) -> Iterator[None]:
    """Add the request's note to a refusal that is raised in the block."""
    try:
        yield
    except Refused as error:
        if request is not None and request.note:
            error.message += " " + request.note
        raise
