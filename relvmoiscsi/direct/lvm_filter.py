# SPDX-License-Identifier: LGPL-2.1-only
"""Does LVM of this host ignore the direct LUNs? A guest writes volume groups to its LUN, of any name.

LVM itself tells its settings: those of lvm.conf and lvmlocal.conf of one directory, and its defaults. Each device has
several names in /dev. Two lists of patterns, `filter` and `global_filter`, decide alike:

    for each name                            the first pattern that matches the name accepts it or rejects it
    a name is accepted                       LVM uses the device, whatever its other names are
    a name is rejected, and none accepted    LVM ignores the device
    no pattern matches any name              LVM uses the device

One list that rejects the device is enough. With a devices file, LVM heeds neither list, and uses the devices of the
file alone. An entry by a name has a PVID, too. With search_for_devnames = "all", LVM takes any device with that PVID.

LVM matches a name between a character for its start and one for its end. `^` and `$` stand for them, and `.` and
`[^x]` match them as well: `/sda.` matches /dev/sda. `_compiled` refuses what LVM and Python may read otherwise.

Source: LVM2 lib/filters/filter-regex.c, _accept_p and _extract_pattern; lib/device/device_id.c; libdm/regex.
"""

import os
import re
from typing import Dict, List, Mapping, Match, NamedTuple, Optional, Pattern, Sequence, Tuple

from relvmoiscsi.direct.links import every_device_of
from relvmoiscsi.errors import Place, Refused, RelvmoiscsiError
from relvmoiscsi.formats.lvm import text_format
from relvmoiscsi.host.disk import udev
from relvmoiscsi.host.disk.lvm_memory import entries_in
from relvmoiscsi.host.files import attribute, remedy
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.wording import said, shell_command, some_of

#: the word of the filter that keeps LVM from direct LUNs and from their partitions; the rule makes links of this name
LVM_WORD = "/relvmoiscsi-direct-"
_OURS = f"r|{LVM_WORD}|"
_DEFAULT = ["a|.*|"]  #: the list of LVM without a filter
#: LVM reads the files of one directory only; SM chooses the second for commands that write
_DIRECTORIES = ("etc/lvm", "etc/lvm/master")
_SECONDS = 20.0  #: for LVM, which reads its settings and no disk
_ABSENT = "sdzz"  #: stands for the disk of a LUN that is away

_START, _END = "\x02", "\x03"  #: of a name, for LVM's patterns
#: what one character matches: behind a backslash, a class, or another character that is no operator
_ONE = r"\\[ -~]|\[\^?(?:[0-9A-Za-z]-[0-9A-Za-z]|[0-9A-Za-z_ ./:,@#%+=])+\]|[^\[\\(|)*+?\x00-\x1f\x7f-\U0010ffff]"
_ITEM = rf"\(*(?:{_ONE})[*+?]*(?:\)[*+?]*)*"
_PATTERN = re.compile(rf"{_ITEM}(?:\|?{_ITEM})*")  #: no part of it is empty: LVM reads no further than an empty part
_WORD = re.compile(rf"{_ONE}|[*+?]+|[(|)]")
_ESCAPES = {r"\n": "\n", r"\r": "\r", r"\t": "\t"}
_IN_PYTHON = {".": r"[^\n\r]", "^": _START, "$": _END, "(": "(?:", "|": "|", ")": ")"}
_ENDS = {"(": ")", "[": "]", "{": "}"}  #: of a pattern, by its first character; another character ends what it begins

Names = Dict[str, List[str]]  #: paths by device, as words of a sentence


