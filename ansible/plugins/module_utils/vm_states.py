# SPDX-License-Identifier: LGPL-2.1-only
"""VMs on an attached copy: made, started, destroyed; disks of VMs restored; disks lent. On `relvmoiscsi pool`'s API."""

from __future__ import annotations

from ansible_collections.relvmoiscsi.pool.plugins.module_utils import client

# --- vm_clone: present, started


def present(module, calls, pool):
    """VMs of the disks of a copy; the dict for exit_json."""
    params, found = module.params, client.inventory.read(calls)
    copy = client.choice.find_copy(pool, found, params["sr"])
    if params["from_snapshot"]:
        saved = client.saved.read(calls, copy)
        sources = client.saved.choose(found, saved, params["vms"], params["all"])
    else:
        sources = client.choice.choose(found, copy, params["vms"], params["all"])
    wanted, with_network = _wanted(params, calls, found, copy.uuid, sources, True)
    client.choice.verify_macs(found, sources, wanted)
    results = client.clone.would(with_network, copy, sources, wanted)
    if not module.check_mode:
        wanted, found = _wanted(params, calls, found, copy.uuid, sources, False)
        results = client.clone.clone(calls, pool, found, copy, sources, wanted)
    rows = [_cloned_row(result) for result in results]
    if params["state"] == "started":
        _start(module, calls, rows)
    return ended(rows)


def _wanted(params, calls, found, sr_uuid, sources, is_dry):
    """What the options say, and the inventory with the isolated network."""
    without = [kind for kind, is_in in (("VTPM", params["vtpm"]), ("VGPU", params["vgpu"])) if not is_in]
    wanted = client.choice.Wanted(
        params["name"],
        client.records.today(),
        client.records.run_id(),
        networks=client.choice.networks(found, sources, (params["networks"] or {}).items()),
        keep_mac=params["keep_mac"],
        snapshots=params["snapshots"],
        without=without,
        jobs=params["jobs"],
    )
    if params["isolated"]:
        ref, found = client.choice.isolated_network(calls, found, params["isolated"], is_dry, sr_uuid)
        wanted = wanted._replace(isolated=ref)
    return wanted, found


def _cloned_row(result):
    told = result.facts()
    changed = result.status in (client.clone.MADE, client.clone.WOULD)
    after = f"{result.name}\n" + "".join(f"  disk {disk.userdevice}: {disk.new}\n" for disk in result.disks)
    is_there = result.status == client.clone.ALREADY
    return {
        **told,
        "changed": changed,
        "before": after if is_there else "",
        "after": after if changed or is_there else "",
    }


def _start(module, calls, rows):
    """Start those that are halted; one that does not start is an error of its row."""
    vms = calls.records("VM")
    by_uuid = {vm["uuid"]: ref for ref, vm in vms.items()}
    for row in rows:
        if row["error"]:
            continue
        ref = by_uuid.get(row["vm"]["new"])
        if ref is None or vms[ref]["power_state"] == "Halted":
            row["changed"] = True
            row["after"] += "  running\n"
            if not module.check_mode:
                _start_one(calls, row, ref)
        else:
            row["before"], row["after"] = (text + "  running\n" for text in (row["before"], row["after"]))


def _start_one(calls, row, ref):
    try:
        calls.run("VM.start", ref, False, False)
    except client.RelvmoiscsiError as error:
        row["error"] = str(error)


# --- vm_clone: absent


def absent(module, calls, pool):
    """The VMs that were made on a copy go; the dict for exit_json. A copy that is not there has none."""
    params = module.params
    if not client.records.has_sr(pool, params["sr"]):
        return ended([])
    if not (params["vms"] or params["all"]):
        raise client.UsageError("No VM is named: give vms, or all.")
    found = client.inventory.read(calls)
    copy = client.choice.find_copy(pool, found, params["sr"])
    made = client.made_vms.made_on(_meant(found, copy, params), pool, [copy.ref])[copy.ref]
    if not module.check_mode:
        for each in made:
            if found.vms[each.ref]["power_state"] == "Running":
                calls.run("VM.hard_shutdown", each.ref)
        client.made_vms.destroy_made(calls, pool, copy.ref, made)
        client.made_vms.clean_networks(calls, [copy.uuid])
    return ended([_absent_row(found, each, module.check_mode) for each in made])


def _meant(found, copy, params):
    """The inventory with no VMs but those that are meant; with `force` as if those that run did not."""
    vms = {ref: vm for ref, vm in found.copies_on(copy.uuid) if _is_meant(found, vm, params)}
    if params["force"]:
        halted = {ref: {**vm, "power_state": "Halted"} for ref, vm in vms.items() if vm["power_state"] == "Running"}
        vms = {**vms, **halted}
    return found._replace(vms=vms)


def _is_meant(found, vm, params):
    if vm["is_a_snapshot"]:
        return False
    original = vm["other_config"][client.inventory.COPY_OF]
    names = {vm["uuid"], vm["name_label"], original}
    names |= {each["name_label"] for each in found.vms.values() if each["uuid"] == original}
    return params["all"] or bool(names & set(params["vms"]))


