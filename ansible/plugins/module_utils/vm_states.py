# SPDX-License-Identifier: LGPL-2.1-only
"""The states of VMs on an attached copy: clones, restored disks, lent disks. Uses the API of `relvmoiscsi pool`."""

from __future__ import annotations

from ansible_collections.relvmoiscsi.pool.plugins.module_utils import client

try:
    from relvmoiscsi.errors import NOTHING_CHANGED, NotFound, RelvmoiscsiError, UsageError
    from relvmoiscsi.pool import lock, lock_keys, records
    from relvmoiscsi.pool.vms import (
        choice,
        clone,
        discard,
        inventory,
        move_home,
        rescue,
        restore,
        restore_entries,
        save_vms,
        vbds,
    )
except ImportError:
    pass  # client.play says so

# --- vm_clone: present, started


def present(module, calls, pool):
    """Clone VMs onto a copy; return the dict for exit_json."""
    params, found = module.params, inventory.read(calls)
    copy = choice.copy_to_use(calls, pool, found, params["sr"])
    sources = _sources(module, calls, pool, found, copy)
    wanted, with_network = choice.on_networks(calls, found, copy, sources, _wanted(params), dry_run=True)
    if not params["same_networks"]:
        _verify_networks_said(found, sources, wanted)
    results = clone.would(calls, pool, with_network, copy, sources, wanted)
    if not module.check_mode and any(result.status == clone.WOULD for result in results):
        results = clone.clone(calls, pool, copy, sources, wanted)
    rows = [_cloned_row(result) for result in results]
    if params["state"] == "started":
        _start(module, calls, rows, copy, sources, wanted)
    return ended(rows)


def _verify_networks_said(found, sources, wanted):
    """Raises UsageError, with the names of the module's options."""
    try:
        choice.verify_networks_said(found, sources, wanted)
    except UsageError as error:
        options = "isolated, networks with each network, or same_networks=true"
        error.in_state(NOTHING_CHANGED)
        error.advices = [each.replace(choice.NETWORK_OPTIONS, options) for each in error.advices]
        raise


def _sources(module, calls, pool, found, copy):
    """Return the VMs to clone. With `all`, no VM is only a warning."""
    params = module.params
    if params["from_snapshot"]:
        saved = save_vms.read(calls, copy, params["trust_records"])
        return save_vms.choose(pool, found, copy, saved, params["vms"], params["all"])
    try:
        return choice.choose(pool, found, copy, params["vms"], params["all"])
    except NotFound as error:
        if params["vms"]:
            raise
        module.warn(str(error))
        return []


def _wanted(params):
    """Return the request for `clone`."""
    without = [kind for kind, is_in in (("VTPM", params["vtpm"]), ("VGPU", params["vgpu"])) if not is_in]
    return choice.CloneRequest(
        params["name"],
        records.run_id(client.mark_of(params)),
        isolated_name=params["isolated"] or "",
        pairs=list((params["networks"] or {}).items()),
        keep_mac=params["keep_mac"],
        snapshots=params["snapshots"],
        without=without,
        jobs=params["jobs"],
    )


def _cloned_row(result):
    changed = result.status in (clone.MADE, clone.WOULD)
    disks = [f"  disk {disk.userdevice}: {disk.new}" for disk in result.disks]
    after = "".join(map(client.line, [result.name, *disks]))
    is_there = result.status == clone.ALREADY
    return {
        **result.facts(),
        "changed": changed,
        "before": after if is_there else "",
        "after": after if changed or is_there else "",
    }


#: the call that makes a VM run, by its power state; behind the dot is the operation, which a user may block
_TO_RUN = {"Halted": "VM.start", "Suspended": "VM.resume", "Paused": "VM.unpause"}


def _start(module, calls, rows, copy, sources, wanted):
    """Start the VMs that do not run. A failed start is the error of the VM's row."""
    wanted, found = choice.on_networks(calls, inventory.read(calls), copy, sources, wanted, dry_run=True)
    by_source = {source.uuid: source for source in sources}
    by_uuid = {vm["uuid"]: ref for ref, vm in found.vms.items()}
    for row in rows:
        ref = by_uuid.get(row["new_vm"])
        if row["problem"]:
            continue
        state = found.vms[ref]["power_state"] if ref is not None else "Halted"
        if state == "Running":
            row["before"], row["after"] = (text + "  running\n" for text in (row["before"], row["after"]))
            continue
        if ref is not None:
            source = by_source[row["old_vm"]]
            row["problem"] = _run(calls, found, source, copy.ref, ref, wanted, module.check_mode)
        elif not module.check_mode:
            row["problem"] = "The VM is gone."
        if row["problem"] is None:
            row["changed"] = True
            row["before"] += f"  {state.lower()}\n" if row["before"] else ""
            row["after"] += "  running\n"


