# SPDX-License-Identifier: LGPL-2.1-only
"""Common code of the commands on a LUN: arguments, the open device, and the steps of a write.

identify    identify the LUN, and ask who uses the LUN: `Target.identify`
ask         ask a person, unless --yes and --scsi-id or --not-in-use confirm: `Target.ask`
lock        lock out other writers: `Target.locks`
write       call the engine
record      write the map to syslog and to the file of --map-out: `answer`, `map_out`
"""

import argparse
import os
import shlex
import stat
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ContextManager, Dict, Iterator, List, Optional, Sequence, Tuple

from relvmoiscsi import __version__, engine, report, wording
from relvmoiscsi.cli import guard, map_out, over_iscsi
from relvmoiscsi.cli.identification import Identification, identify
from relvmoiscsi.cli.opening import opened_to_read, takes_device
from relvmoiscsi.cli.output import Answer, ask, ask_for, must_be_able_to_ask, say, tell
from relvmoiscsi.cli.over_iscsi import may_open, say_where_seen
from relvmoiscsi.deadline import NO_DEADLINE
from relvmoiscsi.device import Device, Range
from relvmoiscsi.engine import Lun, Result, Run
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, RelvmoiscsiError, in_state
from relvmoiscsi.formats import naming
from relvmoiscsi.host import command
from relvmoiscsi.host.disk import scsi_id as live_scsi
from relvmoiscsi.host.disk.block_device import HostDevice, open_device
from relvmoiscsi.host.disk.kernel_disks import exclusive_open
from relvmoiscsi.host.disk.lvm_memory import tell_lvm
from relvmoiscsi.host.disk.paths import NamedPath
from relvmoiscsi.iscsi.url import is_url, parse_url
from relvmoiscsi.lun.users import ScsiIds
from relvmoiscsi.portal import DEFAULT_PORT
from relvmoiscsi.wording import human_size, printable

if TYPE_CHECKING:
    from relvmoiscsi.cli.opening import Opened

FINISHED = "{}: the {} was finished."

#: between the two reads of a LUN about which no pool has answered; longer than the lease of a block device (`Fence`)
LOOK_SECONDS = 2.5
#: the label, and the header of the first metadata area where LVM puts both: each change of the VG changes the header
_LABEL_AND_HEADER = Range(0, 8192)


