# SPDX-License-Identifier: LGPL-2.1-only
"""The states of LUNs, on the Python API of `relvmoiscsi pool`.

A row is the result for a LUN: `changed`, `before` and `after` (the SR, its name, and its state on each host), and the
facts of relvmoiscsi. Check mode returns the same rows without a write.
"""

from __future__ import annotations

from ansible_collections.relvmoiscsi.pool.plugins.module_utils import client

ABSENT = "absent"


# --- from clones to copies: resignatured, attached


def forward(module, calls, pool):
    """Bring the selected LUNs to the state; return the dict for exit_json."""
    params = module.params
    with client.seen(module, calls, pool) as seen:
        of = [client.records.original_uuid(pool, text) for text in params["clones_of"]]
        found = vouched(seen, of) if params["again"] else seen
        names = params["scsi_ids"], of, params["all"]
        mine = [lun for lun in found if not _copy_of_others(pool, params, lun)]
        _verify_mine(pool, params, found)
        try:
            chosen = client.attach.choose(mine, *names, params["foreign"])
        except client.NotFound as error:
            raise client.NotFound(" ".join([str(error), *why_none(pool, params, found, of)])) from error
        passed = client.attach.unseen(mine, *names)
        _tell_doubtful(module, mine, chosen, names)
        if not params["leave_others"] and params["state"] == "attached":
            client.attach.verify_none_left(found, chosen)
        rows = _forward_rows(module, calls, pool, chosen, found)
    for lun in passed:
        side = {"scsi_id": lun.scsi_id}
        told = client.attach.passed_over(lun).facts()
        rows.append({**told, "changed": False, "before": side, "after": side})
    return ended(rows)


def vouched(found, of):
    """Return the LUNs, with `is_ours` for resignatured copies of these SRs without an SR in the pool."""
    return [lun._replace(is_ours=True) if _was_ours(lun, of) else lun for lun in found]


def _was_ours(lun, of):
    return lun.kind == client.luns.RESIGNATURED and lun.of_sr in of and not lun.is_ours


def _copy_of_others(pool, params, lun):
    """Return the copy (reference) that is or was on a LUN and lacks the mark of the options; None without a copy."""
    ref = pool.sr_on(lun.scsi_id) or (pool.sr_by_uuid(lun.sr_uuid) if lun.kind == client.luns.RESIGNATURED else None)
    if ref is None or not client.records.is_copy(pool.srs[ref]) or client.is_marked(params, pool.srs[ref]):
        return None
    return ref


def _verify_mine(pool, params, found):
    """Raises Refused for a selected LUN that was attached without the mark."""
    for lun in found:
        ref = _copy_of_others(pool, params, lun) if lun.scsi_id in params["scsi_ids"] else None
        if ref is not None:
            raise client.Refused(_of_others(pool, params, lun.scsi_id, ref))


def _of_others(pool, params, scsi_id, ref):
    return (
        f"The LUN {scsi_id} holds the copy {pool.srs[ref]['name_label']!r} ({pool.srs[ref]['uuid']}), which was "
        f"attached without the mark {params['mark']}. The copy was not changed."
    )


def why_none(pool, params, found, of):
    """Return a sentence for each copy of these SRs that is not selected."""
    told = []
    for lun in found:
        ref = _copy_of_others(pool, params, lun)
        if ref is not None and lun.of_sr in of:
            told.append(_of_others(pool, params, lun.scsi_id, ref))
        elif _was_ours(lun, of):
            told.append(
                f"The LUN {lun.scsi_id} is a resignatured copy of the SR. The LUN was attached and forgotten, or "
                "another pool uses the LUN. If no pool uses the LUN, say again: true, or name the LUN in scsi_ids."
            )
    return told


def _tell_doubtful(module, found, chosen, names):
    scsi_ids, of, everything = names
    for lun in client.attach.doubtful(found, chosen) if of or everything else []:
        module.warn(f"The LUN {lun.scsi_id} is skipped: its state is {lun.kind}, and another pool may use the LUN.")


def _forward_rows(module, calls, pool, chosen, found):
    params = module.params
    names = params["name"], client.records.today(), client.run_of(params)
    is_attach = params["state"] == "attached"
    wanted = client.attach_plan.Wanted(*names, params["jobs"], params["leave_others"], is_attach)
    planned = client.attach_plan.plan(calls, pool, chosen, wanted, found)
    if module.check_mode:
        return [_would(pool, row) for row in planned]
    written = set()

    def tell(scsi_id, step, how):
        if (step, how) == (client.attach.RESIGNATURING, client.attach.OVER):
            written.add(scsi_id)

    results = client.attach.carry_out(calls, pool, planned, wanted, tell)
    now = _read_again(calls)
    return [_became(pool, now, row.lun, each, row.lun.scsi_id in written) for row, each in zip(planned, results)]


