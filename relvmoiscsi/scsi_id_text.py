# SPDX-License-Identifier: LGPL-2.1-only
"""Texts with SCSIids: the forms that SM and udev make of a SCSIid. `host.disk.scsi_id` reads SCSIids from devices."""

import re
from typing import Dict, Iterable, List, Tuple

from relvmoiscsi.errors import UsageError

#: printable, without a slash, no option: a SCSIid becomes part of paths and a word of commands
_SCSI_ID = re.compile(r"(?!-)[!-.0-~]{1,255}\Z")

_NAA = "6[0-9a-f]{31}|[0-57-9a-f][0-9a-f]{15}"
_EUI = "[0-9a-f]{16}(?:[0-9a-f]{8}){0,2}"
#: udev's first character, and the forms of the number that a person may type
_TYPED = (
    ("3", re.compile(rf"(?:naa\.|wwn-0x)({_NAA})\Z")),
    ("3", re.compile(r"(?:0x)?(6[0-9a-f]{31}|5[0-9a-f]{15})\Z")),
    ("2", re.compile(rf"eui\.({_EUI})\Z")),
    ("", re.compile(rf"(?:scsi-|0x)?(3(?:{_NAA})|2(?:{_EUI}))\Z")),
)
#: what scsi_id prints of a LUN without a number: `scsi-` before any such text; without it, a vendor of eight characters
#: and a serial number (1), a vendor, a model of sixteen characters and a serial number (S), or the name of an iSCSI LUN
_TEXT = re.compile(
    r"(?i:scsi-)([0-9a-fA-FS][!-.0-~]{0,254})\Z|(1[A-Z][!-.0-~]{8,253}|S[A-Z][!-.0-~]{23,253}|8iqn\.[!-.0-~]{1,250})\Z"
)
_OF_ANY_KIND = re.compile(rf"(?:0x)?(?:{_EUI})\Z")
_SAYS_ITS_KIND = ("naa.", "wwn-0x", "eui.", "0x")

#: what stands between the words of a text, before a SCSIid in a word, and behind that SCSIid
_BETWEEN = re.compile(r"[,/\s]")
_BEFORE = r"(?:scsi-|(?:dm-uuid-)?(?:part\d+-)?mpath-|dm-name-)"
_BEHIND = r"-part\d|-\d+:\d+:"

_FORMS = (
    "Give the SCSIid as `scsi_id -g` prints it, or the array's number with naa. or eui. before it. Without a prefix, "
    "only 32 hex digits that begin with 6 are taken, and 16 that begin with 5."
)


def is_scsi_id(text: str) -> bool:
    """Does the text have the form of a SCSIid?"""
    return _SCSI_ID.match(text) is not None and text not in (".", "..")


def is_printed(text: str) -> bool:
    """Is the text a SCSIid as scsi_id prints it? The first character is a designator type, or S for a serial number."""
    return is_scsi_id(text) and text[0] in "0123456789abcdefABCDEFS"


def certain_scsi_id(text: str) -> str:
    """Return udev's form of a number that is certainly a SCSIid; "" for a text that may be a name as well."""
    for kind, form in _TYPED:
        match = form.match(_in_one_group(text))
        if match is not None:
            return kind + match.group(1)
    text = text.strip()
    is_number = _OF_ANY_KIND.match(_in_one_group(text)) or _in_one_group(text).startswith(_SAYS_ITS_KIND)
    match = None if is_number else _TEXT.match(text)
    return "" if match is None else match.group(1) or match.group(2)


def _in_one_group(text: str) -> str:
    """Return the text in small letters, with the digits between : and - together."""
    return re.sub(r"(?<=[0-9a-f])[:-](?=[0-9a-f])", "", text.strip().lower())


def typed_scsi_id(text: str) -> str:
    """Return udev's form of a SCSIid that a person has copied from an array, a switch or a host. Raises UsageError.

    An array prints the number of a LUN without udev's first character, the type of the number. It may print capitals,
    groups of digits, and a prefix for the type:

        naa.6001405a..., wwn-0x6001405A..., 60:01:40:5a:..., 6001405a... (32 digits)    36001405a...
        naa.5001405a..., wwn-0x5001405A..., 50:01:40:5a:..., 5001405a... (16 digits)    35001405a...
        eui.0025385a... (16, 24 or 32 digits)                                           20025385a...
        scsi-<SCSIid>, and any other text that scsi_id may print (`is_printed`)         as it is

    Other digits without a prefix may be an EUI, a NAA, or a serial number, so they are refused. scsi_id prints no such
    text: its first character makes the number of digits odd.
    """
    certain = certain_scsi_id(text)
    if certain:
        return certain
    text, lower = text.strip(), _in_one_group(text)
    if _OF_ANY_KIND.match(lower):
        raise UsageError(f"{text!r} may be a number of several kinds.", "ConfigSCSIid").advising(_FORMS)
    text = re.sub(r"\Ascsi-(?=.)", "", text, flags=re.IGNORECASE)
    if not is_printed(text) or lower.startswith(_SAYS_ITS_KIND):
        raise UsageError(f"{text!r} is no SCSIid.", "ConfigSCSIid").advising(_FORMS)
    return text


