# SPDX-License-Identifier: LGPL-2.1-only
"""The sentence at the end of an error about a clone's content: one command that works on the clone. Pure.

LVM's commands meet a clone beside its original: both have the same ids. `lvm_words` keeps LVM away from the original:

    filter, global_filter     LVM sees the disk of the clone only; use_devicesfile=0: LVM 2.03.12 would ignore both
    activation=0              the volumes of original and clone have one name in the kernel, which LVM must not touch
    metadata_read_only=0      dom0's LVM writes nothing else
    use_lvmetad=0             the daemon of LVM 2.02 remembers the original under these ids
    backup=0, archive=0       LVM's backup of the original in /etc/lvm has the name of the clone's volume group
    checks=0                  LVM knows no setting of another release

A writer of the LUN chooses its names. A name that LVM would not give could be an option, and is in no command. A path
with a character that could end the filter is in no command either. Nor is a path in a place such as /dev/shm: each user
can make files there, and exchange them before a person runs the command. Nor is a name from the content of a disk.

Tried with LVM 2.02.180 and 2.03.16. Source: LVM2 conf/example.conf.in, lib/config/config_settings.h.
"""

import re
from typing import Sequence, Tuple

from relvmoiscsi.errors import WayOut
from relvmoiscsi.formats.naming import MGT
from relvmoiscsi.wording import counted, quoted, some_of

#: in place of a device that LVM does not see: an image file, or a LUN in a session of relvmoiscsi
PLACEHOLDER = "/dev/CLONE"

#: a volume group, or a volume of a group: what LVM accepts as a name, which begins with no dash
_PART = r"(?!\.\.?(?:/|\Z))[A-Za-z0-9_+.][A-Za-z0-9_+.-]*"
_NAME = re.compile(f"{_PART}(?:/{_PART})?")
_ENTRY = r"(?!\.)[A-Za-z0-9_.:+@#=-]+"
#: a name of one block device, where only root makes names: the kernel gives it, or a SCSIid. A link of udev by a label
#: or by the id of a physical volume may lead to the original: original and clone have the same ones
_PATH = re.compile(
    rf"/dev/(?:(?!std){_ENTRY}|mapper/(?=[0-9S]){_ENTRY}|disk/(?:by-path/{_ENTRY}|by-scsid/{_ENTRY}/{_ENTRY}"
    rf"|by-id/(?:scsi|wwn|dm-uuid-mpath)-{_ENTRY}))"
)

_MOST_NAMED = 4  #: VDIs that are named of those that go with others
#: options of a command that asks nobody
_OF_A_SCRIPT = ("--yes", "-y", "--json")


def without(words: Sequence[str], more: Sequence[str], lost: Sequence[str], flags: Sequence[str] = ()) -> str:
    """Sentences with the command `words` that has `flags` and leaves the VDIs `more` behind, and the VDIs `lost` too.

    The command has the options of `words`, but for those of a script: it deletes data, so a person is asked.
    """
    before, after = (words, ()) if "--" not in words else (words[: words.index("--")], words[words.index("--") :])
    before = [re.sub("^-([nqv]*)y+([nqv]*)$", r"-\1\2", word) for word in before if word not in _OF_A_SCRIPT]
    options = [*flags, *(word for uuid in more for word in ("--without", uuid))]
    these = "this VDI" if len(more) == 1 else f"these {len(more)} VDIs"
    go = f"To go on without {these}: `{quoted(*before, *options, *after)}`."
    if not lost:
        return go
    others = f"{counted(len(lost), 'other VDI')}, made of {'it' if len(more) == 1 else 'them'}"
    return f"{go} The command also deletes {others}: {some_of(lost, _MOST_NAMED)}."


def told(way_out: WayOut, device_name: str) -> Tuple[str, str]:
    """The sentence for a way out without a VDI to leave behind, and the command in the sentence; "" without one.

    A command on PLACEHOLDER is in the sentence alone: no shell can run the command as it is. So is a command that
    removes data: another step comes first (`problems.tell`).
    """
    if way_out.lvm and all(word == device_name or _NAME.fullmatch(word) is not None for word in way_out.names):
        is_disk = _PATH.fullmatch(device_name) is not None
        where = "" if is_disk else f", as the disk {PLACEHOLDER} of a host"
        command, does = quoted(*lvm_words(device_name, way_out)), "changes nothing but the clone"
        if way_out.lvm == ("lvremove",):
            volume = way_out.names[0].rpartition("/")[2]
            data = "the labels of the SR and of all its VDIs" if volume == MGT else "all its data"
            is_disk, does = False, f"removes {volume} and {data}, and changes nothing but the clone"
        return f"This command of LVM {does}{where}: `{command}`.", command if is_disk else ""
    return way_out.sentence, ""


def lvm_words(device_name: str, way_out: WayOut) -> Sequence[str]:
    """The words of a command of LVM that sees no other disk than the clone, and leaves the volumes in the kernel alone.

    `told` has looked at the names: none begins with a dash.
    """
    disk = device_name if _PATH.fullmatch(device_name) else PLACEHOLDER
    pattern = re.sub(r"[.+]", r"[\g<0>]", disk)
    only_clone = f'["a|^{pattern}$|","r|.*|"]'
    config = (
        f"devices {{ filter={only_clone} global_filter={only_clone} use_devicesfile=0 }} "
        "global { activation=0 metadata_read_only=0 use_lvmetad=0 } backup { backup=0 archive=0 } config { checks=0 }"
    )
    program, *options = way_out.lvm
    names = [disk if word == device_name else word for word in way_out.names]
    return [program, "--config", f"{config} {way_out.config}".rstrip(), *options, *names]
