# SPDX-License-Identifier: LGPL-2.1-only
"""The states of VMs on an attached copy: clones, restored disks, lent disks. Uses the API of `relvmoiscsi pool`."""

from __future__ import annotations

from ansible_collections.relvmoiscsi.pool.plugins.module_utils import client

# --- vm_clone: present, started


def present(module, calls, pool):
    """Clone VMs onto a copy; return the dict for exit_json."""
    params, found = module.params, client.inventory.read(calls)
    copy = client.choice.find_copy(pool, found, params["sr"])
    sources = _sources(module, calls, found, copy)
    wanted, with_network = _wanted(params, calls, found, copy.uuid, sources, True)
    results = client.clone.would(calls, pool, with_network, copy, sources, wanted)
    problems = _problems(params, with_network, results, wanted)
    good = [source for source in sources if source.uuid not in problems]
    is_any = any(result.status == client.clone.WOULD for result in results)
    if not module.check_mode and is_any:
        wanted, found = _wanted(params, calls, found, copy.uuid, sources, False)
        done = {result.vm: result for result in client.clone.clone(calls, pool, found, copy, good, wanted)}
        results = [done.get(result.vm, result) for result in results]
    rows = [_cloned_row(result, problems.get(result.vm)) for result in results]
    if params["state"] == "started":
        _start(module, calls, rows, wanted)
    return ended(rows)


def _sources(module, calls, found, copy):
    """Return the VMs to clone. With `all`, no VM is only a warning."""
    params = module.params
    if params["from_snapshot"]:
        saved = client.save_vms.read(calls, copy)
        return client.save_vms.choose(found, saved, params["vms"], params["all"])
    try:
        return client.choice.choose(found, copy, params["vms"], params["all"])
    except client.NotFound as error:
        if params["vms"]:
            raise
        module.warn(str(error))
        return []


def _problems(params, found, results, wanted):
    """Return why existing clones do not fit the options: sentences by UUID of the original."""
    by_uuid = {vm["uuid"]: ref for ref, vm in found.vms.items()}
    there = [result for result in results if result.status == client.clone.ALREADY]
    problems = {result.vm: problem_of(params, found, by_uuid[result.uuid], wanted) for result in there}
    return {vm: problem for vm, problem in problems.items() if problem}


def problem_of(params, found, ref, wanted):
    """Return why an existing clone of a VM does not fit the options; "" where the clone fits. Pure."""
    vm = found.vms[ref]
    if not client.is_marked(params, vm):
        return (
            f"The VM {vm['name_label']!r} ({vm['uuid']}) is a copy of this VM that was made without the mark "
            f"{params['mark']}. The VM was not changed."
        )
    wrong = sorted(found.networks[net]["name_label"] for net in _wrong_networks(found, ref, wanted))
    if wrong:
        return (
            f"The VM {vm['name_label']!r} ({vm['uuid']}) was made before and is on the wrong network: "
            f"{', '.join(wrong)}. The VM was not changed and is {vm['power_state'].lower()}. Move its interfaces, or "
            "first run the task with state: absent."
        )
    return ""


def _wrong_networks(found, ref, wanted):
    """Return the networks of a clone on which the options do not want the clone."""
    networks = {vif["network"] for vif in found.vifs_of(ref).values()}
    if wanted.isolated:
        return networks - {wanted.isolated}
    originals = {vm["uuid"]: each for each, vm in found.vms.items()}
    original = originals.get(found.vms[ref]["other_config"].get(client.inventory.COPY_OF))
    before = {vif["device"]: vif["network"] for vif in found.vifs_of(original).values()} if original else {}
    wrong = set()
    for vif in found.vifs_of(ref).values():
        network = vif["network"]
        if found.networks[network]["uuid"] in wanted.networks and (
            network not in wanted.networks.values() or before.get(vif["device"]) == network
        ):
            wrong.add(network)
    return wrong


