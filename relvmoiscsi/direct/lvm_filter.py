# SPDX-License-Identifier: LGPL-2.1-only
"""Does LVM of this host ignore the direct LUNs? A guest writes volume groups to its LUN, of any name.

LVM itself tells its settings: those of lvm.conf and lvmlocal.conf of one directory, and its defaults. Each device has
several names in /dev. In each of two lists of patterns, `filter` and `global_filter`, the first pattern that matches a
name decides. LVM ignores a device if a list rejects one of its names and accepts none.

The names of today do not tell enough. A guest makes partitions later, and writes labels that become links. After a
restart, the disk is another sdX. So one rule judges the patterns, for each name that a LUN can ever have:

    a list hides the direct LUNs    it rejects the link that udev makes for each of their devices, and each of its
                                    accepting patterns begins with a path that a direct LUN never has

The order of the patterns then makes no difference. A pattern that the rule cannot read may accept, and rejects nothing.
One list that hides the LUNs is enough.

With a devices file, LVM heeds neither list, and uses the devices of the file alone. An entry by a name has a PVID, too.
With search_for_devnames = "all", LVM takes any device with that PVID.

Source: LVM2 lib/filters/filter-regex.c, _accept_p and _extract_pattern; lib/device/device_id.c.
"""

import os
import re
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence

from relvmoiscsi.direct.links import every_device_of
from relvmoiscsi.errors import Place, Refused, RelvmoiscsiError
from relvmoiscsi.formats.lvm import text_format
from relvmoiscsi.host.disk import udev
from relvmoiscsi.host.disk.lvm_memory import entries_in
from relvmoiscsi.host.files import attribute, remedy
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.wording import shell_command, some_of

#: the word of the filter that keeps LVM from direct LUNs and from their partitions; the rule makes links of this name
LVM_WORD = "/relvmoiscsi-direct-"
_OURS = f"r|{LVM_WORD}|"
_DEFAULT = ["a|.*|"]  #: the list of LVM without a filter
#: LVM reads the files of one directory only; SM chooses the second for commands that write
_DIRECTORIES = ("etc/lvm", "etc/lvm/master")
_SECONDS = 20.0  #: for LVM, which reads its settings and no disk

#: what a readable pattern may have behind its first characters: no alternative outside of brackets
_PART = r"(?:[A-Za-z0-9_/.:*+?$-]|\[\^?[A-Za-z0-9_-]+\])"
_REST = rf"(?:{_PART}|\((?![*+?]){_PART}+(?:\|(?![*+?]){_PART}+)*\))*"
#: devices of other drivers than a LUN has; "*" behind "md" would match /dev/mapper
_OTHER_DEVICE = re.compile(
    rf"\^?/dev/(?:cciss/|drbd|hd|loop|md|mmcblk|nbd|nvme|rbd|vd|xvd|disk/by-id/(?:ata|nvme)-)(?![*+?]){_REST}"
)
#: a disk or a map by its SCSIid
_ONE_LUN = re.compile(
    rf"\^?/dev/(?:mapper/|disk/by-id/(?:scsi-|wwn-0x|dm-uuid-(?:part[0-9]+-)?mpath-))([0-9a-f]{{16,}})(?![*+?]){_REST}"
)
#: a pattern that LVM and Python read alike, and that matches a name whatever follows the match
_PLAIN = re.compile(r"\^?(?:[A-Za-z0-9_/-]|\.\*)+(?:(?<=\.\*)\$)?")

#: the paths of all devices of a LUN, by SCSIid
Paths = Mapping[str, List[str]]


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
        paths = {scsi_id: _paths(each, host) for scsi_id, each in devices.items()}
    except RelvmoiscsiError as error:
        return [error.advising("Repair udev's database: LVM's filter needs its links.")]
    for directory in [host.at(each) for each in _DIRECTORIES if os.path.isdir(host.at(each))]:
        try:
            problem = _settings_of(directory, host).problem(paths)
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

    def problem(self, luns: Paths) -> Optional[Refused]:
        """Return why LVM may use one of these LUNs, by SCSIid."""
        if self.devices_file is None:
            if any(_hides(each, luns) for each in self.lists):
                return None
            used, advice = "a direct LUN, or a partition that a guest makes there", self._list_to_write(luns)
        else:
            listed = self._listed(luns, self.devices_file)
            if not listed:
                return None
            used, advice = some_of(listed), self._way_out_of_file()
        return Refused(
            f"With the settings in {self.directory}, LVM may use {used}, and then acts on what a guest writes there. A "
            "guest can block an SR of this host by the name of a volume group."
        ).advising(advice)

    def _listed(self, luns: Paths, entries: Sequence[Mapping[str, str]]) -> List[str]:
        values = {value for entry in entries for value in entry.values()}
        # a SCSIid is a digit and the rest of the wwid
        return [
            f"LUN {scsi_id}"
            for scsi_id, paths in luns.items()
            if self._takes_any or any(scsi_id[1:] in value for value in values) or not values.isdisjoint(paths)
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

    def _list_to_write(self, luns: Paths) -> str:
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
        accepting = [repr(each) for each in patterns if _may_accept(each, luns)]
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


def _hides(patterns: Sequence[str], scsi_ids: Iterable[str]) -> bool:
    """Return whether the list keeps LVM from each device that these LUNs have or get."""
    link = "/dev/disk/by-id" + LVM_WORD
    rejects = any(each[:1] == "r" and _PLAIN.fullmatch(each[2:-1]) and re.search(each[2:-1], link) for each in patterns)
    return rejects and not any(_may_accept(each, scsi_ids) for each in patterns)


def _may_accept(pattern: str, scsi_ids: Iterable[str]) -> bool:
    """Return whether LVM may use a device of these LUNs for the pattern, now or later."""
    if pattern[:1] == "r" or _OTHER_DEVICE.fullmatch(pattern[2:-1]):
        return False
    one = _ONE_LUN.fullmatch(pattern[2:-1])
    if one is None:
        return True
    # the SCSIid in the pattern may be a part of one, and wwn- lacks the first digit
    return any(own.startswith(one[1]) or one[1].startswith(own) for each in scsi_ids for own in (each, each[1:]))


# --- the devices of a LUN


def _paths(devices: Sequence[str], host: Host) -> List[str]:
    """Return the paths of these devices of one LUN. Raises NotFound."""
    found: List[str] = []
    for name in devices:
        links = [line[2:] for line in udev.database(name, host) if line.startswith("S:")]
        if attribute(host.at("sys/block", name, "dm/name")):
            links.append(os.path.join("mapper", attribute(host.at("sys/block", name, "dm/name"))))
        found += [host.node(os.path.basename(name)), *(host.at("dev", link) for link in links)]
    return found


def _link_for_lvm(kernel_name: str, host: Host) -> str:
    return host.at("dev/disk/by-id" + LVM_WORD + kernel_name)
