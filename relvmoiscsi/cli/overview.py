# SPDX-License-Identifier: LGPL-2.1-only
"""The text of `relvmoiscsi --help`, for this module's caller and the parser. This module imports nothing."""

#: commands and their first lines, in the order of --help
COMMANDS = {
    "show": "show the SR, its VDIs as a tree, and the state of the LUN",
    "check": "verify every structure on the LUN",
    "resignature": "give the clone new identities",
    "recover": "finish an interrupted run or roll it back",
    "undo": "restore the old identities, until LVM changes the volume group",
    "map": "translate old ids to new ids",
    "doctor": "check whether this host and its pool are ready",
    "settings": "show or change the SR driver's settings on this host",
    "direct": "give LUNs to VMs without LVM or VHD",
    "pool": "attach clones as SRs in a whole pool, clone their VMs",
}

#: the commands of the commands that are groups
GROUPS = {
    "pool": ("luns", "attach", "map", "clone", "restore", "rescue", "save-vms", "discard", "unlock", "secrets"),
    "direct": ("add", "remove", "list"),
}

#: the shells of --completion
SHELLS = ("bash", "zsh")

_ABOUT = (
    "Give an array clone of a XenServer or XCP-ng SR new identities, so that a pool can use the clone beside its "
    "original. The SR has the type lvmoiscsi, lvmohba or lvm. DEVICE is a block device, an image file or "
    "iscsi://host/iqn/lun. It must be the clone."
)
_PAGE = """\
usage: relvmoiscsi [-h] [--version] [--completion SHELL] COMMAND ...

{about}

options:
  -h, --help          show this help message and exit
  --version           show program's version number and exit
  --completion SHELL  print the script by which bash or zsh completes words

commands:
  COMMAND
{commands}

`relvmoiscsi COMMAND --help` describes a command.

example:
  relvmoiscsi show /dev/sdc
  relvmoiscsi resignature /dev/sdc
  relvmoiscsi check /dev/sdc --original /dev/sdb

exit status:
  0    done
  2    usage
  3    not found
  4    refused: unsafe; check --original: it differs; doctor: not ready
  5    unreadable or damaged
  6    a program failed or is missing
  7    the device failed
  8    an unfinished run: recover it
  9    partly done
  10   overtaken by another run
  11   no connection or login to a target or pool
  70   a bug
  74   done, but the result could not be printed
  130  interrupted"""


def page(columns: int) -> str:
    """Return the text of `relvmoiscsi --help`, without the final newline. Its first paragraph fits the columns."""
    about = ""
    for word in _ABOUT.split():
        is_full = len(about.rpartition("\n")[2]) + len(word) >= min(columns, 80)
        about += ("\n" if is_full else " " if about else "") + word
    commands = "\n".join(f"    {name:<11}  {what}" for name, what in COMMANDS.items())
    return _PAGE.format(about=about, commands=commands)