def _wanted(params, calls, found, sr_uuid, sources, is_dry):
    """Return the options for `clone`, and the inventory with the isolated network."""
    without = [kind for kind, is_in in (("VTPM", params["vtpm"]), ("VGPU", params["vgpu"])) if not is_in]
    wanted = client.choice.Wanted(
        params["name"],
        client.records.today(),
        client.run_of(params),
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


def _cloned_row(result, problem=None):
    """Return the row of a VM. `problem`: why an existing clone does not fit the options."""
    told = result.facts()
    if problem:
        told.update(status=client.clone.FAILED, error=problem)
    changed = result.status in (client.clone.MADE, client.clone.WOULD)
    after = f"{result.name}\n" + "".join(f"  disk {disk.userdevice}: {disk.new}\n" for disk in result.disks)
    is_there = result.status == client.clone.ALREADY
    return {
        **told,
        "changed": changed,
        "before": after if is_there else "",
        "after": after if changed or is_there else "",
    }


#: the call that makes a VM run, by its power state
_TO_RUN = {"Halted": "VM.start", "Suspended": "VM.resume", "Paused": "VM.unpause"}


def _start(module, calls, rows, wanted):
    """Start the VMs that do not run. A failed start is the error of the VM's row."""
    found = client.inventory.read(calls)
    by_uuid = {vm["uuid"]: ref for ref, vm in found.vms.items()}
    for row in rows:
        ref = by_uuid.get(row["vm"]["new"])
        if row["error"] is None and ref is not None:  # another client may have made the VM meanwhile
            row["error"] = (None if module.check_mode else problem_of(module.params, found, ref, wanted)) or None
        if row["error"]:
            continue
        state = found.vms[ref]["power_state"] if ref is not None else "Halted"
        if state == "Running":
            row["before"], row["after"] = (text + "  running\n" for text in (row["before"], row["after"]))
            continue
        if not module.check_mode:
            row["error"] = _run(calls, ref, state)
        if row["error"] is None:
            row["changed"] = True
            row["before"] += f"  {state.lower()}\n" if row["before"] else ""
            row["after"] += "  running\n"


def _run(calls, ref, state):
    """Start, resume or unpause a VM; return the error, None without an error."""
    method = _TO_RUN.get(state)
    if method is None:
        return f"The VM is {state.lower()} and cannot be started."
    try:
        calls.run(method, ref, *(() if state == "Paused" else (False, False)))
    except client.RelvmoiscsiError as error:
        return str(error)
    return None


# --- vm_clone: absent


def absent(module, calls, pool):
    """Destroy the clones on a copy; return the dict for exit_json. A missing copy has no clones."""
    params = module.params
    if not client.records.has_sr(pool, params["sr"]):
        return ended([])
    if not (params["vms"] or params["all"]):
        raise client.UsageError("No VM is named: give vms, or all.")
    found = client.inventory.read(calls)
    copy = client.choice.find_copy(pool, found, params["sr"])
    made = client.made_vms.made_on(_meant(found, copy, params), pool, copy.ref)
    rows = [_absent_row(found, each, module.check_mode) for each in made]
    if not module.check_mode:
        for each, row in zip(made, rows):
            _destroy(calls, pool, copy, params, each, row)
        client.made_vms.clean_networks(calls, [copy.uuid])
    return ended(rows)


def _destroy(calls, pool, copy, params, each, row):
    """Destroy one VM, if the VM is unchanged. An error goes into the VM's row, and does not stop other VMs."""
    try:
        if params["force"]:
            client.turn_off(calls, each.ref)
        found = client.inventory.read(calls)
        still = client.made_vms.made_on(_meant(found, copy, params), pool, copy.ref)
        if each.uuid in {one.uuid for one in still}:
            client.made_vms.destroy(calls, found.vms, each.ref)
    except client.RelvmoiscsiError as error:
        row.update(status=client.clone.FAILED, error=str(error), changed=False, after=row["before"])


def _meant(found, copy, params):
    """Return the inventory with only the selected VMs; with `force`, all VMs are shown as halted."""
    vms = {ref: vm for ref, vm in found.copies_on(copy.uuid) if _is_meant(found, vm, params)}
    return found._replace(vms=client.as_if_off(vms) if params["force"] else vms)


def _is_meant(found, vm, params):
    if vm["is_a_snapshot"] or not client.is_marked(params, vm):
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
    """Return the dict for exit_json, or for fail_json with `failed`, from the rows."""
    told = [{key: value for key, value in row.items() if key not in ("before", "after")} for row in rows]
    result = {"changed": any(row["changed"] for row in rows), "vms": told}
    result["diff"] = {side: "".join(row[side] for row in rows) for side in ("before", "after")}
    msg = client.summary("VMs", [(row["name"]["old"] or row["name"]["new"], row["error"]) for row in rows])
    if msg:
        result.update(failed=True, msg=msg)
    return result


# --- vm_restore


def _watched(work):
    """Wrap `work` on a VM. After an error, return the dict for fail_json with the changes of the VM."""

    def watched(module, calls, pool):
        found = client.inventory.read(calls)
        vm = client.inventory.find_vm(found, module.params["vm"])
        try:
            return work(module, calls, pool, found, vm)
        except client.RelvmoiscsiError as error:
            msg = str(error)
        try:
            now = client.inventory.read(calls)
        except client.RelvmoiscsiError:  # the pool does not answer, so the changes are unknown
            return {"failed": True, "msg": msg, "changed": True}
        before, after = _state(found, vm), _state(now, vm)
        diff = {"before": _disk_lines(*before[:2]), "after": _disk_lines(*after[:2])}
        return {"failed": True, "msg": msg, "changed": before != after, "diff": diff}

    return watched


def _state(found, vm):
    """Return (name, disks, and other values that a restore changes)."""
    if vm not in found.vms:
        return vm, {}
    record = found.vms[vm]
    journal = {key for key in record["other_config"] if key.startswith(client.restore_journal.RESTORED)}
    return record["name_label"], _disks(found, vm), journal, record["power_state"], record["blocked_operations"]


def _disks(found, vm):
    """Return the UUIDs of a VM's VDIs, by device."""
    return {device: vdi["uuid"] for device, vdi in found.disks_of(vm).items()}


@_watched
def restored(module, calls, pool, found, vm):
    """Replace a VM's disks by disks of a copy; return the dict for exit_json."""
    params = module.params
    copy = client.choice.find_copy(pool, found, params["sr"])
    swaps = client.restore.plan(found, copy, vm, params["disks"], client.records.today())
    now = _disks(found, vm)
    result = client.restore.restore(calls, vm, swaps, params["shutdown"], module.check_mode)
    becomes = {swap.userdevice: swap.new for swap in result.disks}
    return _restored_result(result, result.status != client.restore.ALREADY, now, becomes)


@_watched
def back(module, calls, _pool, found, vm):
    """Undo a restore, move the disks home, or keep the disks; return the dict for exit_json.

    For a VM without a restore, nothing is done.
    """
    params, record, now = module.params, found.vms[vm], _disks(found, vm)
    if not client.restore_journal.is_restored(record):
        result = client.restore.Restored(record["uuid"], record["name_label"], "not restored")
        return _restored_result(result, False, now, {})
    is_undo = params["state"] == "undone"
    if is_undo:
        result = client.restore.undo(calls, vm, params["shutdown"], module.check_mode)
    elif params["state"] == "kept":
        result = client.restore.keep(calls, vm, module.check_mode)
    else:
        result = client.move_home.home(calls, vm, dry_run=module.check_mode)
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
    """Lend a disk of a copy to a VM; return the dict for exit_json."""
    params, found = module.params, client.inventory.read(calls)
    copy = client.choice.find_copy(pool, found, params["sr"])
    vdi, vm = client.rescue.find(copy, params["vdi"]), client.inventory.find_vm(found, params["vm"])
    there = _lent(found, copy, vdi, vm)
    result = client.rescue.lend(calls, found, copy, vdi, vm, params["writable"], module.check_mode)
    changed = result.status in (client.rescue.DONE, client.rescue.WOULD)
    after = _lent_lines([result])
    return {
        "changed": changed,
        "disks": [result.facts()],
        "diff": {"before": after if there else "", "after": after},
    }


def taken_back(module, calls, pool):
    """Take disks of a copy back; return the dict for exit_json. For a disk that is not lent, nothing is done."""
    params = module.params
    if not client.records.has_sr(pool, params["sr"]):
        return {"changed": False, "disks": [], "diff": {"before": "", "after": ""}}
    found = client.inventory.read(calls)
    copy = client.choice.find_copy(pool, found, params["sr"])
    if _is_gone(found, copy, params):
        return {"changed": False, "disks": [], "diff": {"before": "", "after": ""}}
    vdi = client.rescue.find(copy, params["vdi"]) if params["vdi"] else None
    vm = client.inventory.find_vm(found, params["vm"]) if params["vm"] else None
    vbds = _lent(found, copy, vdi, vm)
    results = client.rescue.take_back(calls, found, copy, vbds, module.check_mode)
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


def _is_gone(found, copy, params):
    """Is the disk or the VM gone? Then the disk is not lent."""
    try:
        if params["vdi"]:
            client.rescue.find(copy, params["vdi"])
        if params["vm"]:
            client.inventory.find_vm(found, params["vm"])
    except client.NotFound:
        return True
    return False