def _read_again(calls):
    """Return the pool's records now; None where the pool does not answer."""
    try:
        return client.records.read(calls)
    except client.RelvmoiscsiError:
        return None


def _side(pool, lun, ref):
    """Return the kind of a LUN, and its SR (reference, or None) on the hosts: `before` or `after` of a row."""
    if ref is None:
        return {"scsi_id": lun.scsi_id, "kind": lun.kind, "sr": None, "name": None, "hosts": {}}
    sr = pool.srs[ref]
    hosts = on_hosts(pool, ref)
    return {"scsi_id": lun.scsi_id, "kind": lun.kind, "sr": sr["uuid"], "name": sr["name_label"], "hosts": hosts}


def on_hosts(pool, ref):
    """Return the state of an SR on each host, from its PBDs."""
    pbds = pool.pbds_of(ref)
    states = {}
    for host in pool.hosts_in_order():
        plugged = host in pbds and pbds[host][1]["currently_attached"]
        states[pool.host_name(host)] = "plugged" if plugged else "unplugged" if host in pbds else ABSENT
    return states


def _before(pool, lun):
    return _side(pool, lun, client.attach_plan.sr_of(pool, lun))


def _would(pool, row):
    """Return the row of check mode, from the plan that a run would execute."""
    lun, old, steps = row.lun, _before(pool, row.lun), bool(row.steps)
    if row.refusal is not None:
        return _row(lun, client.attach.FAILED, False, old, old, {"error": str(row.refusal)})
    new = {**old, "kind": client.luns.RESIGNATURED} if row.resignatures or not old["sr"] else old
    if not row.attaches:
        status = f"would be {client.attach.NEW_IDS}" if steps else client.attach.HAD_IDS
        return _row(lun, status, steps, old, new if steps else old, {})
    new = {**new, "sr": old["sr"] or "(new)", "name": row.name}
    if row.unplugged is not None:
        return _row(lun, client.attach.FAILED, steps, old, new, {"name": row.name, "error": str(row.unplugged)})
    hosts = {host.name: "down" if host.is_down else "plugged" for host in row.hosts}
    new = {**new, "kind": client.luns.ATTACHED, "hosts": hosts}
    idle = client.attach.PARTIAL if row.down else client.attach.ALREADY
    told = {"name": row.name, "hosts": hosts, "error": _away(hosts)}
    return _row(lun, f"would be {client.attach.DONE}" if steps else idle, steps, old, new, told)


def _became(pool, now, lun, result, is_written):
    """Return the result for a LUN. A partly plugged SR is an error. `now`: None where the pool does not answer."""
    old, told = _before(pool, lun), result.facts()
    after = _after(pool, now, lun, old, is_written)
    changed = after != old or result.status in (client.attach.DONE, client.attach.NEW_IDS)
    if result.status == client.attach.PARTIAL:
        told["error"] = _away(told["hosts"])
    return _row(lun, result.status, changed, old, after, told)


def _after(pool, now, lun, old, is_written):
    kind = client.luns.RESIGNATURED if is_written else old["kind"]
    ref = now.sr_on(lun.scsi_id) if now is not None else None
    was_overwritten = lun.kind in client.luns.UNTOUCHED and pool.sr_on(lun.scsi_id) == ref
    if ref is None or was_overwritten or not client.records.is_copy(now.srs[ref]):
        return {**old, "kind": kind}
    after = _side(now, lun, ref)
    kind = client.luns.RESIGNATURED if set(after["hosts"].values()) == {ABSENT} else client.luns.ATTACHED
    return {**after, "kind": kind}


def _away(hosts):
    """Return a sentence on the hosts without the SR; None where all hosts have the SR."""
    told = [f"{host} ({state.rstrip('.')})" for host, state in hosts.items() if state != "plugged"]
    return f"The SR is not plugged on {', '.join(told)}: correct the cause, then repeat the task." if told else None


def _row(lun, status, changed, old, after, told):
    row = {"scsi_id": lun.scsi_id, "sr": {"old": lun.of_sr or None, "new": old["sr"]}, "name": old["name"], "hosts": {}}
    row.update(vdis=[], error=None)
    row.update(told)
    return {**row, "status": status, "changed": changed, "before": old, "after": after}


# --- back: detached, forgotten