def _absent_row(found, made, is_check):
    old = found.vms[made.ref]["other_config"][client.inventory.COPY_OF]
    status = "would be destroyed" if is_check else "destroyed"
    told = {"vm": {"old": old, "new": made.uuid}, "name": {"old": None, "new": made.name}, "status": status}
    return {**told, "error": None, "changed": True, "before": made.name + "\n", "after": ""}


def ended(rows):
    """What exit_json, or fail_json with `failed`, is to get of the rows."""
    told = [{key: value for key, value in row.items() if key not in ("before", "after")} for row in rows]
    result = {"changed": any(row["changed"] for row in rows), "vms": told}
    result["diff"] = {side: "".join(row[side] for row in rows) for side in ("before", "after")}
    msg = client.summary("VMs", [(row["name"]["old"] or row["name"]["new"], row["error"]) for row in rows])
    if msg:
        result.update(failed=True, msg=msg)
    return result


# --- vm_restore


def restored(module, calls, pool):
    """Disks of a copy in place of a VM's own; the dict for exit_json."""
    params, found = module.params, client.inventory.read(calls)
    vm = client.inventory.find_vm(found, params["vm"])
    copy = client.choice.find_copy(pool, found, params["sr"])
    swaps = client.restore.plan(found, copy, vm, params["disks"], client.records.today())
    now = {device: vdi["uuid"] for device, vdi in found.disks_of(vm).items()}
    work = client.restore.would if module.check_mode else client.restore.restore
    result = work(calls, vm, swaps, params["shutdown"])
    becomes = {swap.userdevice: swap.new for swap in result.disks}
    return _restored_result(result, result.status != client.restore.ALREADY, now, becomes)


def back(module, calls, _pool):
    """A restore undone, taken home or left as it is; the dict for exit_json. A VM that was not restored is done."""
    params, found = module.params, client.inventory.read(calls)
    vm = client.inventory.find_vm(found, params["vm"])
    record = found.vms[vm]
    now = {device: vdi["uuid"] for device, vdi in found.disks_of(vm).items()}
    if not client.inventory.is_restored(record):
        result = client.restore.Restored(record["uuid"], record["name_label"], "not restored")
        return _restored_result(result, False, now, {})
    is_undo = params["state"] == "undone"
    if is_undo:
        work = client.restore.would_undo if module.check_mode else client.restore.undo
        result = work(calls, vm, params["shutdown"])
    elif params["state"] == "kept":
        result = (client.keep.would if module.check_mode else client.keep.keep)(calls, vm)
    else:
        result = (client.home.would if module.check_mode else client.home.home)(calls, vm)
    becomes = {swap.userdevice: swap.old if is_undo else "a disk on the SR of " + swap.old for swap in result.disks}
    return _restored_result(result, True, now, becomes)


def _restored_result(result, changed, now, becomes):
    after = {**now, **becomes} if changed else now
    diff = {"before": _disk_lines(result.name, now), "after": _disk_lines(result.name, after)}
    return {"changed": changed, "restore": result.facts(), "diff": diff}


def _disk_lines(name, disks):
    return f"{name}\n" + "".join(f"  disk {device}: {uuid}\n" for device, uuid in sorted(disks.items()))


# --- rescue_disk


def lent(module, calls, pool):
    """One disk of a copy lent to a VM; the dict for exit_json."""
    params, found = module.params, client.inventory.read(calls)
    copy = client.choice.find_copy(pool, found, params["sr"])
    vdi, vm = client.rescue.find(copy, params["vdi"]), client.inventory.find_vm(found, params["vm"])
    is_there = bool(_lent(found, copy, vdi, vm))
    result = client.rescue.lend(calls, found, copy, vdi, vm, params["writable"], module.check_mode)
    changed = result.status == client.rescue.DONE or module.check_mode and not is_there
    after = _lent_lines([result])
    return {
        "changed": changed,
        "disks": [result.facts()],
        "diff": {"before": after if is_there else "", "after": after},
    }


def taken_back(module, calls, pool):
    """Disks of a copy taken back; the dict for exit_json. What is not lent is done."""
    params = module.params
    if not client.records.has_sr(pool, params["sr"]):
        return {"changed": False, "disks": [], "diff": {"before": "", "after": ""}}
    found = client.inventory.read(calls)
    copy = client.choice.find_copy(pool, found, params["sr"])
    vdi = client.rescue.find(copy, params["vdi"]) if params["vdi"] else None
    vm = client.inventory.find_vm(found, params["vm"]) if params["vm"] else None
    vbds = _lent(found, copy, vdi, vm)
    if module.check_mode:
        results = [client.rescue.told(found, copy, vbd, client.rescue.WOULD_BACK) for vbd in vbds]
    else:
        results = client.rescue.take_all_back(calls, found, copy, vbds)
    left = [each for each in results if each.error is not None]
    told = {
        "changed": len(left) < len(results),
        "disks": [result.facts() for result in results],
        "diff": {"before": _lent_lines(results), "after": _lent_lines(left)},
    }
    if left:
        told.update(failed=True, msg=client.summary("disks", [(each.name, each.error) for each in results]))
    return told


def _lent(found, copy, vdi, vm):
    try:
        return client.rescue.lent(found, copy, vdi, vm)
    except client.NotFound:
        return []


def _lent_lines(results):
    return "".join(f"{each.name} ({each.vdi}): {each.mode}, {each.vm}\n" for each in results)
