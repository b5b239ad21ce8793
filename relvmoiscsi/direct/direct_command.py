# SPDX-License-Identifier: LGPL-2.1-only
"""The commands on direct LUNs: add, remove, list; and the commands of the udev rule and of the package."""

import argparse
from contextlib import contextmanager
from functools import partial
from typing import Any, Dict, Iterator, List, NoReturn

from relvmoiscsi.cli.output import Answer, Command, Maker, takes_output_options, waiting
from relvmoiscsi.direct import links as direct
from relvmoiscsi.direct.direct_config import (
    check_name,
    check_scsi_id,
    luns_of,
    read_section,
    with_entry,
    without_entry,
)
from relvmoiscsi.direct.links import Status
from relvmoiscsi.direct.lvm_filter import lvm_problems
from relvmoiscsi.errors import CommandFailed, NotFound, Refused, RelvmoiscsiError, UsageError, in_state
from relvmoiscsi.formats.lvm.owner import Owner, read_owner
from relvmoiscsi.host.config_file import NOT_CHANGED, changing, read_config, replace_config
from relvmoiscsi.host.disk import multipath, udev
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.host.xapi.api import NoXapi, Xapi, local_xapi, own_ref
from relvmoiscsi.lun.pool_records import read_pool
from relvmoiscsi.scsi_id_text import typed_scsi_id
from relvmoiscsi.wording import human_size, nearest, printable, quoted, shell_command, table

HOST = THIS_HOST
IDLE_SECONDS = 5.0  #: limit for the events of the other devices of a new direct LUN

#: sm's program for new links in /dev/xapi/block; the program introduces a VDI in the host's udev SR
_INTRODUCER = "opt/xensource/libexec/local-device-change"

_DIRECT = """\
A direct LUN is a VDI of this host's udev SR ("Removable storage"), without LVM or VHD between the VM and the
array. Its link, /dev/xapi/block/NAME, leads to the LUN's multipath map, or to its disk where there is no
multipathing. The names stand in the section [direct] of /etc/relvmoiscsi.conf. The command refuses a LUN that
an SR uses. It refuses a LUN behind iSCSI without --iscsi.

example:
  relvmoiscsi direct add database-log 36001405993c87c37fa84d02b7fa62c40
  relvmoiscsi direct list
  relvmoiscsi direct remove database-log"""

_ADD = """\
The LUN must be there: the command reads it, and refuses an SR. Later events do not read the LUN, because its
content is then the guest's. To repeat the command is harmless, also while a guest has the LUN.

relvmoiscsi keeps no iSCSI session for a VM. SM logs out when it detaches its last SR on the target, even
under a running VM. After a restart of the host, no program logs in. The command therefore refuses a LUN
behind iSCSI, unless --iscsi confirms that you keep the session and log in at boot.

example:
  relvmoiscsi direct add database-log 36001405993c87c37fa84d02b7fa62c40"""

_REMOVE = """\
The command refuses while a VM has the LUN as a disk. It does not change the data on the LUN.

example:
  relvmoiscsi direct remove database-log"""

_LIST = """\
The command shows the device, the size and the link of each direct LUN, or why there is no link.

It names a LUN of an SR of the pool, and a filter that LVM lacks.

example:
  relvmoiscsi direct list"""


def add_direct(make: Maker) -> None:
    group = make(_no_command, _DIRECT)
    commands = group.add_subparsers(metavar="COMMAND", title="commands")

    def command(name: str, run: Command, what: str, more: str) -> argparse.ArgumentParser:
        # --help does not list a command without a help line: those of the udev rule and of the package.
        listed: Dict[str, Any] = {"help": what} if what else {}
        sub = commands.add_parser(
            name,
            description=(what[:1].upper() + what[1:] + ".\n\n" + more).strip(".\n"),
            formatter_class=group.formatter_class,
            **listed,
        )
        sub.set_defaults(run=run, command="direct " + name)
        takes_output_options(sub, default=argparse.SUPPRESS)
        return sub

    adding = command(
        "add",
        lambda arguments: partial(
            add,
            check_name(arguments.name),
            check_scsi_id(typed_scsi_id(arguments.scsi_id)),
            arguments.iscsi,
        ),
        "give a LUN a name and make the LUN a direct LUN",
        _ADD,
    )
    adding.add_argument("name", metavar="NAME", help="name of the link in /dev/xapi/block")
    adding.add_argument("scsi_id", metavar="SCSIID", help="SCSIid of the LUN, as `scsi_id -g` or the array prints it")
    adding.add_argument("--iscsi", action="store_true", help="accept a LUN behind iSCSI; you keep its session")
    removing = command(
        "remove", lambda arguments: partial(remove, arguments.name), "remove a direct LUN from the udev SR", _REMOVE
    )
    removing.add_argument("name", metavar="NAME", help="name of the direct LUN, as `list` prints it")
    command("list", lambda _arguments: list_luns, "show the state of each direct LUN", _LIST)
    asked = command(
        "udev",
        lambda arguments: partial(answer_udev, arguments.kernel_name),
        "",
        "What udev asks: the name of the link that a device gets",
    )
    asked.add_argument("kernel_name")
    command(
        "events", lambda _arguments: make_events, "", "What the package asks: new rules for each device of a direct LUN"
    )