def backward(module, calls, pool):
    """Detach the selected copies, and forget them for the state forgotten; return the dict for exit_json."""
    params = module.params
    refs, gone = _copies(pool, params)
    for ref in refs:
        client.records.verify_copy(pool, ref)
    work = [ref for ref in refs if params["state"] == "forgotten" or pool.pbds_of(ref)]
    made, others, errors = _verified(calls, pool, work, params)
    touched = set()
    if not module.check_mode:
        late = _take(calls, pool, [ref for ref in work if ref not in errors], made, others, params)
        touched = _touched(calls, pool, late, made)
        errors.update(late)
    rows = [_gone_row(text) for text in gone]
    for ref in refs:
        row = _back_row(module, pool, ref, ref in work, errors.get(ref), made.get(ref, ()))
        rows.append({**row, "changed": row["changed"] or ref in touched})
    return ended(rows)


def _touched(calls, pool, refs, made):
    """Return the SRs that a failed run has changed: PBDs, or VMs that were destroyed."""
    now = _read_again(calls) if refs else None
    if now is None:
        return set(refs)
    vms = calls.records("VM")
    return {
        ref
        for ref in refs
        if ref not in now.srs
        or on_hosts(now, ref) != on_hosts(pool, ref)
        or any(each.ref not in vms for each in made[ref])
    }


def _verified(calls, pool, refs, params):
    """Return three dicts by SR: the VMs to destroy, the other VMs with disks on the SR, the errors.

    Nothing is changed.
    """
    made, others, errors = {}, {}, {}
    found = client.inventory.read(calls) if refs else None
    for ref in refs:
        if ref not in pool.srs:  # forgotten by another client
            continue
        try:
            client.discard.verify_hosts_up(pool, ref)
            made[ref] = _made(found, pool, ref, params)
            others[ref] = _verify_unused(found, pool, ref, made[ref], params)
        except client.RelvmoiscsiError as error:
            errors[ref] = error
    return made, others, errors


def _made(found, pool, ref, params):
    """Return the VMs that are destroyed with an SR."""
    if not params["with_vms"] or params["state"] != "forgotten":
        return []
    vms = {each: vm for each, vm in found.vms.items() if client.is_marked(params, vm)}
    vms = client.as_if_off(vms) if params["force"] else vms
    return client.made_vms.made_on(found._replace(vms=vms), pool, ref)


def _verify_unused(found, pool, ref, made, params):
    """Return the halted VMs that stay and have disks on the SR.

    Raises Refused where such a VM runs, or would lose its disks without leave_vms. With a mark, raises Refused for any
    halted VM.
    """
    going = {each.ref for each in made}
    vms = {each: vm for each, vm in found.vms.items() if each not in going and vm["snapshot_of"] not in going}
    vbds = {each: vbd for each, vbd in found.vbds.items() if vbd["VM"] in vms or vbd["VM"] not in found.vms}
    uses = client.discard.uses_of(found.vdis_of(ref), vbds, vms, pool.srs[ref]["uuid"])
    client.discard.verify_unused(pool, {ref: uses})
    if params["mark"] and uses.halted:
        raise client.Refused(
            f"VMs that were made without the mark {params['mark']} have disks on the SR "
            f"{pool.srs[ref]['name_label']!r}: {client.discard.named(uses.halted)}. The SR was not changed."
        )
    if uses.halted and params["state"] == "forgotten" and not params["leave_vms"]:
        raise client.Refused(
            f"These halted VMs would lose their disks on the SR {pool.srs[ref]['name_label']!r}: "
            f"{client.discard.named(uses.halted)}. Nothing was changed. Say with_vms: true to destroy the VMs that "
            "vm_clone has made, or leave_vms: true to leave the VMs without these disks."
        )
    return list(uses.halted)


def _take(calls, pool, work, made, others, params):
    """Detach or forget the SRs; return the errors by SR."""
    uuids = [pool.srs[ref]["uuid"] for ref in work]

    def one(calls, ref):
        now = client.records.read(calls)
        _, _, errors = _verified(calls, now, [ref], params)
        if errors:
            raise errors[ref]
        if ref not in now.srs:
            return
        if params["force"]:
            for each in made[ref]:
                client.turn_off(calls, each.ref)
        if params["with_vms"] and params["state"] == "forgotten":
            client.made_vms.destroy_made(calls, now, ref, made[ref])
            client.made_vms.clean_networks(calls, uuids)
        work_on = client.discard.discard if params["state"] == "forgotten" else client.discard.detach
        work_on(calls, now, ref, others[ref])

    outcomes = client.jobs.at_once(calls, work, one, params["jobs"])
    return {ref: each for ref, each in zip(work, outcomes) if isinstance(each, client.RelvmoiscsiError)}