def named_scsi_id(text: str) -> str:
    """Return udev's form of a SCSIid that a program gives: as typed, or as the LUN tells it. Raises UsageError.

    A serial number may have a slash, which no typed SCSIid has.
    """
    if "/" in text and is_printed(text.replace("/", "_")):
        return text
    return typed_scsi_id(text)


def in_udev(scsi_id: str) -> str:
    r"""Return the SCSIid as udev rules and link names show it, without characters that a shell interprets.

    Source: systemd src/shared/udev-util.c, udev_replace_chars (behaviour only).
    """
    return re.sub(r"(\\x)|[^A-Za-z0-9#+.:=@_-]", lambda match: match.group(1) or "_", scsi_id)


def names_lun(text: str, scsi_id: str) -> bool:
    """Does a text of SM or udev name the LUN with this SCSIid?

    The text may be the SCSIid or `scsi-<SCSIid>`, alone or in a list with commas. The text may be a path with the
    SCSIid in one of its last two parts, for a disk, a map or a partition: by-id/scsi-<SCSIid>-part1,
    by-id/dm-uuid-mpath-<SCSIid>, by-scsid/<SCSIid>/mapper, by-scsibus/<SCSIid>-3:0:0:1. For a NAA, udev also makes
    by-id/wwn-0x<NAA>.
    """
    forms = "|".join(map(re.escape, (scsi_id, in_udev(scsi_id))))
    names = [rf"{_BEFORE}?(?:{forms})"]
    if scsi_id.startswith("3"):
        names.append("wwn-0x" + re.escape(scsi_id[1:]))
    pattern = r"(?:^|[,/\s])(?:{})(?:$|[,/\s]|{})".format("|".join(names), _BEHIND)
    return re.search(pattern, text) is not None


def luns_named(text: str) -> List[str]:
    """Return the possible SCSIids in such a text; other words may be among the SCSIids.

    The list contains each SCSIid for which `names_lun` is true, in udev's form where udev replaces characters.
    """
    words = _BETWEEN.split(text)
    bare = [re.sub(r"-part\d+\Z|-\d+:\d+:\d+:\d+\Z", "", word) for word in words]
    bare = [re.sub(rf"\A{_BEFORE}(?=.)", "", word) for word in bare]
    return [re.sub(r"\Awwn-0x", "3", word) for word in bare if is_scsi_id(word)]


def _key_of(word: str) -> str:
    """Return the word up to its first _BEHIND. It is the same for a SCSIid, and for that SCSIid with more behind it.

    So each word has one key, whatever the word repeats: a match of _BEHIND has its only dash at its start, so no match
    begins in the SCSIid and ends behind it.
    """
    return re.split(_BEHIND, word, maxsplit=1)[0]


class NamedLuns:
    """Finds the records with a text that names a LUN. Each text is read once, however many LUNs a caller asks for."""

    def __init__(self, texts: Iterable[Tuple[str, str]]) -> None:
        """`texts` are pairs: a text of SM or udev, and the reference of the record with that text."""
        self._refs: Dict[str, Dict[str, None]] = {}  #: by text
        self._texts: Dict[str, List[str]] = {}  #: by the key of a word of the text
        for text, ref in texts:
            self._refs.setdefault(text, {})[ref] = None
        for text in self._refs:
            words = _BETWEEN.split(text)
            starts = {*words, *(re.sub(rf"\A{_BEFORE}", "", word) for word in words)}
            starts |= {"3" + word[len("wwn-0x") :] for word in words if word.startswith("wwn-0x")}
            for key in set(map(_key_of, starts)):
                self._texts.setdefault(key, []).append(text)

    def refs(self, scsi_id: str) -> List[str]:
        """Return the references of the records with a text that `names_lun` takes for this LUN, each once."""
        keys = dict.fromkeys(_key_of(_BETWEEN.split(form)[0]) for form in (scsi_id, in_udev(scsi_id)))
        texts = [text for key in keys for text in self._texts.get(key, ()) if names_lun(text, scsi_id)]
        return list(dict.fromkeys(ref for text in texts for ref in self._refs[text]))
