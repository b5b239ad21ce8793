# SPDX-License-Identifier: LGPL-2.1-only
"""Does LVM of this host ignore the direct LUNs? A guest writes volume groups to its LUN, of any name.

LVM itself tells its settings: those of lvm.conf and lvmlocal.conf of one directory, and its defaults. Each device has
several names in /dev. Two lists of patterns, `filter` and `global_filter`, decide alike:

    for each name                            the first pattern that matches the name accepts it or rejects it
    a name is accepted                       LVM uses the device, whatever its other names are
    a name is rejected, and none accepted    LVM ignores the device
    no pattern matches any name              LVM uses the device

One list that rejects the device is enough. udev makes links below /dev/disk from labels and UUIDs that a guest writes:
their last part is the guest's, in by-id behind lvm-pv-uuid-, and has no "/". So a list hides a LUN for certain only if
each accepting pattern begins with another path.

With a devices file, LVM heeds neither list, and uses the devices of the file alone. An entry by a name has a PVID, too.
With search_for_devnames = "all", LVM takes any device with that PVID.

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
#: a pattern that begins with a path which no guest chooses
_PATH_OF_HOST = re.compile(
    r"\^?/dev/(?:[A-Za-ce-z]|d[a-hj-z]|disk/by-id/(?:ata|nvme|scsi|wwn)-)(?![*+?])"
    rf"(?:{_ONE}|[*+?]|\((?:{_ONE}|[*+?|])*\))*"
)
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
            problem = _settings_of(directory, host).problem(names)
        except RelvmoiscsiError as error:
            problems.append(
                Refused(f"What LVM ignores with the settings in {directory} is unknown: {error.message}").advising(
                    error.advice or "Make `lvm dumpconfig` work there, and ask again."
                )
            )
            continue
        problems += [problem] if problem else []
    return problems


class _Settings(NamedTuple):
    """The settings of LVM with the files of one directory."""

    directory: str
    lists: Sequence[Sequence[str]]  #: the patterns of `filter` and of `global_filter`
    devices_file: Optional[List[Dict[str, str]]]  #: its entries; None where LVM uses no such file
    searches_all: bool  #: for the PVID of an entry by name

    def problem(self, luns: Mapping[str, Names]) -> Optional[Refused]:
        """Return why LVM may use one of these LUNs, by SCSIid. Raises Refused for a pattern that cannot be read."""
        used = self._used(luns, self.lists)
        exposed = self._used(luns, [each for each in self.lists if not any(map(_accepts_a_guests_name, each))])
        if not exposed:
            return None
        if used:
            what = f"LVM does not ignore {some_of(used)}, and acts on what a guest writes there."
        else:
            what = (
                f"a guest can give {some_of(exposed)} a name that LVM's filter accepts, such as the label of a "
                "partition. LVM then acts on what the guest writes there."
            )
        advice = self._list_to_write(luns) if self.devices_file is None else self._way_out_of_file()
        return Refused(
            f"With the settings in {self.directory}, {what} A guest can block an SR of this host by the name of a "
            "volume group."
        ).advising(advice)

    def _used(self, luns: Mapping[str, Names], lists: Sequence[Sequence[str]]) -> List[str]:
        """Return the devices that LVM uses with these lists of patterns."""
        devices = [(scsi_id, words, paths) for scsi_id, names in luns.items() for words, paths in names.items()]
        if self.devices_file is None:
            return [words for _, words, paths in devices if not any(_rejects(each, paths) for each in lists)]
        values = {value for entry in self.devices_file for value in entry.values()}
        # a SCSIid is a digit and the rest of the wwid
        listed = {scsi_id for scsi_id in luns if any(scsi_id[1:] in value for value in values)}
        return [
            words
            for scsi_id, words, paths in devices
            if self._takes_any or scsi_id in listed or not values.isdisjoint(paths)
        ]

    @property
    def _takes_any(self) -> bool:
        """Return whether the bytes on a device can make LVM use the device, listed or not."""
        return self.searches_all and any(entry.get("IDTYPE") == "devname" for entry in self.devices_file or ())

    def _way_out_of_file(self) -> str:
        removal = f"Remove the LUN from the devices file in {self.directory}/devices."
        if not self._takes_any:
            return removal
        line = 'devices { search_for_devnames = "auto" }'
        return f"Write this line into {self.directory}/lvmlocal.conf: {line}. {removal}"

    def _list_to_write(self, luns: Mapping[str, Names]) -> str:
        """Return what makes global_filter hide the LUNs, and no other device that LVM uses now.

        Only an administrator knows which disks an accepting pattern is for. `filter` is no way out: LVM puts that of
        lvmlocal.conf before that of lvm.conf, and a pattern there may accept the LUN.
        """
        file, patterns = f"{self.directory}/lvmlocal.conf", self.lists[1]
        if all(each in (_OURS, *_DEFAULT) for each in patterns):
            line = f'devices {{ global_filter = [ "{_OURS}" ] }}'
            return f"Write this line into {file}, in the place of a global_filter there: {line}."
        advice = (
            f"Have {_OURS!r} as the first pattern of the global_filter in {file}, or in lvm.conf if lvmlocal.conf has "
            "none."
        )
        paths = [path for names in luns.values() for each in names.values() for path in each]
        accepting = [repr(each) for each in patterns if _accepts(each, paths) or _accepts_a_guests_name(each)]
        if accepting:
            advice += (
                f" Replace {some_of(accepting)} there by patterns that accept the disks of this host, and no name of "
                "the LUN. Begin each with the path of such a disk, as 'a|^/dev/disk/by-id/ata-DISK-part3$|' does. "
                "Without such patterns, LVM may lose these disks."
            )
        return advice


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


def _accepts_a_guests_name(pattern: str) -> bool:
    """Return whether the pattern may accept a name that a guest chooses for its LUN."""
    return pattern.startswith("a") and not _PATH_OF_HOST.fullmatch(pattern[2:-1])


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
