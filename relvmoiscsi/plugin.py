# SPDX-License-Identifier: LGPL-2.1-only
"""The functions of the host plugin besides `version` and `doctor`: drivers/plugins/relvmoiscsi, by host.call_plugin.

    classify     hba, from: every LUN that this host sees, and every LUN behind the iSCSI targets of its SRs, with the
                 content of the LUN. Nothing is written. With hba=true: only LUNs behind its adapters (Fibre Channel,
                 SAS).
                 `problems` has a sentence for each target that did not answer. Of such a target, the answer lists only
                 the LUNs that the host sees.
                 {"host_luns": [{"scsi_id", "device", "state", "size_bytes", "sr", "old_sr", "new_sr",
                 "copied", "metadata_of", "changed_at", "sr_name_label", "problem"}, ...], "problems": [], "next": null}
    map          sr, an SR of the pool, from: the old ids of its resignatured LUN, while the journal is on the LUN
                 {"old_sr", "new_sr", "vdi_pairs": [{"old_vdi", "new_vdi", "vdi_name"}, ...], "next": null}
    status       the active runs on this host
                 {"runs": [{"scsi_id", "by", "phase", "percent"}, ...]}
    resignature  scsi_id, dry_run, clear_metadata_vdi, later_copy, vdis, sr_uuid: the JSON of `relvmoiscsi
                 resignature --yes --json`
    add_lun      iqn, scsi_id, number: make each iSCSI session of this host to the IQN show the LUN with this kernel
                 number, and no other LUN
                 {"problems": ["<sentence>", ...]}

Arguments and answers are strings. The plugin's file adds the argument `session_ref`, the session that xapi passes to
the plugin. An answer is JSON of less than 64 KiB, because xapi stores the answer in its database. A longer answer has
several pages: repeat the call with `from`, set to `next` of the last page. Every call can be repeated: xapi itself may
forward a call twice. `call` gives each function the deadline of the call.
Source: xen-api ocaml/xapi/xapi_plugins.ml, message_forwarding.ml.
"""

import json
import logging
import os
from functools import partial
from operator import itemgetter
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Tuple,
)

from relvmoiscsi import engine, report, untrusted
from relvmoiscsi.deadline import Deadline, OutOfTime
from relvmoiscsi.direct.direct_config import luns_of
from relvmoiscsi.engine import DONE, IN_PROGRESS, SWITCHED, database_pools, is_of_another_lun
from relvmoiscsi.errors import (
    NOTHING_WRITTEN,
    NotFound,
    RelvmoiscsiError,
    UsageError,
    failing_alone,
    in_options,
    in_state,
)
from relvmoiscsi.formats import mapfile
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.host import iscsi_sessions
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_disk
from relvmoiscsi.host.files import names_in
from relvmoiscsi.host.hba import adapters
from relvmoiscsi.host.locks.lun_lock import locked_luns
from relvmoiscsi.host.own_process import run_in_child, run_parallel
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.json_answer import answer_text
from relvmoiscsi.scsi_id_text import is_printed, is_scsi_id, typed_scsi_id
from relvmoiscsi.wording import ALL, VDIS, utc_time

if TYPE_CHECKING:
    from relvmoiscsi.host.xapi.api import Xapi
    from relvmoiscsi.lun.opened import LunSource, OpenLun
    from relvmoiscsi.plugin_targets import TargetLun

log = logging.getLogger(__name__)

MOST_BYTES = 60000  #: of an answer
MOST_PROBLEM, MOST_PROBLEMS = 500, 20  #: characters of a sentence about a LUN or a target; sentences about targets
CALL_SECONDS = 90.0  #: time limit for a call: a page, then one LUN
LUN_SECONDS = 10.0  #: time limit for reading one LUN
XAPI_SECONDS = 10.0  #: time limit for one answer
MOST_AHEAD = 400  #: LUNs that are read before the size of the page is known
PAGE_SECONDS = 60.0  #: time in which a page may start new LUNs: clients give up a call after minutes without an answer

Arguments = Mapping[str, str]
#: applies a function to the engine's inspection of a device; raises an error, also for a device that does not answer
Look = Callable[[str, Callable[[engine.Inspection], Dict[str, Any]], Deadline], Dict[str, Any]]
Find = Callable[[Arguments, Host], Dict[str, str]]

_Row = Tuple[str, Callable[[], Dict[str, Any]]]  #: the key of a row, and the function that makes the row

#: phase and percentage of an active run, by phase of the commit record
_PHASES = {
    None: ("reading and planning", 0),
    IN_PROGRESS: ("volumes", 40),
    SWITCHED: ("labels", 80),
    DONE: ("done", 100),
}


