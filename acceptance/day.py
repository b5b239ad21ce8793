# SPDX-License-Identifier: LGPL-2.1-only
"""The steps of an acceptance run, in order. Each step is a function of the Day that returns the result, or raises.

A step runs `relvmoiscsi pool` as a user does, and then checks the pool by XenAPI, as a user does with `xe`. No step
trusts the command's report of its own work.
"""

import enum
import re
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from acceptance import made
from acceptance.made import Command, Failed, Scratch
from relvmoiscsi import __version__
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.pool import attach, attach_plan, lun_search, luns, records
from relvmoiscsi.pool.calls import Calls, PoolFailure, Record
from relvmoiscsi.pool.luns import PoolLun
from relvmoiscsi.pool.records import ProbePortal, portal_of
from relvmoiscsi.pool.vms import transfer
from relvmoiscsi.sr_types import HBA_SR, OWN_TYPES

#: asks for an action at the array, "clone" or "map", on the LUN with this SCSIid; returns whether to look again
Array = Callable[[str, str], bool]


class Ability(enum.Enum):
    """A thing that some pools cannot do, or that a person has excluded."""

    BYTES = "move bytes to and from disks"
    VMS = "start VMs"


class Step(NamedTuple):
    """A step of the run."""

    name: str
    expected: str
    run: Callable[["Day"], str]  #: returns the result as a sentence
    needs: Sequence[str] = ()  #: names of steps that must have passed
    takes: Sequence[Ability] = ()


class Day:
    """The shared state of the steps. `target`: the target of the clone, if not the target of the scratch SR.

    `records_only`: no step moves bytes to or from a disk, or starts a VM.
    """

    def __init__(
        self, calls: Calls, command: Command, array: Array, scratch: Scratch, run: str, target: str = "",
        records_only: bool = False
    ) -> None:  # fmt: skip
        self.calls, self.command, self.array, self.scratch, self.run, self.target = (
            calls, command, array, scratch, run, target
        )  # fmt: skip
        self.lacks = dict.fromkeys(Ability, _EXCLUDED) if records_only else {}  # type: Dict[Ability, str]
        pool = records.read(calls)
        self.hosts = pool.hosts_in_order()
        self.host_names = {host: pool.host_name(host) for host in self.hosts}
        self.master = pool.master
        (self.config,) = [
            pbd["device_config"] for host, (_, pbd) in pool.pbds_of(scratch.ref).items() if host == pool.master
        ]
        self.scsi_id = str(self.config.get("SCSIid", ""))
        self.is_hba = scratch.record["type"] == HBA_SR.stock
        self.refs = made.all_refs(calls)
        self.vms: Dict[str, str] = {}  #: references of "one", "two" and "helper"
        self.vdis: Dict[str, str] = {}  #: references of "one" and "two", the single disks of the VMs with these names
        self.before: Dict[str, Record] = {}  #: VDIs of the scratch SR before the array cloned the LUN, by UUID
        self.lun: Optional[PoolLun] = None  #: the clone
        self.copy_uuid = ""  #: UUID of the clone's new SR

    # --- helpers of several steps

    def name(self, what: str) -> str:
        return f"{made.PREFIX}{self.run} {what}"

    def uuid(self, kind: str, ref: str) -> str:
        return str(self.calls.call(kind + ".get_uuid", ref))

    def where(self, target: str = "") -> List[str]:
        """Return the options of `pool luns` and `pool attach` for a target; "" stands for the target of the clone."""
        if self.is_hba:
            return ["--hba"]
        port = ["--port", self.config["port"]] if self.config.get("port") else []
        return ["--target", target or self.target or self.own_target, *port]

    @property
    def own_target(self) -> str:
        """The target of the scratch SR; "" where an array maps LUNs to adapters."""
        return str(self.config.get("target", "")).split(",")[0]

    def luns(self, target: str = "") -> List[Dict[str, Any]]:
        found: List[Dict[str, Any]] = self.command("luns", *self.where(target))["pool_luns"]
        return found

    def clones(self, target: str = "") -> List[Dict[str, Any]]:
        """Return the untouched clones of the scratch SR that the pool sees."""
        seen = self.luns(target)
        return [row for row in seen if row["lun_kind"] == luns.CLONE and row["copy_of"] == self.scratch.uuid]

    @property
    def clone(self) -> PoolLun:
        if self.lun is None:
            raise Failed("The clone is not known.")
        return self.lun

    def copy(self) -> str:
        """Return the reference of the attached copy."""
        return str(self.calls.call("SR.get_by_uuid", self.copy_uuid))

    def disks(self, vm: str) -> List[Record]:
        """Return the VBDs of a VM's disks."""
        vbds = [self.calls.call("VBD.get_record", ref) for ref in self.calls.call("VM.get_VBDs", vm)]
        return [vbd for vbd in vbds if vbd["type"] == "Disk"]

    def starts_and_stops(self, vm: str) -> None:
        """Start and stop a VM. Raises Failed, PoolFailure."""
        self.calls.run("VM.start", vm, False, False)
        try:
            expect("the power state after the start", self.calls.call("VM.get_power_state", vm), "Running")
        finally:  # a running VM would fail all later steps with it
            self.calls.run("VM.hard_shutdown", vm)
        expect("the power state after the stop", self.calls.call("VM.get_power_state", vm), "Halted")