def lvm_problems(luns: Mapping[str, str], host: Host) -> List[RelvmoiscsiError]:
    """Return why LVM may act on what guests write to these LUNs, with advice. `luns` has the SCSIids by name."""
    if not luns:
        return []
    problems: List[RelvmoiscsiError] = []
    try:
        devices = every_device_of(luns.values(), host)
        kernel_names = [os.path.basename(name) for each in devices.values() for name in each]
        lacking = [name for name in kernel_names if not os.path.lexists(_link_for_lvm(name, host))]
        if lacking:
            again = shell_command("udevadm trigger --action=change", sysname_match=lacking)
            nodes = some_of([host.node(name) for name in lacking])
            problems.append(
                Refused(
                    f"LVM's filter does not know {nodes} of a direct LUN: udev has made no link for that."
                ).advising(f"Have udev apply its rules: `{again}`.")
            )
        names = {scsi_id: _names(scsi_id, each, host) for scsi_id, each in devices.items()}
    except RelvmoiscsiError as error:
        return [error.advising("Repair udev's database: LVM's filter needs its links.")]
    for directory in [host.at(each) for each in _DIRECTORIES if os.path.isdir(host.at(each))]:
        try:
            lvm = _settings_of(directory, host)
            used = [words for scsi_id, each in names.items() for words in lvm.uses(scsi_id, each)]
        except RelvmoiscsiError as error:
            problems.append(
                Refused(f"What LVM ignores with the settings in {directory} is unknown: {error.message}").advising(
                    error.advice or "Make `lvm dumpconfig` work there, and ask again."
                )
            )
            continue
        if used:
            problems.append(
                lvm.problem(used, [path for each in names.values() for paths in each.values() for path in paths])
            )
    return problems


class _Settings(NamedTuple):
    """The settings of LVM with the files of one directory."""

    directory: str
    lists: Sequence[Sequence[str]]  #: the patterns of `filter` and of `global_filter`
    devices_file: Optional[List[Dict[str, str]]]  #: its entries; None where LVM uses no such file
    searches_all: bool  #: for the PVID of an entry by name

    def uses(self, scsi_id: str, names: Names) -> List[str]:
        """Return the devices of the LUN that LVM uses. Raises Refused for a pattern that cannot be read."""
        if self.devices_file is None:
            return [words for words, paths in names.items() if not any(_rejects(each, paths) for each in self.lists)]
        if self._takes_any:
            return list(names)
        values = {value for entry in self.devices_file for value in entry.values()}
        is_listed = any(scsi_id[1:] in value for value in values)  # a SCSIid is a digit and the rest of the wwid
        return [words for words, paths in names.items() if is_listed or not values.isdisjoint(paths)]

    @property
    def _takes_any(self) -> bool:
        """Return whether the bytes on a device can make LVM use the device, listed or not."""
        return self.searches_all and any(entry.get("IDTYPE") == "devname" for entry in self.devices_file or ())

    def problem(self, used: Sequence[str], names: Sequence[str]) -> Refused:
        """Return what to tell of used devices. `names` are all names of direct LUNs, which no pattern may accept."""
        advice = self._line(names) if self.devices_file is None else self._way_out_of_file()
        return Refused(
            f"With the settings in {self.directory}, LVM does not ignore {some_of(used)}, and acts on what a guest "
            "writes there. A guest can block an SR of this host by the name of a volume group."
        ).advising(advice)

    def _way_out_of_file(self) -> str:
        removal = f"Remove the LUN from the devices file in {self.directory}/devices."
        if not self._takes_any:
            return removal
        line = 'devices { search_for_devnames = "auto" }'
        return f"Write this line into {self.directory}/lvmlocal.conf: {line}. {removal}"

    def _line(self, names: Sequence[str]) -> str:
        """Return the advice with a line that hides the direct LUNs, and no other device that LVM uses now.

        The line is one of the two lists: _OURS, and what the list has without the patterns that accept a direct LUN. If
        the list rejects nothing, neither does the rest of it. If no pattern is left out, other devices match as before.
        Any other line may hide a disk, perhaps one that comes later.
        """
        left_out: Dict[str, List[str]] = {}
        for name, patterns in (("global_filter", self.lists[1]), ("filter", self.lists[0])):
            others = [each for each in patterns if each != _OURS]
            accepting = [each for each in others if _accepts(each, names)]
            if accepting and any(each.startswith("r") for each in others):
                left_out[name] = accepting
                continue
            line = ", ".join(
                '"{}"'.format(each.replace("\\", r"\\").replace('"', r"\""))
                for each in [_OURS, *(each for each in others if each not in accepting)]
            )
            advice = (
                f"Write this line into {self.directory}/lvmlocal.conf, in the place of a {name} there: "
                f"devices {{ {name} = [ {line} ] }}. It replaces the list of lvm.conf, so it repeats LVM's "
                "other patterns."
            )
            if accepting and others != _DEFAULT:
                advice += f" It leaves out what accepts another name of the LUN: {some_of(list(map(repr, accepting)))}."
            return advice
        replaced = some_of(list(map(repr, left_out["global_filter"])))
        return (
            f"Write {_OURS!r} as the first pattern of the global_filter in {self.directory}/lvmlocal.conf, or in "
            f"lvm.conf if lvmlocal.conf has none. Replace {replaced} there by patterns that accept the disks of this "
            "host, and no name of the LUN. Without such patterns, LVM may lose these disks."
        )


