# SPDX-License-Identifier: LGPL-2.1-only
"""Runs that a page of docs/ shows: their words and lines, compared with what the command prints."""

import re
import shlex

UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
BEGIN = re.compile(r"night-[0-9a-f]{8}\b")  #: the name of a network, after the UUID of a copy
FINGERPRINT = re.compile("fingerprint of the records is [0-9a-f]{16}")
#: but for the last change of a LUN, which the pages have as the LUNs of the tests do
DATE = re.compile(r"(?<!changed )20\d\d-\d\d-\d\d(?:T\d\d:\d\d:\d\dZ)?")


def shown(page):
    """(argv, lines) of each run on a page (a path), in its order."""
    for _, argv, lines in shown_in(page.read_text(encoding="utf-8")):
        yield argv, lines


def shown_in(text):
    """(program, argv, lines) of each run in the text of a page, in its order."""
    for block in re.findall(r"::\n\n((?:(?:    .*)?\n)+)", text):
        for part in re.split(r"^    \$ ", block, flags=re.MULTILINE)[1:]:
            words, _, rest = part.replace("\\\n    >", "").partition("\n")
            program, *argv = shlex.split(words)
            yield program, argv, [line[4:] for line in rest.splitlines() if line.strip()]


def is_in_order(lines, printed, uuids):
    """Does each line of a page stand in what was printed, after the one before it? A line "..." is any lines, and dates
    may differ. `uuids`, {UUID on the page: UUID that is printed}, learns from each line.
    """
    rest = iter(printed)
    return all(any(is_same(line, other, uuids) for other in rest) for line in lines if line.strip() != "...")


def is_same(line, printed, uuids):
    """Is it one line but for dates and UUIDs, and does each UUID stand for the one for which it stood before?"""
    if without_ids(line) != without_ids(printed):
        return False
    known = dict(zip(UUID.findall(line), UUID.findall(printed)), **uuids)
    if [known[uuid] for uuid in UUID.findall(line)] != UUID.findall(printed) or len(set(known.values())) < len(known):
        return False
    uuids.update(known)
    return True


def without_ids(line):
    line = BEGIN.sub("night-BEGIN", line)
    line = FINGERPRINT.sub("fingerprint of the records is DIGITS", line)
    return DATE.sub("DATE", UUID.sub("UUID", line))