def _run(calls, found, source, sr, ref, wanted, is_check):
    """Start, resume or unpause a VM; return the error, None without an error."""
    state = found.vms[ref]["power_state"]
    try:
        choice.verify_as_wanted(found, source, sr, ref, wanted)  # another client may have moved the VM meanwhile
        vbds.must_be_allowed(found.vms[ref], _TO_RUN[state].partition(".")[2])
        if not is_check:
            calls.run(_TO_RUN[state], ref, *(() if state == "Paused" else (False, False)))
    except RelvmoiscsiError as error:
        return str(error)
    return None


# --- vm_clone: absent


def absent(module, calls, pool):
    """Destroy the clones on a copy; return the dict for exit_json. A missing copy has no clones."""
    params, mark = module.params, client.mark_of(module.params)
    if not records.has_sr(pool, params["sr"]):
        return ended([])
    if not (params["vms"] or params["all"]):
        raise UsageError("No VM is named: give vms, or all.")
    found = inventory.read(calls)
    copy = choice.copy_to_use(calls, pool, found, params["sr"])
    meant = {ref: vm for ref, vm in found.vms.items() if vm["is_a_snapshot"] or _is_meant(found, vm, params)}
    made = discard.made_on(found._replace(vms=meant), pool, copy.ref, mark, params["force"])
    discard.verify_destroyable(calls, made)
    vms = [ref for ref, vm in made.items() if not vm["is_a_snapshot"]]
    may_go = None if params["last_copies"] else ()
    last = discard.verify_copies_left(pool, found, [copy.ref], may_go, vms)
    rows = [_absent_row(found.vms[ref], module.check_mode) for ref in vms]
    locked = [lock_keys.name_of(pool.srs[copy.ref])] if vms else []
    if module.check_mode:
        lock.verify_free(calls, locked)
        return ended(rows)
    with lock.held(calls, locked, "vm_clone: absent") as held:
        for ref, row in zip(vms, rows):
            try:
                words = {"force": params["force"], "may_go": last}
                discard.destroy_made(calls, held, pool, copy.ref, {ref: made[ref]}, **words)
            except RelvmoiscsiError as error:
                row.update(status=clone.FAILED, problem=str(error), changed=False, after=row["before"])
        discard.clean_networks(calls, [copy.uuid])
    return ended(rows)


def _is_meant(found, vm, params):
    original = vm["other_config"].get(inventory.COPY_OF)
    names = {vm["uuid"], vm["name_label"], original}
    names |= {each["name_label"] for each in found.vms.values() if each["uuid"] == original}
    return params["all"] or bool(names & set(params["vms"]))


def _absent_row(vm, is_check):
    old, name = vm["other_config"][inventory.COPY_OF], vm["name_label"]
    status = "would be destroyed" if is_check else "destroyed"
    told = {"old_vm": old, "new_vm": vm["uuid"], "old_name": None, "new_name": name, "status": status}
    told.update(disks=[], networks={}, snapshot_names=[], notes=[], problem=None)
    return {**told, "changed": True, "before": client.line(name), "after": ""}


def ended(rows):
    """Return the dict for exit_json, or for fail_json with `failed`, from the rows."""
    return client.ended(rows, "vms", "VMs", lambda row: row["old_name"] or row["new_name"])


# --- vm_restore