def look(path: str, told: Callable[[engine.Inspection], Dict[str, Any]], deadline: Deadline) -> Dict[str, Any]:
    """Inspect a LUN in a child process, which is abandoned when the LUN does not answer. Raises RelvmoiscsiError."""
    from relvmoiscsi.lun.disk_source import DiskSource  # noqa: PLC0415 - before the fork, as each LUN has a child

    def inspected(_begin: Any) -> Dict[str, Any]:
        with failing_alone(path), DiskSource(path, THIS_HOST).opened_to_read() as lun:
            return told(engine.inspect(lun.device))

    found: Dict[str, Any] = run_in_child(inspected, deadline.part(LUN_SECONDS), "the LUN had been read")
    return found


def luns(host: Host = THIS_HOST) -> Dict[str, str]:
    """Return the device of each LUN, sorted by SCSIid: the multipath map of the LUN, or a disk without a map."""
    found: Dict[str, str] = {}
    for name in names_in(host.at("sys/block")):  # dm-0 before sda
        scsi_id = scsi_id_of_disk(name, host) if name.startswith(("sd", "dm-")) else None
        if scsi_id is not None and is_scsi_id(scsi_id):
            found.setdefault(scsi_id, host.node(name))
    return {scsi_id: found[scsi_id] for scsi_id in sorted(found)}


# --- the functions of the plugin


def classify(
    arguments: Arguments, deadline: Deadline, host: Host = THIS_HOST, see: Look = look, find: Optional[Find] = None
) -> str:
    """Return every LUN of this host, sorted by SCSIid. `find` returns the device of each LUN that the host sees.

    A direct LUN of this host is left out unread: a guest writes any content to it, also the SR of an original.
    """
    is_hba, start = _is_true(arguments, "hba"), arguments.get("from", "")
    if start and not is_printed(start):
        raise UsageError("The argument from is no SCSIid.").advising("Give `next` of the last page.")
    shown = luns(host) if find is None else find(arguments, host)
    if find is None and is_hba:
        of_adapters = {disk.scsi_id for disk in adapters.disks(adapters.adapters(host=host), host)}
        shown = {scsi_id: path for scsi_id, path in shown.items() if scsi_id in of_adapters}
    page = deadline.part(PAGE_SECONDS)
    behind: Dict[str, TargetLun] = {}  # the LUNs behind the iSCSI targets of this host's SRs
    problems: List[str] = []  # a sentence for each target that did not answer
    if "session_ref" in arguments and not is_hba:
        from relvmoiscsi.host.xapi.api import Xapi  # noqa: PLC0415 - only this function needs these imports
        from relvmoiscsi.plugin_targets import luns_of_srs  # noqa: PLC0415

        xapi = Xapi(arguments["session_ref"], host.xapi_socket, timeout=XAPI_SECONDS, deadline=page)
        behind, problems = luns_of_srs(xapi, host.installation_uuid, page)
        behind = {scsi_id: lun for scsi_id, lun in behind.items() if is_scsi_id(scsi_id)}
    if problems and not shown and not behind:
        raise NotFound(f"No LUN could be looked at. {' '.join(problems)}")
    of_guests = luns_of(host).values()
    ids = [scsi_id for scsi_id in sorted({*shown, *behind}.difference(of_guests)) if scsi_id >= start]
    ahead: Dict[str, Optional[Dict[str, Any]]] = {}  # rows that are read in parallel; None for a LUN that had no time
    if behind:
        first = [scsi_id for scsi_id in ids if scsi_id in behind][:MOST_AHEAD]
        ahead = _rows_behind({scsi_id: behind[scsi_id] for scsi_id in first}, shown, page)

    def made(scsi_id: str) -> Dict[str, Any]:
        row = ahead.get(scsi_id)
        if row is None and scsi_id in behind:
            row = _rows_behind({scsi_id: behind[scsi_id]}, shown, deadline)[scsi_id]
        if row is None and scsi_id not in shown:
            raise deadline.over("the LUN had been read")
        if row is None or row["state"] is None and scsi_id in shown:
            row = {"scsi_id": scsi_id, "device": shown[scsi_id]}
            try:
                row.update(see(shown[scsi_id], lambda found: _facts(found, scsi_id), deadline))
            except RelvmoiscsiError as error:
                row.update(state=None, problem=str(error)[:MOST_PROBLEM])
        return row

    told, left_out = [problem[:MOST_PROBLEM] for problem in problems[:MOST_PROBLEMS]], len(problems) - MOST_PROBLEMS
    if left_out > 0:
        told.append(f"{left_out} more targets have problems.")
    rows: List[_Row] = [(scsi_id, partial(made, scsi_id)) for scsi_id in ids]
    return _page("plugin classify", "host_luns", rows, {"problems": told}, page)


