# SPDX-License-Identifier: LGPL-2.1-only
"""Find journals by looking for them, where no label leads to them. Whether one counts, others decide."""

import logging
from typing import Iterable, List

from relvmoiscsi.device import Device, Range
from relvmoiscsi.errors import FormatError, Place, Refused
from relvmoiscsi.formats.lvm import layout
from relvmoiscsi.resignature.protocol.journal import (
    ALIGNMENT,
    JOURNAL_MAGIC,
    MAX_JOURNAL_BYTES,
    Journal,
    JournalHeader,
    decode,
)
from relvmoiscsi.resignature.protocol.run import verify_run

log = logging.getLogger(__name__)

#: LVM puts the first metadata area here
USUAL_AREA = 4096
#: journals are looked for up to here; SM's metadata areas end at 11 or 16 MiB
SEARCH_BYTES = 64 << 20
_WINDOW_BYTES = 1 << 20
_WINDOWS_AT_ONCE = 16  #: SM's metadata areas are read at once
#: each run leaves one, and the next but one overwrites it; whoever puts more there is up to something
MAX_JOURNALS = 64


def spans(device: Device) -> Iterable[Range]:
    """Where to look: in the metadata area that lies where LVM puts the first one, then everywhere."""
    header = layout.MdaHeader.at(device.read([Range(USUAL_AREA, layout.MdaHeader.SIZE)])[0])
    end = min(SEARCH_BYTES, device.size_bytes)
    if header.magic == layout.MDA_MAGIC and header.start == USUAL_AREA:
        yield Range(USUAL_AREA, min(header.size, end - USUAL_AREA))
    yield Range(0, end)


def journals_in(device: Device, span: Range) -> Iterable[Journal]:
    """Every journal that begins in a part of the device and reads. Raises Refused where there are too many."""
    for at in _magics(device, span):
        try:
            header = JournalHeader.at(device.read([Range(at, JournalHeader.SIZE)])[0])
            length = JournalHeader.SIZE + header.payload_length
            length += -length % ALIGNMENT
            if length > min(MAX_JOURNAL_BYTES, device.size_bytes - at):
                continue
            data = device.read([Range(at, length)])[0]
            run = decode(data, Place(device.name, at))
            verify_run(run, device.size_bytes, Place(device.name, at))
        except FormatError as problem:
            log.debug("no journal at byte %d of %s: %s", at, device.name, problem)
            continue
        yield Journal(run, at, data)


def _magics(device: Device, span: Range) -> List[int]:
    starts = range(span.offset, span.end, _WINDOW_BYTES)
    windows = [Range(start, min(_WINDOW_BYTES, span.end - start)) for start in starts]
    found = []
    for first in range(0, len(windows), _WINDOWS_AT_ONCE):
        batch = windows[first : first + _WINDOWS_AT_ONCE]
        for window, data in zip(batch, device.read(batch)):
            found += [window.offset + at for at in _places(data)]
    if len(found) > MAX_JOURNALS:
        raise Refused(f"{device.name}: the label does not tell, and there are {len(found)} journals.")
    return found


def _places(data: bytes) -> Iterable[int]:
    """Where the magic is in some bytes, if it is where a journal may begin."""
    firsts = data[::ALIGNMENT]  # a hundred times faster than to look for the magic, and so is what most areas are: zero
    at = firsts.find(JOURNAL_MAGIC[:1])
    while at >= 0:
        if data.startswith(JOURNAL_MAGIC, at * ALIGNMENT):
            yield at * ALIGNMENT
        at = firsts.find(JOURNAL_MAGIC[:1], at + 1)