def restored(module, calls, pool):
    """Restore a VM, undo a restore, move the disks home, or keep the disks; return the dict for exit_json."""
    found = inventory.read(calls)
    vm = inventory.find_vm(found, module.params["vm"])
    before = _state(found, vm)
    try:
        result, changed, becomes = _restored(module, calls, pool, found, vm)
    except RelvmoiscsiError as error:
        told = {"failed": True, "msg": str(error), "changed": True}
    else:
        after = {**before[1], **becomes} if changed else before[1]
        diff = {"before": _disk_lines(result.name, before[1]), "after": _disk_lines(result.name, after)}
        return {"changed": changed, "restore": result.facts(), "diff": diff}
    try:
        after = _state(inventory.read(calls), vm)
    except RelvmoiscsiError:  # the pool does not answer, so the changes are unknown
        return told
    diff = {"before": _disk_lines(*before[:2]), "after": _disk_lines(*after[:2])}
    return {**told, "changed": before != after, "diff": diff}


def _restored(module, calls, pool, found, vm):
    """Return (the result for the VM, whether the VM changes, the new disks by device)."""
    params, state, is_check = module.params, module.params["state"], module.check_mode
    if state == "restored":
        copy = choice.copy_to_use(calls, pool, found, params["sr"])
        swaps = restore.plan(calls, pool, found, copy, vm, params["disks"], records.now())
        result = restore.restore(calls, vm, swaps, params["shutdown"], is_check)
        return result, result.status != restore.ALREADY, {swap.userdevice: swap.new for swap in result.disks}
    if state == "undone":
        result = restore.undo(calls, vm, params["shutdown"], is_check)
        becomes = {swap.userdevice: swap.old for swap in result.disks}
    elif state == "kept":
        result, becomes = restore.keep(calls, vm, None if params["on_copy"] else [], is_check), {}
    else:
        result = move_home.home(calls, vm, dry_run=is_check)
        becomes = {swap.userdevice: "a disk on the SR of " + swap.old for swap in result.disks}
    return result, result.status != restore.NOT_RESTORED, becomes


def _state(found, vm):
    """Return (name, UUIDs of the disks by device, and other values that a restore changes)."""
    if vm not in found.vms:
        return vm, {}
    record = found.vms[vm]
    disks = {device: vdi["uuid"] for device, vdi in found.disks_of(vm).items()}
    journal = {key for key in record["other_config"] if key.startswith(restore_entries.RESTORED)}
    return record["name_label"], disks, journal, record["power_state"], record["blocked_operations"]


def _disk_lines(name, disks):
    return "".join(map(client.line, [name, *(f"  disk {device}: {uuid}" for device, uuid in sorted(disks.items()))]))


# --- rescue_disk


def lent(module, calls, pool):
    """Lend a disk of a copy to a VM; return the dict for exit_json."""
    params, found = module.params, inventory.read(calls)
    copy = choice.copy_to_use(calls, pool, found, params["sr"])
    vdi, vm = rescue.find(found, copy, params["vdi"]), inventory.find_vm(found, params["vm"])
    result = rescue.lend(calls, pool, found, copy, vdi, vm, params["writable"], module.check_mode)
    after = _lent_lines([result])
    return {
        "changed": result.status in (rescue.DONE, rescue.WOULD),
        "disks": [result.facts()],
        "diff": {"before": after if _lent(found, copy, params) else "", "after": after},
    }


def taken_back(module, calls, pool):
    """Take disks of a copy back; return the dict for exit_json. For a disk that is not lent, nothing is done."""
    params, results = module.params, []
    if records.has_sr(pool, params["sr"]):
        found = inventory.read(calls)
        copy = choice.copy_to_use(calls, pool, found, params["sr"])
        results = rescue.take_back(calls, found, copy, _lent(found, copy, params), module.check_mode)
    left = [each for each in results if each.error is not None]
    told = {
        "changed": len(left) < len(results),
        "disks": [result.facts() for result in results],
        "diff": {"before": _lent_lines(results), "after": _lent_lines(left)},
    }
    if left:
        told.update(failed=True, msg=client.summary("disks", [(each.name, each.error) for each in results]))
    return told


def _lent(found, copy, params):
    """Return the VBDs of the selected lent disks; no VBD where the disk or the VM is gone."""
    try:
        vdi = rescue.find(found, copy, params["vdi"]) if params["vdi"] else None
        vm = inventory.find_vm(found, params["vm"]) if params["vm"] else None
        return rescue.lent(found, copy, vdi, vm)
    except NotFound:
        return []


def _lent_lines(results):
    return "".join(client.line(f"{each.name} ({each.vdi}): {each.mode}, {each.vm_name!r}") for each in results)