def _rows_behind(
    luns: Mapping[str, "TargetLun"], shown: Mapping[str, str], deadline: Deadline
) -> Dict[str, Optional[Dict[str, Any]]]:
    """Return the row of each of these LUNs behind targets; None where no time is left.

    Each LUN is read in a child process: what a stranger wrote may take long to verify, or much memory. `shown` has the
    path of each LUN that this host shows.
    """
    from relvmoiscsi.lun.url_source import LISTED_AT_ONCE  # noqa: PLC0415 - only LUNs behind targets need it

    def inspected(scsi_id: str) -> Dict[str, Any]:
        with failing_alone(f"The LUN {scsi_id}"), luns[scsi_id].opened(deadline.part(LUN_SECONDS)) as opened:
            return _facts(engine.inspect(opened.device), scsi_id)

    works = [partial(inspected, scsi_id) for scsi_id in luns]
    outcomes = run_parallel(works, deadline, "the LUN had been read", LISTED_AT_ONCE, LUN_SECONDS)
    rows: Dict[str, Optional[Dict[str, Any]]] = {}
    for (scsi_id, lun), found in zip(luns.items(), outcomes):
        url = f"iscsi://{lun.access.portals[0]}/{lun.access.config.target_iqn}/{lun.info.number}"
        row: Dict[str, Any] = {"scsi_id": scsi_id, "device": shown.get(scsi_id, url)}
        if isinstance(found, OutOfTime) and deadline.has_passed:
            rows[scsi_id] = None
        elif isinstance(found, RelvmoiscsiError):
            rows[scsi_id] = {**row, "state": None, "problem": str(found)[:MOST_PROBLEM]}
        else:
            rows[scsi_id] = {**row, **found}
    return rows


def _facts(found: engine.Inspection, scsi_id: str) -> Dict[str, Any]:
    return {
        "state": found.state,
        "size_bytes": found.lun.size_bytes if found.lun else None,
        "sr": found.lun.sr_uuid if found.lun else None,
        "old_sr": found.run.ids.sr if found.run else None,
        "new_sr": found.run.ids.new_sr if found.run else None,
        "copied": is_of_another_lun(found.commit_record, scsi_id),
        "metadata_of": database_pools(scsi_id, found.lun) if found.lun else [],
        "changed_at": utc_time(found.lun.vg.changed) if found.lun else None,
        "sr_name_label": found.lun.mgt.name_label[:200] if found.lun and found.lun.mgt else "",
        "problem": str(found.problem)[:MOST_PROBLEM] if found.problem else None,
    }


def map_of(
    arguments: Arguments,
    deadline: Deadline,
    host: Host = THIS_HOST,
    see: Look = look,
    find: Optional[Find] = None,
    pool: "Optional[Xapi]" = None,
) -> str:
    """Return the old ids of the LUN on which the pool has this SR.

    `find` as for `classify`; `pool` answers in the place of this host's xapi.

    Everybody who can write to a LUN can write a journal and a label with this SR. So the LUN must be one that the PBDs
    name, and its run must have been made for this LUN. An old VDI that the pool has on another SR than the old SR is in
    no pair, as in `pool map`.

    Raises UsageError, NotFound, XapiFailure; DeviceError, OutOfTime for a LUN that does not answer.
    """
    from relvmoiscsi import known_sr  # noqa: PLC0415 - only this function needs these imports
    from relvmoiscsi.host.xapi.api import Xapi  # noqa: PLC0415

    sr_uuid = arguments.get("sr", "").lower()
    if not is_uuid(sr_uuid):
        raise UsageError("The argument sr is no UUID.").advising("Give the UUID of an SR on a LUN of this host.")
    start = arguments.get("from", "")
    if start and not is_uuid(start):
        raise UsageError("The argument from is no UUID.").advising("Give `next` of the last page.")
    xapi = pool or Xapi(arguments.get("session_ref", ""), host.xapi_socket, timeout=XAPI_SECONDS, deadline=deadline)
    srs = xapi.records("SR")
    known = known_sr.find_sr(sr_uuid, srs, xapi.records("PBD"))
    named = [scsi_id for pbd in known.pbds for scsi_id in known_sr.luns_of_pbd(pbd)] if known is not None else []

    def told(scsi_id: str, seen: engine.Inspection) -> Dict[str, Any]:
        if seen.lun is None or seen.run is None or seen.lun.sr_uuid != sr_uuid:
            return {}
        if is_of_another_lun(seen.commit_record, scsi_id):
            return {}
        facts = report.map_facts(seen.lun, seen.run.ids)
        pairs = [{key: pair[key] for key in ("old_vdi", "new_vdi", "vdi_name")} for pair in facts["vdi_pairs"]]
        return {"old_sr": facts["old_sr"], "new_sr": facts["new_sr"], "vdi_pairs": pairs}

    for scsi_id, path in (luns(host) if find is None else find(arguments, host)).items():
        found = see(path, partial(told, scsi_id), deadline) if scsi_id in named else {}
        if found:
            original = next((ref for ref, sr in srs.items() if sr["uuid"] == found["old_sr"]), None)
            elsewhere = known_sr.vdis_elsewhere(original, xapi.records("VDI"))
            believed = [pair for pair in found["vdi_pairs"] if pair["old_vdi"] not in elsewhere]
            pairs = sorted((pair for pair in believed if pair["new_vdi"] >= start), key=itemgetter("new_vdi"))
            rows: List[_Row] = [(pair["new_vdi"], pair.copy) for pair in pairs]
            return _page("plugin map", "vdi_pairs", rows, {"old_sr": found["old_sr"], "new_sr": sr_uuid})
    raise NotFound(
        f"No LUN of this host holds the SR {sr_uuid} together with a journal of its old ids. Only a LUN that a PBD of "
        "this SR names was asked."
    )


