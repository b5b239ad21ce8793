# SPDX-License-Identifier: LGPL-2.1-only
"""What the commands on a LUN share: arguments, the device, and the way of those that write.

identify    what tells this LUN from its original, and who uses it: `Target.identify`
ask         a person, unless --yes and what goes with it have said it: `Target.ask`
lock        whoever else might write: `Target.locks`
write       the engine
record      the map, in syslog and in the file of --map-out: `answer`, `map_out`
"""

import argparse
import os
import shlex
import stat
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ContextManager, Dict, Iterator, List, Optional, Tuple

from relvmoiscsi import __version__, engine, report
from relvmoiscsi.cli import guard, map_out, over_iscsi
from relvmoiscsi.cli.guard import ScsiIds
from relvmoiscsi.cli.identification import Identification, identify
from relvmoiscsi.cli.opening import opened_to_read, takes_device
from relvmoiscsi.cli.output import Answer, ask, ask_for, must_be_able_to_ask, say, tell
from relvmoiscsi.cli.over_iscsi import may_open, say_where_seen
from relvmoiscsi.device import Range
from relvmoiscsi.engine import Lun, Result, Run
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, RelvmoiscsiError, in_state
from relvmoiscsi.host import command
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.host.disk.lvm_memory import tell_lvm
from relvmoiscsi.iscsi.url import is_url, parse_url
from relvmoiscsi.portal import DEFAULT_PORT
from relvmoiscsi.wording import human_size, printable

if TYPE_CHECKING:
    from relvmoiscsi.cli.opening import Opened

FINISHED = "{}: the {} was finished."

#: between the two looks at a LUN of which nobody has said that it is not in use
LOOK_SECONDS = 1.0
#: the label, and the header of the first metadata area as LVM makes it: each change of the volume group changes it
_LOOKED_AT = Range(0, 8192)


def writes(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The same parser, which takes DEVICE and what a command that writes takes."""
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
    """A LUN that a command is to write to, open for it alone."""

    def __init__(self, arguments: argparse.Namespace, device: "Opened", ids: ScsiIds) -> None:
        self.path, self.device, self.ids = arguments.device, device, ids
        self._arguments = arguments
        self._looked, self._seen = 0.0, b""
        self.identification: Optional[Identification] = None

    def identify(self, lun: Optional[Lun], sr_uuid: Optional[str] = None, new_sr: str = "") -> Identification:
        """Find out what tells the LUN from its original, and say it to whoever will be asked.

        `lun` is what is on it, `sr_uuid` the SR where that does not read, `new_sr` what a new run makes of it.

        Raises Refused where it must not be written to, UsageError where a question would be asked and nobody is there.
        """
        arguments = self._arguments
        with in_state(NOTHING_WRITTEN):
            must_be_able_to_ask(arguments)
            self._looked, self._seen = time.monotonic(), self._look()
            pool = guard.verify_not_in_use(arguments, guard.ask_pool(self.path, self.ids, new_sr), self.ids)
            found = self.identification = identify(self.device, self.ids.own, pool, lun, sr_uuid)
        if not arguments.yes and not getattr(arguments, "dry_run", False):
            say(f"{self.path} will be changed:")
            tell("\n".join(found.lines()))
        return found

    def ask(self, question: str, loss: str = "") -> None:
        """Go on with a yes to the question; of a LUN of which no pool has said anything, with its SCSIid.

        `loss` is the question where something is destroyed: it is answered by itself. Raises Refused.
        """
        with in_state(NOTHING_WRITTEN):
            unknown = self._is_unknown()
            if loss:
                ask(self._arguments, loss)
            if unknown and not guard.is_named(self.ids):
                ask_for(self._arguments, question + " Type the SCSIid of the clone:", str(self.ids.own))
            elif not loss:
                ask(self._arguments, question)
            if unknown:
                self._look_again()

    def locks(self, run: Run) -> ContextManager[Any]:
        """Held while the run is carried out."""
        with in_state(NOTHING_WRITTEN):
            return guard.write_locks(self.path, engine.vg_names(run))

    def _is_unknown(self) -> bool:
        """Whether nobody has said that it is not in use."""
        assert self.identification is not None
        return not self._arguments.not_in_use and guard.is_nobody_asked(self.path, self.identification.pool)

    def _look(self) -> bytes:
        return self.device.read([Range(0, min(_LOOKED_AT.length, self.device.size_bytes))])[0]

    def _look_again(self) -> None:
        """Raises Refused when LVM, wherever it is, has changed the volume group since `identify`."""
        time.sleep(max(0.0, self._looked + LOOK_SECONDS - time.monotonic()))
        now = self._look()
        if now != self._seen:
            offset = next(at for at, pair in enumerate(zip(now, self._seen)) if pair[0] != pair[1])
            raise Refused(
                f"{self.path} changed at byte {offset} since the first read. "
                "Another program or host writes to this device: the LUN is in use."
            )


@contextmanager
def opened(arguments: argparse.Namespace, writable: bool = True) -> Iterator[Target]:
    """The device; for us alone if it is to be written."""
    with ExitStack() as held:
        with in_state(NOTHING_WRITTEN):
            open_word = _opened_url if is_url(arguments.device) else _opened_path
            device, ids = open_word(arguments, writable, held)
        yield Target(arguments, device, ids)


def _opened_path(arguments: argparse.Namespace, writable: bool, held: ExitStack) -> "Tuple[Opened, ScsiIds]":
    ids = guard.scsi_ids(arguments.device, arguments.scsi_id)
    if writable:
        held.enter_context(guard.lun_lock(arguments.device, ids.names))
    try:
        return held.enter_context(open_device(arguments.device, writable)), ids
    except Refused as refused:
        if writable:
            more = guard.way_out(arguments.device, ids, partial(_sr_on, arguments.device))
            refused.message = f"{refused.message} {more}".strip()
        raise


def _opened_url(arguments: argparse.Namespace, writable: bool, held: ExitStack) -> "Tuple[Opened, ScsiIds]":
    """The session that writes ends any other of this machine that writes to the LUN: the lock of the LUN comes first,
    and so the SCSIid. Where it was not given, a session that only reads tells it. The one that writes compares.
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
    """The UUID of the SR on a LUN; "" where there is none that can be read. Raises RelvmoiscsiError."""
    with open_device(path, writable=False) as device:
        lun = engine.inspect(device).lun
    return lun.sr_uuid if lun is not None else ""


def answer(target: Target, result: Result, headline: str) -> Answer:
    """What a command that has written says; syslog has it too, and LVM is told where it keeps what it has seen."""
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
    assert target.identification is not None  # nothing is written before
    facts["lun"] = target.identification.facts()
    return Answer(facts, "\n".join([*lines, *_next_steps(target, result)]))


def _next_steps(target: Target, result: Result) -> List[str]:
    """What to do now: the commands that attach the new SR, with its values; or, of a clone that has its old identities,
    how to get there. Nothing for an image file with new identities, which no host attaches.
    """
    if result.state != engine.RESIGNATURED:
        return [
            f"next: give the clone new identities with `relvmoiscsi resignature {target.path}`, or detach it. "
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
    """What --json gives beside the error: the device, and its state unless it does not even open."""
    path = arguments.device
    try:
        if is_url(path) and not may_open(problem):
            return {"state": None, "device": path}
        with opened_to_read(arguments, path) as device:
            return {"state": engine.inspect(device).state, "device": path}
    except RelvmoiscsiError:
        return {"state": None, "device": path}