def expect(what: str, found: object, wanted: object) -> None:
    """Raises Failed where the two values differ."""
    if found != wanted:
        raise Failed(f"{what}: expected {wanted!r}, found {found!r}.")


# --- the steps


def _abilities(day: Day) -> str:
    """Note in `lacks` what the pool cannot do."""
    if Ability.VMS not in day.lacks:
        hosts = {host: day.calls.call("host.get_record", host) for host in day.hosts}
        with_hvm = [host for host, record in hosts.items() if any("hvm" in text for text in record["capabilities"])]
        free = [day.calls.call("host.compute_free_memory", host) for host in with_hvm]
        if not with_hvm:
            day.lacks[Ability.VMS] = "No host runs HVM VMs."
        elif max(free) < int(made.VM_BYTES):
            day.lacks[Ability.VMS] = "No host that runs HVM VMs has 256 MiB of free memory."
    lacking = [f"The steps that {ability.value} are left out: {why}" for ability, why in day.lacks.items()]
    return " ".join(lacking) or "A host runs HVM VMs and has 256 MiB of free memory."


def _drivers(day: Day) -> str:
    types = {row["type"] for row in day.calls.records("SM").values()}
    missing = sorted(set(OWN_TYPES) - types)
    if missing:
        raise Failed(f"The pool knows no SRs of type {', '.join(missing)}.")
    versions, problems = {}, []
    for host in day.hosts:
        try:
            versions[day.host_names[host]] = day.calls.run("host.call_plugin", host, "relvmoiscsi", "version", {})
        except PoolFailure as failure:
            if failure.code == "RBAC_PERMISSION_DENIED":
                return "Both types are registered. The hosts were not asked: that takes the role pool-admin."
            problems.append(f"{day.host_names[host]}: {failure}")
    if problems:
        raise Failed(" ".join(problems))
    expect("the versions on the hosts", sorted(set(versions.values())), [__version__])
    return f"Both types are registered; {len(versions)} hosts have {__version__}."


def _prepare(day: Day) -> str:
    old = [row["scsi_id"] for row in day.clones(day.own_target)]  # the target of the clone may not answer yet
    if old:
        raise Failed(f"The pool sees clones of the SR already: {', '.join(old)}. Unmap them on the array.")
    network = made.new_network(day.calls, day.scratch, day.run)
    for name in ("one", "two", "helper"):
        day.vms[name] = made.new_vm(day.calls, day.scratch, day.run, name)
    for name in ("one", "two"):
        day.vdis[name] = made.new_vdi(day.calls, day.scratch, day.run, "disk " + name, is_raw=name == "two")
        made.new_disk(day.calls, day.vms[name], day.vdis[name])
    made.new_vif(day.calls, day.vms["one"], network)
    day.before = made.vdi_facts(day.calls, day.scratch.ref)
    return "3 VMs, 2 VDIs, 1 network were made."


def _write(day: Day) -> str:
    for name, vdi in day.vdis.items():
        transfer.import_raw(day.calls, vdi, _content(day, name))
    day.before = made.vdi_facts(day.calls, day.scratch.ref)
    return f"{len(day.vdis)} disks have a content of their own."