def status(_arguments: Arguments, deadline: Deadline, host: Host = THIS_HOST, see: Look = look) -> str:
    """Return the LUNs on which relvmoiscsi works now. The percentage follows the steps of the protocol."""
    known = luns(host)
    rows = []
    for scsi_id, owner in sorted(locked_luns(host).items()):
        phase, percent = _PHASES[None]
        if scsi_id in known:
            try:
                found = see(
                    known[scsi_id], lambda seen: {"phase": seen.commit_record and seen.commit_record.phase}, deadline
                )
                phase, percent = _PHASES.get(found["phase"], _PHASES[None])
            except RelvmoiscsiError:
                pass  # a LUN that does not answer is being read
        rows.append({"scsi_id": scsi_id, "by": [owner], "phase": phase, "percent": percent})
    return answer_text("plugin status", {"runs": rows})


def resignature(
    arguments: Arguments,
    _deadline: Deadline,
    host: Host = THIS_HOST,
    find: Optional[Find] = None,
    source_at: "Optional[Callable[[str, Host], LunSource]]" = None,
) -> str:
    """Resignature a LUN of this host as `relvmoiscsi resignature --yes` does, or plan that. Raises RelvmoiscsiError.

    The time limits are those of the command. `find` as for `classify`; `source_at` opens what `find` returns.
    """
    from relvmoiscsi.lun import answer, proposals, run  # noqa: PLC0415 - only this function writes
    from relvmoiscsi.lun.opened import Permission  # noqa: PLC0415
    from relvmoiscsi.lun.source import source_of  # noqa: PLC0415

    if not arguments.get("scsi_id"):
        raise UsageError("The argument scsi_id is no SCSIid.").advising("Give the SCSIid of a LUN of this host.")
    scsi_id = typed_scsi_id(arguments["scsi_id"])
    path = (luns(host) if find is None else find(arguments, host)).get(scsi_id)
    if path is None:
        raise NotFound(f"This host sees no LUN with the SCSIid {scsi_id}.")

    def consent(lun: "OpenLun", proposal: proposals.Proposal) -> None:
        """Consent to what the caller can mean: the caller has asked for new identities, and no person is here."""
        if isinstance(proposal, proposals.NewRun) and proposal.prepared.later_copy and not asked.is_later_copy:
            raise answer.unsaid_copy(lun.name, proposal.prepared.later_copy)

    try:
        asked, permission = Wanted(path, arguments), Permission(is_asked=False)
        with in_state(NOTHING_WRITTEN):
            source = (source_at or source_of)(path, host)
        if asked.is_dry_run:
            lun, planned = run.plan_of(source, permission, asked.request, os.urandom)
            if isinstance(planned, proposals.NewRun):
                return fitted(answer.dry_run_facts(lun, planned))
            return fitted(answer.finished_facts(lun, planned))
        lun, done = run.resignature_of(source, permission, asked.request, os.urandom, consent)
        if isinstance(done, engine.AlreadyDone):
            return fitted(answer.finished_facts(lun, done))
        for sentence in done.stale:
            log.warning("%s", sentence)
        return fitted(answer.completed_facts(lun, done))
    except RelvmoiscsiError as error:
        in_options(error)
        raise