def writes(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add DEVICE and the options of a command that writes; return the parser."""
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    parser.add_argument(
        "--not-in-use", action="store_true", help="proceed even if xapi reports the LUN in use or does not answer"
    )
    parser.add_argument("--scsi-id", metavar="ID", help="SCSIid of the clone; refuse a device with another SCSIid")
    parser.add_argument(
        "--map-out", metavar="FILE", help="write the JSON output, with the old-to-new map, to a new FILE"
    )
    parser.set_defaults(run=map_out.written(parser.get_default("run")))
    return takes_device(parser)


class Target:
    """A LUN that a command writes to, opened exclusively."""

    def __init__(self, arguments: argparse.Namespace, device: "Opened", ids: ScsiIds) -> None:
        self.path, self.device, self.ids = arguments.device, device, ids
        self.named: Device = device  #: for writes. A disk says its name with each batch of writes
        self._arguments = arguments
        self._compared: List[Range] = []  #: read twice where no pool was asked
        self._looked, self._seen = 0.0, [b""]
        self.identification: Optional[Identification] = None

    def identify(
        self, lun: Optional[Lun], sr_uuid: Optional[str] = None, replaced: Sequence[str] = (), new_sr: str = ""
    ) -> Identification:
        """Identify the LUN, and print the identification before a question.

        `lun` is the content of the LUN, `sr_uuid` the SR of an unreadable LUN. `replaced` are the UUIDs of the SRs that
        the LUN will no longer hold, `new_sr` is the UUID that a new run gives the SR.

        Raises Refused for a LUN that must not be written to. Raises UsageError where a question needs a missing
        terminal.
        """
        arguments = self._arguments
        with in_state(NOTHING_WRITTEN):
            answer = guard.ask_pool(self.path, self.ids, replaced, new_sr)
            must_be_able_to_ask(arguments, guard.beside_yes(arguments, answer, self.ids))
            self._compared = self._ranges_of_lvm_and_sm(lun)
            self._looked, self._seen = time.monotonic(), self.device.read(self._compared)
            pool = guard.verify_not_in_use(arguments, answer, self.ids)
            found = self.identification = identify(self.device, self.ids.own, pool, lun, sr_uuid)
        if not arguments.yes and not getattr(arguments, "dry_run", False):
            say(f"{self.path} will be changed:")
            tell("\n".join(found.lines()))
        return found

    def ask(self, question: str, loss: str = "") -> None:
        """Return after a confirmation. Ask for the SCSIid where no pool has answered, otherwise for a yes.

        `loss` is a second question, about data that the run destroys. Raises Refused.
        """
        with in_state(NOTHING_WRITTEN):
            unknown = self._is_unknown()
            if loss:
                ask(self._arguments, loss)
            if unknown and not self.ids.is_named:
                ask_for(self._arguments, question + " Type the SCSIid of the clone:", str(self.ids.own))
            elif not loss:
                ask(self._arguments, question)
            if unknown:
                self._look_again()

    def locks(self, run: Run) -> ContextManager[Any]:
        """Hold the locks while the run writes."""
        with in_state(NOTHING_WRITTEN):
            return guard.write_locks(self.path, engine.vg_names(run))

    def _is_unknown(self) -> bool:
        """Has neither a pool nor --not-in-use said that the LUN is unused?"""
        assert self.identification is not None
        return not self._arguments.not_in_use and guard.is_nobody_asked(self.path, self.identification.pool)

    def _ranges_of_lvm_and_sm(self, lun: Optional[Lun]) -> List[Range]:
        """Return the ranges that change when LVM changes the VG, or the storage manager a record of the SR."""
        found = [Range(0, min(_LABEL_AND_HEADER.length, self.device.size_bytes))]
        if lun is None or lun.mgt is None:
            return found
        return found + lun.vg.ranges(lun.volume(naming.MGT).lv, 0, lun.mgt.length)

    def _look_again(self) -> None:
        """Raises Refused when LVM or the storage manager, on any host, has changed the LUN since `identify`."""
        time.sleep(max(0.0, self._looked + LOOK_SECONDS - time.monotonic()))
        for part, seen, now in zip(self._compared, self._seen, self.device.read(self._compared)):
            if now != seen:
                offset = part.offset + next(at for at, pair in enumerate(zip(now, seen)) if pair[0] != pair[1])
                raise Refused(
                    f"{self.path} changed at byte {offset} since the first read. "
                    "Another program or host writes to this device: the LUN is in use."
                )


@contextmanager
def opened(arguments: argparse.Namespace, writable: bool = True) -> Iterator[Target]:
    """Open the device, exclusively for a write."""
    with ExitStack() as held:
        with in_state(NOTHING_WRITTEN):
            open_word = _opened_url if is_url(arguments.device) else _opened_path
            device, ids = open_word(arguments, writable, held)
            if writable:
                device.fence.on_wait = partial(_say_wait, arguments.device)
            target = Target(arguments, device, ids)
            if writable and isinstance(device, HostDevice) and ids.own is not None:
                target.named = _named(device, ids.own)
        yield target


def _say_wait(path: str, seconds: float) -> None:
    say(f"Another host may have begun the run on {path}: waiting {seconds:g} seconds for its last write.")


def _named(disk: HostDevice, scsi_id: str) -> NamedPath:
    """Return the disk with the name that it must keep. Raises Refused if the LUN says another SCSIid than the kernel.

    The kernel keeps the SCSIid of the LUN that it has found. The array may have mapped the original there since.
    """
    named = NamedPath(disk, (scsi_id, live_scsi.live_serial(disk.name)))
    named.verify_name()
    return named


def _opened_path(arguments: argparse.Namespace, writable: bool, held: ExitStack) -> "Tuple[Opened, ScsiIds]":
    ids = guard.scsi_ids(arguments.device, arguments.scsi_id)
    if writable:
        held.enter_context(guard.lun_lock(arguments.device, ids.names))
    try:
        if writable and ids.own is not None:  # LVM may have taken another path of the LUN
            own = live_scsi.kernel_name(arguments.device, guard.HOST)
            held.enter_context(exclusive_open(ids.own, NO_DEADLINE, guard.HOST, own))
        return held.enter_context(open_device(arguments.device, writable)), ids
    except Refused as refused:
        if writable:
            more = guard.way_out(arguments.device, ids, partial(_sr_on, arguments.device))
            refused.message = f"{refused.message} {more}".strip()
        raise


def _opened_url(arguments: argparse.Namespace, writable: bool, held: ExitStack) -> "Tuple[Opened, ScsiIds]":
    """Open the LUN of a URL; for a write, after the lock of the LUN.

        t0  another command of this machine writes to the LUN in its session
        t1  a new session that writes would end the session of the other command

    The lock prevents t1, and the lock needs the SCSIid. Without --scsi-id, a session that only reads gives the SCSIid.
    The session that writes compares the SCSIid.
    """
    url, given = arguments.device, arguments.scsi_id
    guard.check_given(given)
    if not writable:
        device = held.enter_context(over_iscsi.opened_url(arguments, url, writable))
        return device, guard.agreed(url, given, device.info.scsi_id)
    own = given or over_iscsi.own_scsi_id(arguments, url)
    ids = ScsiIds(given, own)
    held.enter_context(over_iscsi.lun_lock(ids.own))
    over_iscsi.refuse_where_seen(url, ids.own)
    return held.enter_context(over_iscsi.opened_url(arguments, url, writable, ids.own)), ids


def _sr_on(path: str) -> str:
    """Return the UUID of the SR on a LUN; "" without a readable SR. Raises RelvmoiscsiError."""
    with open_device(path, writable=False) as device:
        lun = engine.inspect(device).lun
    return lun.sr_uuid if lun is not None else ""


def answer(target: Target, result: Result, headline: str) -> Answer:
    """Return the answer after a write; write the map to syslog, and refresh LVM's caches of the device."""
    path = target.path
    if is_url(path):
        say_where_seen(target.ids.own)
    elif stat.S_ISBLK(os.stat(path).st_mode):
        for sentence in tell_lvm(path, command.run):
            say(sentence)
    lines = [headline]
    if result.ids is not None:
        lines.append(report.map_text(result.lun, result.ids))
        record = [f"{headline} This is relvmoiscsi {__version__}.", *report.whole_map_lines(result.lun, result.ids)]
        guard.write_log(record)
    lines.append(f"  {result.writes} writes, {human_size(result.bytes_written)}, {result.flushes} flushes")
    facts = report.result_facts(path, result)
    assert target.identification is not None  # every write follows `identify`
    facts["lun"] = target.identification.facts()
    return Answer(facts, "\n".join([*lines, *_next_steps(target, result)]))


def _next_steps(target: Target, result: Result) -> List[str]:
    """Return the next steps: the commands that attach the new SR, with its values.

    For a clone with its old identities, return how to resignature the clone. Return nothing for an image file with new
    identities, because no host attaches an image file.
    """
    if result.state != engine.RESIGNATURED:
        resignature = wording.command("relvmoiscsi", "resignature", target.path)
        return [
            f"next: give the clone new identities with {resignature}, or detach it. "
            "No host may attach it beside its original."
        ]
    scsi_id = target.ids.own
    if scsi_id is None or result.ids is None or result.lun is None:
        return []
    sr, config, sr_type = result.ids.new_sr, "", "lvmohba"
    if is_url(target.path):
        url = parse_url(target.path)
        sr_type, config = "lvmoiscsi", f"device-config:target={url.portal.host} device-config:targetIQN={url.iqn} "
        config += f"device-config:port={url.portal.port} " if url.portal.port != DEFAULT_PORT else ""
    name = shlex.quote(printable(result.lun.mgt.name_label if result.lun.mgt else "") + " copy")
    lines = ["next, on the pool master (pbd-create and pbd-plug for each host):"]
    if not config:
        lines.append("  for a LUN behind iSCSI, use type=lvmoiscsi and add device-config:target and targetIQN")
    return [
        *lines,
        f"  xe sr-introduce uuid={sr} type={sr_type} name-label={name} shared=true content-type=user",
        f"  xe pbd-create sr-uuid={sr} host-uuid=HOST {config}device-config:SCSIid={scsi_id}",
        "  xe pbd-plug uuid=PBD",
    ]


def failure_facts(arguments: argparse.Namespace, problem: RelvmoiscsiError) -> Dict[str, Any]:
    """Return the device and its state, for --json beside the error; None as state if the device does not open."""
    path = arguments.device
    try:
        if is_url(path) and not may_open(problem):
            return {"state": None, "device": path}
        with opened_to_read(arguments, path) as device:
            return {"state": engine.inspect(device).state, "device": path}
    except RelvmoiscsiError:
        return {"state": None, "device": path}
