# SPDX-License-Identifier: LGPL-2.1-only
"""sr_create: reach the LUN, resignature it, leave the host as it was."""

import logging
import math
from contextlib import ExitStack, contextmanager
from typing import Iterator, Optional

from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, RelvmoiscsiError, UsageError, in_state
from relvmoiscsi.host import terminated
from relvmoiscsi.host.deadline import Deadline
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.host.own_process import AskingDevice, Begin, apart
from relvmoiscsi.host.settings import OneVdiSetting, one_vdi
from relvmoiscsi.host.sm_log import SmLogHandler
from relvmoiscsi.host.xapi.api import Xapi, XapiFailure
from relvmoiscsi.host.xapi.lun_users import Pool, ids_named, read_pool, verify_unused
from relvmoiscsi.host.xapi.other_hosts import use_of_lun
from relvmoiscsi.host.xapi.stale_volumes import Attachments, way_out
from relvmoiscsi.sr_driver.held import held
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.transport import Lun, Transport, Wanted

log = logging.getLogger(__name__)

AGAIN_SECONDS = 15.0  #: as little as a second try needs where all answers


def sr_create(
    call: Call, config: Wanted, xapi: Xapi, smlog: SmLogHandler, deadline: Deadline, transport: Transport
) -> str:
    """Give the LUN new identities; gives the new SR UUID. Raises RelvmoiscsiError.

    No write begins after the deadline; what has begun goes on to its end.
    """
    if not config.is_master:
        raise Refused("A resignature runs on the pool's master.", "LVMMaster").in_state("Nothing was written.")
    lun = transport.open_lun(call, config, xapi, smlog, deadline, math.inf)
    asked = one_vdi(config.vdis)
    if config.vdi is not None and asked is None:
        problem = "device-config:vdi names the one VDI that stays; say device-config:vdis=one as well."
        raise UsageError(problem, "InvalidArg").in_state("Nothing was written.")
    try:
        return _tried(lun, call, config, asked, xapi)
    except RelvmoiscsiError as error:
        if not lun.was_taken_away or deadline.left < AGAIN_SECONDS:
            raise
        log.warning("%s The session that this call had found was ended by another program; once more.", error)
    terminated.heed_again()
    lun = transport.open_lun(call, config, xapi, smlog, deadline, math.inf)  # it asks the pool anew
    return _tried(lun, call, config, asked, xapi)


def _tried(lun: Lun, call: Call, config: Wanted, asked: Optional[OneVdiSetting], xapi: Xapi) -> str:
    """The new SR UUID. Of an earlier try it finishes what there is, as the same call by the caller would."""
    pool = read_pool(xapi)
    verify_unused(lun.scsi_id, pool, call.sr_ref, here=call.host_ref)
    log.info("sr_create: LUN %s %s", lun.scsi_id, lun.place)
    lun.ids_of_pool = ids_named(pool)
    with _naming_the_way_out(lun, call, xapi), _held(lun, config.is_meant) as path:
        if not config.is_meant:
            raise _not_meant(lun, path, pool)
        with _staying_if_new(lun, path):
            return apart(
                lambda begin: _resignatured(path, lun, config, asked, begin), lun.deadline, "the LUN had been read"
            )


@contextmanager
def _held(lun: Lun, to_write: bool) -> Iterator[str]:
    """The device node of the LUN; what fails on the way there says that nothing was written."""
    with ExitStack() as stack:
        with in_state(lambda: lun.deadline.disk_state if lun.deadline.has_passed else NOTHING_WRITTEN):
            path = stack.enter_context(held(lun, meanwhile=_load_engine, to_write=to_write))
        yield path


@contextmanager
def _naming_the_way_out(lun: Lun, call: Call, xapi: Xapi) -> Iterator[None]:
    """A refusal tells what to do about volumes that the storage manager has activated on the clone."""
    try:
        yield
    except Refused as refused:
        refused.message = f"{refused.message} {_way_out(lun, call, xapi)}".strip()
        raise