def _settings_of(directory: str, host: Host) -> _Settings:
    """Ask LVM. Raises CommandFailed, Malformed, Refused."""
    # LVM 2.02 knows no devices file, and would fail for the name of a setting that it does not know
    words = ["env", f"LVM_SYSTEM_DIR={directory}", "lvm", "dumpconfig", "--type", "full", "devices"]
    text = host.runner(words, timeout=_SECONDS)
    devices = text_format.parse(text, Place("the settings of LVM", 0)).section("devices")
    lists = [devices.strings("filter"), devices.strings("global_filter")]
    is_on = "use_devicesfile" in devices.assignments and devices.single("use_devicesfile").values[0] == 1
    name = devices.string("devicesfile") if is_on else ""
    path = os.path.join(directory, "devices", name)
    searches_all = "search_for_devnames" in devices.assignments and devices.string("search_for_devnames") == "all"
    try:
        return _Settings(directory, lists, entries_in(path) if name else None, searches_all)
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}.").advising(remedy(error, path)) from error


def _rejects(patterns: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether the list keeps LVM from a device with these names. Raises Refused."""
    compiled = [_compiled(pattern) for pattern in patterns]
    found = [next((is_accept for is_accept, regex in compiled if _matches(regex, name)), None) for name in names]
    return False in found and True not in found


def _accepts(pattern: str, names: Sequence[str]) -> bool:
    is_accept, regex = _compiled(pattern)
    return is_accept and any(_matches(regex, name) for name in names)


def _matches(regex: Pattern[str], name: str) -> bool:
    """Return whether LVM's pattern matches the name. LVM reads bytes, so each byte of the name is one character."""
    return regex.search(_START + name.encode("utf-8", "surrogateescape").decode("latin-1") + _END) is not None


def _compiled(pattern: str) -> Tuple[bool, Pattern[str]]:
    """Return whether LVM accepts what the pattern matches, and the pattern. Raises Refused."""
    end = _ENDS.get(pattern[1:2], pattern[1:2])
    try:
        if pattern[:1] not in ("a", "r") or len(pattern) < 3 or pattern[-1] != end:
            raise re.error("it is not of the form a|…| or r|…|")
        if not _PATTERN.fullmatch(pattern[2:-1]):
            raise re.error("LVM may read it otherwise than relvmoiscsi")
        return pattern[0] == "a", re.compile(_WORD.sub(_in_python, pattern[2:-1]))
    except re.error as error:
        problem = f"Nothing tells which names the pattern {pattern!r} of LVM's filter matches: {said(str(error))}."
        raise Refused(problem).advising(
            "Write that pattern in a simpler form, in lvm.conf or lvmlocal.conf."
        ) from error


def _in_python(match: Match[str]) -> str:
    word = match.group()
    if word[0] in "*+?":  # LVM applies one after the other, and Python takes the second for another operator
        return word[0] if len(set(word)) == 1 else "*"
    if word[0] == "[":
        return word
    return _IN_PYTHON.get(word) or re.escape(_ESCAPES.get(word, word[-1]))


# --- the devices of a LUN


def _names(scsi_id: str, devices: Sequence[str], host: Host) -> Names:
    """Return the names of each of these devices of the LUN, with the link of LVM_WORD. Raises NotFound."""
    found: Names = {}
    for name in devices:
        kernel_name = os.path.basename(name)
        links = [line[2:] for line in udev.database(name, host) if line.startswith("S:")]
        if attribute(host.at("sys/block", name, "dm/name")):
            links.append(os.path.join("mapper", attribute(host.at("sys/block", name, "dm/name"))))
        paths = [host.node(kernel_name), *(host.at("dev", link) for link in links)]
        found[host.node(kernel_name)] = [*paths, _link_for_lvm(kernel_name, host)]
    by_id = host.at("dev/disk/by-id", "scsi-" + scsi_id)
    return found or {f"LUN {scsi_id}": [host.node(_ABSENT), by_id, _link_for_lvm(_ABSENT, host)]}


def _link_for_lvm(kernel_name: str, host: Host) -> str:
    return host.at("dev/disk/by-id" + LVM_WORD + kernel_name)