def _no_command(_arguments: argparse.Namespace) -> NoReturn:
    raise UsageError("The subcommand is missing.").advising(
        "Give a subcommand: `relvmoiscsi direct add`, `remove` or `list`; see --help."
    )


# --- add


def add(name: str, scsi_id: str, keeps_session: bool) -> Answer:
    """Make the LUN with the SCSIid a direct LUN. `keeps_session` accepts a LUN behind iSCSI."""
    notes: List[str] = []
    with changing(HOST):
        with in_state(NOT_CHANGED), _pool() as pool:
            text = read_config(HOST.config)
            is_new = read_section(text)[0].get(name) != scsi_id
            new_text = with_entry(text, name, scsi_id) if is_new else text
            direct.check_no_user(scsi_id, read_pool(pool), direct.link_of(name, HOST), HOST)
            if is_new and not keeps_session:
                direct.check_transport(udev.disks_of(scsi_id, HOST), HOST)
            device = _checked_device(scsi_id, pool.has_multipathing(), is_new)
        if is_new:
            replace_config(HOST.config, new_text)
    is_linked = False
    if device:
        with waiting("the link that udev makes", direct.LINK_SECONDS):
            is_linked = direct.renew_link(name, scsi_id, device, HOST)
    status = direct.status_of(name, scsi_id, HOST)
    if device and not (is_linked and status.is_linked):
        reason = status.problem or Refused("udev was too slow.")
        late = Refused(f"{direct.link_of(name, HOST)} did not appear: {reason.message}")
        raise late.advising(reason.advice).in_state(f"{name} has LUN {scsi_id} in {HOST.config}.")
    udev.wait_until_idle(IDLE_SECONDS, HOST)  # until each device of the LUN has its link for LVM's filter
    notes += [each.told for each in lvm_problems({name: scsi_id}, HOST)]
    vdi = _vdi(name, notes) if device else ""
    facts = {**_facts(name, scsi_id, status), "vdi": vdi or None, "notes": notes}
    if status.is_linked:
        size = human_size(status.size_bytes)
        lines = [f"{direct.link_of(name, HOST)} leads to {HOST.node(status.device)} ({size})."]
    else:
        lines = [f"{direct.link_of(name, HOST)} will appear with its LUN. {printable(status.reason)}"]
    if vdi:
        lines.append(
            f"The LUN is the VDI {vdi}. A VM gets the disk by a VBD: run `xe vbd-create` with vm-uuid, this vdi-uuid "
            "and device=autodetect. Then run `xe vbd-plug` with the uuid that `xe vbd-create` prints."
        )
    return Answer(facts, "\n".join(lines + ["note: " + printable(note) for note in notes]))


def _checked_device(scsi_id: str, has_multipathing: bool, is_new: bool) -> str:
    """Return the device of a LUN that a VM may get, after the checks; "" for a known LUN that this host does not see.

    A VM may already use a LUN that is not new. The content of that LUN is the VM's and decides nothing.
    """
    disks = udev.disks_of(scsi_id, HOST)
    has_map = bool(udev.maps_of(scsi_id, HOST))
    if not disks and not has_map:
        if not is_new:
            return ""
        raise NotFound(f"No disk of this host has the SCSIid {scsi_id}.").advising(
            "Map the LUN to this host, scan for it, and repeat the command: a new direct LUN is read first."
        )
    if has_multipathing and not has_map:
        for disk in disks:  # a VM that writes through a path must not get a map beside the path
            direct.check_unused(disk, HOST)
            if is_new:
                direct.check_content(disk, look, HOST)
        raise Refused(f"Multipathing of this host is on, and LUN {scsi_id} has no multipath map.").advising(
            "Make the map with "
            f"`{shell_command('multipath -a', scsi_id)}`, then `{shell_command('multipath', scsi_id)}`. If multipathd "
            "does not run, start multipathd first. Then repeat the command."
        )
    device = direct.device_of(scsi_id, HOST)
    if is_new:
        direct.check_unused(device, HOST)
        direct.check_content(device, look, HOST)
    return device