def _content(day: Day, name: str) -> bytes:
    """Return the content of a disk of the kit: as long as the disk, and different in each run."""
    size: int = day.calls.call("VDI.get_virtual_size", day.vdis[name])
    text = f"{day.run} {name} ".encode()
    return (text * (size // len(text) + 1))[:size]


def _clone(day: Day) -> str:
    goes_on = True
    while goes_on:
        goes_on = day.array("clone", day.scsi_id)
        found = day.clones()
        if found:
            expect("the number of clones", len(found), 1)
            (row,) = found
            portal = ProbePortal(row["portal_address"], row["iqn"], day.config.get("port", ""))
            day.lun = PoolLun(
                row["scsi_id"],
                row["lun_kind"],
                portal.with_chap_of(portal_of(day.config)),
                sr_uuid=row["sr"],
                of_sr=row["copy_of"],
                name=row["sr_name_label"],
                is_ours=True,
            )
            return f"The LUN {row['scsi_id']} is a clone of the SR."
    raise Failed(f"The pool sees no clone of the LUN {day.scsi_id}.")


def _probe_untouched(day: Day) -> str:
    lun = lun_search.probe(day.calls, records.read(day.calls), day.clone)
    expect("the SR on the clone", lun.sr_uuid, day.scratch.uuid)
    return f"state {lun.kind}, SR {lun.sr_uuid}"


def _resignature(day: Day) -> str:
    wanted = attach_plan.AttachRequest(run=made.NOTE[len(records.AT_WORK) :] + day.run, attaches=False)
    (result,) = attach.attach(day.calls, records.read(day.calls), [day.clone], wanted)
    if result.error is not None:
        raise result.error
    expect("the result", result.status, attach.NEW_IDS)
    if result.sr_uuid in ("", day.scratch.uuid):
        raise Failed(f"The clone has no UUID of its own: {result.sr_uuid!r}.")
    if day.is_hba and len(day.hosts) > 1:
        day.array("map", day.clone.scsi_id)
    day.copy_uuid = result.sr_uuid
    return f"SR.create answered with success; the SR on the clone is {result.sr_uuid}."


def _probe_after(day: Day) -> str:
    """Probe with the stock driver, which scans no existing session: relvmoiscsi has added the LUN to the session."""
    config = day.clone.portal.config(day.clone.scsi_id)
    answer = day.calls.run("SR.probe", day.master, config, day.scratch.record["type"], {})
    expect("the SRs that the stock driver sees", _uuids(answer), [day.copy_uuid])
    return f"one SR, {day.copy_uuid}"


def _uuids(answer: str) -> List[str]:
    return re.findall(r"<UUID>\s*([0-9a-f-]{36})\s*</UUID>", answer)


def _attach(day: Day) -> str:
    row = _attached(day)
    expect("the result", row["status"], attach.DONE)
    expect("the SR", row["new_sr"], day.copy_uuid)
    pbds = [pbd for pbd in day.calls.records("PBD").values() if pbd["SR"] == day.copy()]
    plugged = {pbd["host"] for pbd in pbds if pbd["currently_attached"]}
    expect("the hosts with a plugged PBD", len(plugged), len(day.hosts))
    return f"plugged on {len(plugged)} hosts"


def _attached(day: Day) -> Dict[str, Any]:
    words = ["attach", day.clone.scsi_id, "--yes", "--name", day.name("copy"), *day.where()]
    (row,) = day.command(*words)["attach_results"]
    found: Dict[str, Any] = row
    return found


def _attach_again(day: Day) -> str:
    refs = made.all_refs(day.calls)
    expect("the result", _attached(day)["status"], attach.ALREADY)
    expect("the objects of the pool", _changes(refs, made.all_refs(day.calls)), "nothing")
    return attach.ALREADY


def _scan(day: Day) -> str:
    day.calls.run("SR.scan", day.copy())
    found = made.vdi_facts(day.calls, day.copy())
    pairs = {pair["old_vdi"]: pair["new_vdi"] for pair in day.command("map", day.copy_uuid)["vdi_pairs"]}
    expect("the originals of the VDIs", sorted(pairs), sorted(day.before))
    for old, facts in day.before.items():
        expect(f"the VDI that {old} became", found.get(pairs[old]), facts)
    return f"{len(found)} VDIs, each as its original"


def _data(day: Day) -> str:
    for name in day.vdis:
        expect(f"the bytes of the disk {name}", _copied_bytes(day, name) == _content(day, name), True)
    return f"{len(day.vdis)} disks, byte for byte"


def _copied_bytes(day: Day, name: str) -> bytes:
    """Return the content of the copy of a disk of the kit."""
    old = day.uuid("VDI", day.vdis[name])
    pairs = day.command("map", day.copy_uuid)["vdi_pairs"]
    (new,) = [pair["new_vdi"] for pair in pairs if pair["old_vdi"] == old]
    return transfer.export_raw(day.calls, day.calls.call("VDI.get_by_uuid", new))


def _clone_vm(day: Day) -> str:
    words = ["clone", day.copy_uuid, day.uuid("VM", day.vms["one"]), "--isolated", day.name("isolated")]
    (row,) = day.command(*words, "--name", day.name("one copied"), "--yes")["clone_results"]
    expect("the result", row["status"], "cloned")
    vm = day.vms["copied"] = day.calls.call("VM.get_by_uuid", row["new_vm"])
    _expect_disks_on(day, vm, day.copy())
    macs = [day.calls.call("VIF.get_MAC", day.calls.call("VM.get_VIFs", each)[0]) for each in (day.vms["one"], vm)]
    expect("MACs that are the same", macs[0] == macs[1], False)
    return "a new VM with the disk of the copy, on a network of its own"


def _expect_disks_on(day: Day, vm: str, sr: str) -> None:
    homes = [day.calls.call("VDI.get_SR", vbd["VDI"]) for vbd in day.disks(vm)]
    expect("the SRs of the disks of the VM", homes, [sr])


def _start(day: Day) -> str:
    day.starts_and_stops(day.vms["copied"])
    return "Running, then Halted"


def _restore(day: Day) -> str:
    expect("the result", _said(day, "restore", day.copy_uuid, day.uuid("VM", day.vms["two"])), "restored")
    _expect_disks_on(day, day.vms["two"], day.copy())
    return "The VM has the disk of the copy."


def _start_restored(day: Day) -> str:
    day.starts_and_stops(day.vms["two"])
    return "Running, then Halted"


def _undo(day: Day) -> str:
    expect("the result", _said(day, "restore", "--undo", day.uuid("VM", day.vms["two"])), "undone")
    expect("the disks of the VM", [vbd["VDI"] for vbd in day.disks(day.vms["two"])], [day.vdis["two"]])
    expect("the name of its disk", day.calls.call("VDI.get_name_label", day.vdis["two"]), day.name("disk two"))
    return "The VM has its own disk."


def _said(day: Day, *words: str) -> str:
    (row,) = day.command(*words, "--yes")["restore_results"]
    return str(row["status"])


def _rescue(day: Day) -> str:
    words = ["rescue", day.copy_uuid, day.uuid("VDI", day.vdis["two"]), "--vm", day.uuid("VM", day.vms["helper"])]
    (row,) = day.command(*words, "--yes")["rescue_results"]
    expect("the result", (row["status"], row["mode"]), ("lent", "RO"))
    _expect_disks_on(day, day.vms["helper"], day.copy())
    return "The helper VM has the disk, read-only."


def _give_back(day: Day) -> str:
    (row,) = day.command("rescue", day.copy_uuid, "--done", "--yes")["rescue_results"]
    expect("the result", row["status"], "taken back")
    expect("the disks of the helper VM", day.disks(day.vms["helper"]), [])
    return "The helper VM has no disk."


def _discard(day: Day) -> str:
    (row,) = day.command("discard", day.copy_uuid, "--with-vms", "--yes")["discard_results"]
    expect("the result", row["status"], "discarded")
    left = made.find(day.calls, day.scratch)
    expect("copies of the SR", len(left.srs), 0)
    expect("VMs of the kit", sorted(left.vms), sorted(day.vms[name] for name in ("one", "two", "helper")))
    expect("networks of the kit", len(left.networks), 1)
    expect("the VDIs of the original", made.vdi_facts(day.calls, day.scratch.ref), day.before)
    kinds = [lun["lun_kind"] for lun in day.luns() if lun["scsi_id"] == day.clone.scsi_id]
    expect("what the LUN of the clone is", kinds, [luns.RESIGNATURED])
    return "SR, VM and network are gone; the VDIs of the original are unchanged."


_BYTES, _VMS = (Ability.BYTES,), (Ability.VMS,)
_EXCLUDED = "--records-only was given."

STEPS = (
    Step("abilities", "a host runs HVM VMs and has 256 MiB of free memory, or it is said", _abilities),
    Step("drivers", "both SR types are registered, and every host has this version", _drivers),
    Step("prepare", "the scratch SR has no clone yet; VMs and VDIs can be made", _prepare, ["drivers"]),
    Step("write", "a host writes to the disks of the original, which takes tapdisk", _write, ["prepare"], _BYTES),
    Step("clone", "the array has cloned the LUN, and the pool sees one clone", _clone, ["prepare"]),
    Step("probe before", "our type finds the SR of the original on the clone", _probe_untouched, ["clone"]),
    Step("resignature", "SR.create of our type ends with success, and the clone has a UUID of its own", _resignature,
         ["probe before"]),
    Step("probe after", "the stock type finds one SR on the clone: the new one", _probe_after, ["resignature"]),
    Step("attach", "the copy is plugged on every host", _attach, ["resignature"]),
    Step("attach again", "the same command finds it attached, and changes nothing", _attach_again, ["attach"]),
    Step("scan", "every VDI of the original has one on the copy, with the same fields", _scan, ["attach"]),
    Step("data", "what was written to the disks of the original is on those of the copy", _data, ["write", "attach"],
         _BYTES),
    Step("clone a VM", "a new VM has the disk of the copy, another MAC and an isolated network", _clone_vm, ["attach"]),
    Step("start", "the new VM starts and stops", _start, ["clone a VM", "write"], _VMS),
    Step("restore", "a VM of the original has the disk of the copy", _restore, ["attach"]),
    Step("start restored", "the restored VM starts and stops", _start_restored, ["restore", "write"], _VMS),
    Step("undo", "the VM has its own disk again, under its own name", _undo, ["restore"]),
    Step("rescue", "a disk of the copy is lent to another VM, read-only", _rescue, ["attach"]),
    Step("give back", "the disk is taken back", _give_back, ["rescue"]),
    Step("discard", "copy, new VM and isolated network are gone; the original is unchanged", _discard, ["attach"]),
)  # fmt: skip

# --- run


class Row(NamedTuple):
    """The result of a step."""

    name: str
    expected: str
    came: str
    status: str
    seconds: float


PASSED, FAILED, INTERRUPTED, NOT_RUN, LEFT_OUT = "passed", "FAILED", "interrupted", "not run", "left out"
#: called with a step before its start, and with its row after its end
Tell = Callable[[Step, Optional[Row]], None]


def carry_out(step: Step, day: Any, tell: Tell) -> Row:
    """Run one step. An exception becomes part of the row."""
    began, status = time.monotonic(), FAILED
    try:
        tell(step, None)
        came = step.run(day)
        status = PASSED
    except (Failed, RelvmoiscsiError) as error:
        came = str(error)
    except KeyboardInterrupt:
        came, status = "It was interrupted.", INTERRUPTED
    except Exception as error:  # noqa: BLE001 - a mistake of the kit; the report shows the error
        came = f"The kit has a mistake, or did not understand an answer: {error!r}"
    row = Row(step.name, step.expected, came, status, round(time.monotonic() - began, 1))
    tell(step, row)
    return row


def run(day: Day, tell: Tell) -> List[Row]:
    """Run each step whose needs are met, until a person interrupts the run."""
    rows: List[Row] = []
    for step in STEPS:
        status = {row.name: row.status for row in rows}
        missing = [name for name in step.needs if status[name] != PASSED]
        lacking = [day.lacks[ability] for ability in step.takes if ability in day.lacks]
        if INTERRUPTED in status.values():
            rows.append(Row(step.name, step.expected, "", NOT_RUN, 0.0))
        elif lacking:
            rows.append(Row(step.name, step.expected, lacking[0], LEFT_OUT, 0.0))
        elif missing:
            why = f"It needs the step {missing[0]!r}, which has not passed."
            rows.append(Row(step.name, step.expected, why, NOT_RUN, 0.0))
        else:
            rows.append(carry_out(step, day, tell))
    return rows


def nothing_else(before: Dict[str, List[str]]) -> Callable[[Calls], str]:
    """Return the last step, which compares all objects of the pool with the objects before the run."""

    def look(calls: Calls) -> str:
        expect("what came or went", _changes(before, made.all_refs(calls)), "nothing")
        return "nothing came, nothing went"

    return look


def _changes(before: Dict[str, List[str]], after: Dict[str, List[str]]) -> str:
    found = []
    for kind, refs in after.items():
        came, went = len(set(refs) - set(before[kind])), len(set(before[kind]) - set(refs))
        found += [f"{kind}: {came} came, {went} went"] if came or went else []
    return "; ".join(found) or "nothing"