def _copies(pool, params):
    """Return (references of the selected copies, the names of copies that the pool does not have)."""
    of = {client.records.original_uuid(pool, text) for text in params["clones_of"]}
    refs, gone = [], []
    for text in params["srs"]:
        if client.records.has_sr(pool, text):
            refs.append(client.records.find_sr(pool, text))
        else:
            gone.append(text)
    for scsi_id in params["scsi_ids"]:
        ref = _copy_on(pool, scsi_id)
        if ref is not None:
            refs.append(ref)
        else:
            gone.append(scsi_id)
    for ref in refs:
        if client.records.is_copy(pool.srs[ref]) and not client.is_marked(params, pool.srs[ref]):
            raise client.Refused(
                f"The copy {pool.srs[ref]['name_label']!r} ({pool.srs[ref]['uuid']}) was attached without the mark "
                f"{params['mark']}. The copy was not changed."
            )
    for ref, sr in pool.copies():
        if (params["all"] or sr["other_config"].get(client.records.ORIGINAL_SR) in of) and client.is_marked(params, sr):
            refs.append(ref)
    return list(dict.fromkeys(refs)), gone


def _copy_on(pool, scsi_id):
    """Return the copy on a LUN; None without a copy. Raises Refused for a LUN of another SR."""
    on = {sr["other_config"].get(client.records.SCSI_ID): ref for ref, sr in pool.copies()}
    other = pool.sr_on(scsi_id)
    if scsi_id not in on and other is not None:
        raise client.Refused(
            f"The LUN {scsi_id} holds the SR {pool.srs[other]['name_label']!r} ({pool.srs[other]['uuid']}), "
            "which is not an attached copy."
        )
    return on.get(scsi_id)


def _gone_row(text):
    row = {"scsi_id": None, "sr": {"old": None, "new": None}, "name": text, "hosts": {}, "vdis": [], "error": None}
    return {**row, "status": "already gone", "changed": False, "before": None, "after": None, "vms": []}


def _back_row(module, pool, ref, has_work, error, made):
    sr, state = pool.srs[ref], module.params["state"]
    old = {"sr": sr["uuid"], "name": sr["name_label"], "hosts": on_hosts(pool, ref), "vms": [vm.name for vm in made]}
    new = None if state == "forgotten" else {**old, "hosts": dict.fromkeys(old["hosts"], ABSENT)}
    status = f"would be {state}" if module.check_mode else state
    if not has_work:
        status, new = f"already {state}", old
    if error is not None:
        status, new = client.attach.FAILED, old
    return {
        "scsi_id": sr["other_config"].get(client.records.SCSI_ID),
        "sr": {"old": sr["other_config"].get(client.records.ORIGINAL_SR) or None, "new": sr["uuid"]},
        "name": sr["name_label"],
        "status": status,
        "hosts": new["hosts"] if new else {},
        "vdis": [],
        "vms": old["vms"],
        "changed": has_work and error is None,
        "before": old,
        "after": new,
        "error": str(error) if error is not None else None,
    }


# --- the result


def ended(rows):
    """Return the dict for exit_json, or for fail_json with `failed`, from the rows."""
    told = [{key: value for key, value in row.items() if key not in ("before", "after")} for row in rows]
    changed = any(row["changed"] for row in rows)
    result = {"changed": changed, "luns": told, "map": id_map(rows), "diff": diff(rows)}
    msg = client.summary("LUNs", [(row["scsi_id"] or row["name"] or "a target", row["error"]) for row in rows])
    if msg:
        result.update(failed=True, msg=msg)
    return result


def id_map(rows):
    """Return the new UUIDs of VDIs by old UUID, by UUID of the new SR."""
    found = {}
    for row in rows:
        pairs = {pair["old"]: pair["new"] for pair in row["vdis"] if pair["old"]}
        if pairs:
            found[row["sr"]["new"]] = pairs
    return found


def diff(rows):
    """Return the value for --diff: the SRs and their PBDs before and after."""

    def text(side):
        return "".join(_lines(row[side]) for row in rows if row[side])

    return {"before": text("before"), "after": text("after")}


def _lines(side):
    head = [f"{key}: {value}" for key, value in side.items() if key not in ("hosts", "vms") and value is not None]
    head += [f"  {host}: {state}" for host, state in side.get("hosts", {}).items()]
    head += [f"  VM {name}" for name in side.get("vms", [])]
    return "".join(line + "\n" for line in head)