def _is_true(arguments: Arguments, name: str) -> bool:
    try:
        return untrusted.truth(arguments.get(name, "false"))
    except ValueError:
        problem = UsageError(f"The argument {name} is neither true nor false.")
        raise problem.advising("Give true or false.") from None


class Wanted:
    """The arguments of `resignature`, checked."""

    def __init__(self, path: str, arguments: Arguments) -> None:
        """`words` of the request are the command on the path with these options. Raises UsageError."""
        words = ["relvmoiscsi", "resignature", path, "--json", "--yes"]
        said = {}
        for name in ("dry_run", "clear_metadata_vdi", "later_copy"):
            said[name] = _is_true(arguments, name)
            words += ["--" + name.replace("_", "-")] if said[name] else []
        for name in ("vdis", "sr_uuid"):
            words += ["--" + name.replace("_", "-"), arguments[name]] if arguments.get(name) else []
        vdis, sr_uuid = arguments.get("vdis") or ALL, arguments.get("sr_uuid") or None
        if vdis not in VDIS:
            raise UsageError("The argument vdis is neither one nor all.").advising("Give one or all.")
        if sr_uuid is not None:
            with in_state(NOTHING_WRITTEN):
                sr_uuid = mapfile.checked_uuid(sr_uuid)
        self.is_dry_run, self.is_later_copy = said["dry_run"], said["later_copy"]
        #: without the SCSIid, which the open LUN has
        self.request = engine.ResignatureRequest(
            sr_uuid=sr_uuid,
            one=None if vdis == ALL else engine.OneVdiRequest(),
            clear_databases=said["clear_metadata_vdi"],
            words=tuple(words),
        )


def fitted(facts: Dict[str, Any]) -> str:
    """Return the facts as JSON, without long lists; `left_out` names each missing list. `map` pages the VDIs."""
    left_out: List[str] = []
    for name in ("plan", "lv_pairs", "dropped", "other_uuids", "vdi_pairs", "notes"):
        text = answer_text("plugin resignature", {**facts, "left_out": left_out})
        if len(text) <= MOST_BYTES:
            return text
        if name in facts:
            facts = {key: value for key, value in facts.items() if key != name}
            left_out = [*left_out, name]
    return answer_text("plugin resignature", {**facts, "left_out": left_out})


def _page(
    function: str,
    name: str,
    rows: Iterable[_Row],
    more: Optional[Dict[str, Any]] = None,
    deadline: Optional[Deadline] = None,
) -> str:
    """Return the rows that fit and are ready in time, and the key of the first missing row as `next`."""
    taken: List[str] = []
    size, following = len(json.dumps(more or {})), None
    for key, made in rows:
        is_late = deadline is not None and deadline.has_passed
        text = "" if taken and is_late else json.dumps(made())
        if taken and (is_late or size + len(text) > MOST_BYTES):
            following = key
            break
        taken.append(text)
        size += len(text) + 2
    found = {**(more or {}), name: [json.loads(text) for text in taken], "next": following}
    return answer_text(function, found)


def add_lun(arguments: Arguments, deadline: Deadline, host: Host = THIS_HOST) -> str:
    """Show one LUN on this host's sessions to the target, so that SM finds the LUN. Raises UsageError."""
    scsi_id, number = arguments.get("scsi_id", ""), arguments.get("number", "")
    if not is_scsi_id(scsi_id) or not arguments.get("iqn"):
        raise UsageError("The arguments iqn and scsi_id name no LUN.").advising(
            "Give the IQN of a target, and the SCSIid of its LUN."
        )
    if not untrusted.is_number(number):
        raise UsageError("The argument number is no number.").advising("Give the LUN's number, as the kernel has it.")
    within = deadline.part(iscsi_sessions.ADD_SECONDS)
    problems = iscsi_sessions.add_lun(arguments["iqn"], scsi_id, untrusted.number(number), within, host)
    return answer_text("plugin add_lun", {"problems": problems})


#: each has the arguments and the deadline of its call
FUNCTIONS: Dict[str, Callable[[Arguments, Deadline], str]] = {
    "classify": classify,
    "map": map_of,
    "status": status,
    "resignature": resignature,
    "add_lun": add_lun,
}


def call(name: str, arguments: Arguments) -> str:
    """Return the answer of a function. Raises RelvmoiscsiError."""
    return FUNCTIONS[name](arguments, Deadline(CALL_SECONDS))