def look(path: str) -> Owner:
    """Return the content of a device. Raises DeviceError and the errors of `open_device`."""
    with open_device(path, writable=False) as device:
        return read_owner(device)


# --- the pool


@contextmanager
def _pool() -> "Iterator[_Pool]":
    """Open a session to the pool. Raises XapiFailure when xapi does not answer."""
    with local_xapi(HOST.xapi_socket) as xapi:
        yield _Pool(xapi, HOST)


class _Pool:
    """Records of the pool, and this host's reference."""

    def __init__(self, xapi: "Xapi", host: Host) -> None:
        self.call, self.records = xapi.call, xapi.records
        self.host = own_ref(self.records("host"), host)  #: "" if xapi does not know the host

    def has_multipathing(self) -> bool:
        host = self.records("host").get(self.host, {})
        return bool(host.get("multipathing")) or multipath.is_on({}, host.get("other_config", {}))

    def udev_srs(self) -> Dict[str, Dict[str, Any]]:
        """Return this host's SRs that make VDIs of the links in /dev/xapi/block."""
        srs = self.records("SR")
        here = [pbd.get("SR") for pbd in self.records("PBD").values() if self.host and pbd.get("host") == self.host]
        return {
            ref: sr
            for ref, sr in srs.items()
            if ref in here and sr.get("type") == "udev" and sr.get("sm_config", {}).get("type") == "block"
        }

    def vdis(self, location: str) -> Dict[str, Dict[str, Any]]:
        """Return the VDIs of this host with this location (a link)."""
        srs = self.udev_srs()
        found = self.records("VDI").items()
        return {ref: vdi for ref, vdi in found if vdi.get("SR") in srs and vdi.get("location") == location}


def _vdi(name: str, notes: List[str]) -> str:
    """Return the UUID of the VDI for the link; introduce a missing VDI. An error becomes a note."""
    link = direct.link_of(name, HOST)
    try:
        with _pool() as pool:
            found = pool.vdis(link)
            srs = {} if found else pool.udev_srs()
            if srs:
                try:
                    HOST.runner(["env", "ACTION=add", HOST.at(_INTRODUCER), name])
                except CommandFailed as error:
                    notes.append(str(error))
                found = pool.vdis(link)
    except RelvmoiscsiError as error:
        notes.append(f"The VDI of the LUN could not be found: {error.told}")
        return ""
    if found:
        return str(next(iter(found.values()))["uuid"])
    if srs:
        sr = next(iter(srs.values()))["uuid"]
        notes.append(
            "The LUN is not a VDI yet. To make a VDI: `xe vdi-introduce uuid=$(uuidgen) "
            f"{quoted(f'sr-uuid={sr}', 'type=user', f'location={link}')}`."
        )
    else:
        notes.append("This host has no udev SR for disks, so the LUN is no VDI yet.")
    return ""


# --- remove


def remove(name: str) -> Answer:
    """Make the LUN of this name no direct LUN any more."""
    notes: List[str] = []
    link = direct.link_of(name, HOST)
    with changing(HOST):
        text = read_config(HOST.config)
        there = read_section(text)[0]
        scsi_id = there.get(name, "")
        with in_state(NOT_CHANGED):
            if not scsi_id:
                near = "".join(f" Did you mean {each!r}?" for each in nearest(name, there))
                raise NotFound(f"There is no direct LUN {name!r}.{near}").advising(
                    "`relvmoiscsi direct list` lists the names."
                )
            # A VM may have the device of the link open, and the map of the LUN, or its disks. The paths of a map do not
            # count, because the map always holds its paths open.
            maps = udev.maps_of(scsi_id, HOST)
            devices = maps or udev.disks_of(scsi_id, HOST)
            leads = direct.leads_to(name, HOST)
            if leads and leads not in multipath.paths_in(maps, HOST):
                devices = [*devices, leads]
            for device in dict.fromkeys(devices):
                direct.check_unused(device, HOST)
            _check_no_vm(name, notes)
            new_text = without_entry(text, name)
        replace_config(HOST.config, new_text)
    with waiting("udev to remove the link", direct.LINK_SECONDS):
        is_gone = direct.renew_link(name, scsi_id, "", HOST)
    if not is_gone:
        there_still = Refused(f"{link} still exists: udev did not remove the link.")
        again = shell_command("udevadm trigger --action=change", sysname_match=[direct.leads_to(name, HOST)])
        raise there_still.in_state(f"{HOST.config} has {name} no longer.").advising(
            f"Have udev apply its rules: `{again}`."
        )
    try:
        with _pool() as pool:
            for ref in pool.vdis(link):
                pool.call("VDI.forget", ref)
    except RelvmoiscsiError as error:
        notes.append(f"The VDI of the LUN could not be forgotten: {error.told} Run `xe vdi-forget`.")
    again = shell_command("relvmoiscsi direct add", name, scsi_id)
    text = f"{name} (LUN {scsi_id}) is no longer a direct LUN."
    text += f"\nUnmap the LUN at the array, or make it a direct LUN again: `{again}`."
    facts = {"direct_name": name, "scsi_id": scsi_id, "link": link, "notes": notes}
    return Answer(facts, "\n".join([text] + ["note: " + printable(note) for note in notes]))