def _way_out(lun: Lun, call: Call, xapi: Xapi) -> str:
    use = use_of_lun(lun.scsi_id)
    if not use.srs:
        return ""
    deadline, path = lun.deadline.for_cleanup(), "/dev/" + use.disks[0]
    try:
        held_there = apart(lambda _begin: _held_there(path), deadline, "the LUN had been read", only_reads=True)
    except (RelvmoiscsiError, RuntimeError) as error:
        log.warning("which SR the LUN holds could not be read: %s", error)
        return ""
    try:
        asked = xapi.until(deadline)
        attachments = Attachments(asked.records("PBD"), asked.records("SR"), call.host_ref)
    except XapiFailure:
        return way_out(held_there.split(" ")[0], use.stacked, None)
    return way_out(held_there.split(" ")[0], use.stacked, attachments)


@contextmanager
def _staying_if_new(lun: Lun, path: str) -> Iterator[None]:
    """What has come with the LUN stays once stock tools see the new SR there, also where the call failed later."""
    try:
        yield
    except BaseException:
        if lun.stays_if_new and _is_new(lun, path):
            lun.stays()
        raise
    lun.stays()


def _is_new(lun: Lun, path: str) -> bool:
    """Has the LUN the identities of a run that was made for it? False where that cannot be read any more."""
    try:
        deadline, what = lun.deadline.for_cleanup(), "the LUN had been read again"
        state = apart(lambda _begin: _state_of(lun, path), deadline, what, only_reads=True)
    except (RelvmoiscsiError, RuntimeError) as error:
        log.warning("whether the LUN has its new identities could not be read: %s", error)
        return False
    return state == "new"


def _state_of(lun: Lun, path: str) -> str:
    from relvmoiscsi import engine  # noqa: PLC0415 - see _load_engine

    with open_device(path, writable=False) as device:
        return "new" if engine.has_new_identities(device, lun.scsi_id) else "old"


def _not_meant(lun: Lun, path: str, pool: Pool) -> UsageError:
    """The refusal without resign=true: what the LUN holds, and whether the pool knows that SR."""
    what = "the LUN had been read"
    held_there = apart(lambda _begin: _held_there(path), lun.deadline, what, only_reads=True)
    sr_uuid, what = held_there.split(" ", 1)
    known = [sr for sr in pool.srs.values() if sr_uuid != "-" and sr.get("uuid") == sr_uuid]
    whose = "The pool has no such SR: it may be another pool's original. "
    if known:
        whose = "The pool has that SR, {!r}: this is a clone of its LUN, or that LUN. ".format(known[0]["name_label"])
    elif sr_uuid == "-":
        whose = ""
    problem = (
        f"An adapter sees whatever the array maps to it. The LUN {lun.scsi_id} holds {what}. {whose}If it is a clone "
        "that is to have new identities, say device-config:resign=true."
    )
    return UsageError(problem, "InvalidArg").in_state("Nothing was written.")


def _held_there(path: str) -> str:
    from relvmoiscsi import engine  # noqa: PLC0415 - see _load_engine

    with open_device(path, writable=False) as device:
        found = engine.inspect(device)
    if found.lun is None:
        return f"- no SR that can be read (it is {found.state})"
    label = found.lun.mgt.name_label if found.lun.mgt else ""
    return f"{found.lun.sr_uuid} the SR {found.lun.sr_uuid} ({label!r})"


def _resignatured(path: str, lun: Lun, config: Wanted, asked: Optional[OneVdiSetting], begin: Begin) -> str:
    """Its SR is not the one that xapi has a row of during this call.

    Should xapi die, that row stays, and a second SR of the same UUID could never be introduced.
    """
    from relvmoiscsi.resignature.one_vdi.choice import Request  # noqa: PLC0415 - see _load_engine
    from relvmoiscsi.sr_driver.rewrite import LOCK_SECONDS, resignatured, waiting  # noqa: PLC0415 - the same

    one = Request(config.vdi, asked.most_bytes, asked.note) if asked is not None else None
    with open_device(path, writable=True, lock_timeout=waiting(lun.deadline, LOCK_SECONDS)) as device:
        asking = AskingDevice(device, begin)
        clear = config.clear_databases
        return resignatured(asking, lun.scsi_id, "", lun.deadline, one, lun.keeps_lvm_away, clear)


def _load_engine() -> None:
    """While udev is busy with the disk there is nothing else to do; a call that ends before needs no engine."""
    import relvmoiscsi.sr_driver.rewrite  # noqa: F401, PLC0415
