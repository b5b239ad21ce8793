# SPDX-License-Identifier: LGPL-2.1-only
"""What `relvmoiscsi --help` prints: the commands, each in a line. The parser prints the same; this needs none."""

#: The commands and what each does, in the order of --help; each is the module of that name, which --help does not need.
COMMANDS = {
    "show": "what is on it: SR, VDIs as a tree of chains, state",
    "check": "verify every structure on it",
    "resignature": "give it new identities",
    "recover": "settle a run that was cut",
    "undo": "give the old identities back, while that is possible",
    "map": "tell what old ids became, from the new SR's UUID",
    "doctor": "tell whether this host and its pool are ready for the SR driver",
    "settings": "tell what holds for the SR driver on this host, and change it",
    "direct": "give LUNs to VMs as they are: add, remove, list",
    "pool": "clones as SRs on all hosts of a pool, and their VMs: luns, attach, map, clone, discard",
}

_PAGE = """\
usage: relvmoiscsi [-h] [--version] COMMAND ...

Give an array clone of a XenServer or XCP-ng SR (lvmoiscsi, lvmohba, lvm) new identities, so that it can be used
beside its original. DEVICE is a block device, an image file or iscsi://host/iqn/lun; it must be the clone.

options:
  -h, --help     show this help message and exit
  --version      show program's version number and exit

commands:
  COMMAND
{}

example:
  relvmoiscsi show /dev/sdc
  relvmoiscsi resignature /dev/sdc
  relvmoiscsi check /dev/sdc --original /dev/sdb

exit status:
  0 done     2 usage     3 not found     4 refused: unsafe; doctor: not ready     5 unreadable or damaged
  6 a program failed     7 the device failed     8 an unfinished run: recover it     9 done in part
  70 a bug     74 it is done, but the result could not be printed     130 interrupted"""


def page() -> str:
    """The text, without the end of its last line."""
    return _PAGE.format("\n".join(f"    {name:<11}  {what}" for name, what in COMMANDS.items()))