def _check_no_vm(name: str, notes: List[str]) -> None:
    """Raises Refused when the LUN is a disk of a VM, running or halted. Without xapi, only open devices count.

    Raises XapiFailure where xapi runs and gives no answer: a halted VM may have the LUN.
    """
    try:
        with _pool() as pool:
            vbds = [vbd for vdi in pool.vdis(direct.link_of(name, HOST)).values() for vbd in vdi.get("VBDs", [])]
            if vbds:
                vm = pool.call("VM.get_record", pool.call("VBD.get_record", vbds[0])["VM"])
                raise Refused(f"{name} is a disk of the VM {vm.get('uuid')} ({vm.get('name_label')!r}).").advising(
                    "Remove the disk from the VM first: `xe vbd-list` and `xe vbd-destroy`."
                )
    except NoXapi as error:
        notes.append(f"xapi could not be asked whether a VM has the LUN as a disk: {error.told}")


# --- list


def list_luns() -> Answer:
    """Return the state of each direct LUN. The pool, and not the content of the LUN, says whether an SR has the LUN."""
    luns, problems = read_section(read_config(HOST.config))
    problems = [f"{HOST.config}: {problem}" for problem in problems]
    problems += [each.told for each in lvm_problems(luns, HOST)]
    records = None
    try:
        if luns:
            with _pool() as pool:
                records = read_pool(pool)
    except RelvmoiscsiError as error:
        problems.append(f"xapi could not be asked whether an SR has one of the LUNs: {error.told}")
    facts = []
    rows = [["NAME", "SCSIID", "DEVICE", "SIZE", "LINK"]]
    for name, scsi_id in luns.items():
        status = direct.status_of(name, scsi_id, HOST)
        if records is not None:
            try:
                direct.check_no_user(scsi_id, records, direct.link_of(name, HOST), HOST)
            except Refused as problem:
                status = status._replace(problem=problem)
        facts.append(_facts(name, scsi_id, status))
        size = human_size(status.size_bytes) if status.device else "-"
        link = "linked" if status.is_linked else "not linked"
        if status.reason:
            link += ": " + printable(status.reason)
        rows.append([name, scsi_id, status.device or "-", size, link])
    lines = table(rows) if luns else ["This host has no direct LUNs."]
    lines += map(printable, problems)
    return Answer({"direct_luns": facts, "problems": problems}, "\n".join(lines))


def _facts(name: str, scsi_id: str, status: Status) -> Dict[str, Any]:
    return {
        "direct_name": name,
        "scsi_id": scsi_id,
        "link": direct.link_of(name, HOST),
        "is_linked": status.is_linked,
        "device": HOST.node(status.device) if status.device else None,
        "size_bytes": status.size_bytes if status.device else None,
        "problem": status.reason or None,
    }


# --- udev


def answer_udev(kernel_name: str) -> Answer:
    """Answer the udev rule. The rule asks at each event of a configured LUN, and udev waits for the answer.

    The answer is the name of the link, NO_LINK for a device of a direct LUN without a link, or nothing.
    """
    name = direct.link_name(kernel_name, HOST)
    text = "" if name is None else name or direct.NO_LINK
    return Answer({"link_name": name or ""}, text)


def make_events() -> Answer:
    """Have udev apply its rules to each device of a direct LUN: the package calls this when it brings new rules."""
    for names in direct.every_device_of(luns_of(HOST).values(), HOST).values():
        for name in names:
            udev.make_event(name, HOST)
    return Answer({}, "")
