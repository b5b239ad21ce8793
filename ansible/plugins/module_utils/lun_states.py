# SPDX-License-Identifier: LGPL-2.1-only
"""The states of LUNs, on the Python API of `relvmoiscsi pool`.

A row is the result for a LUN: `changed`, `before` and `after` (the SR, its name, and its state on each host), and the
facts of relvmoiscsi. Check mode returns the same rows without a write.
"""

from __future__ import annotations

from ansible_collections.relvmoiscsi.pool.plugins.module_utils import client

try:
    from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError
    from relvmoiscsi.pool import attach, attach_plan, jobs, lock, lock_keys, luns, records
    from relvmoiscsi.pool.vms import discard
except ImportError:
    pass  # client.play says so

ABSENT = "absent"


# --- from clones to copies: resignatured, attached


def forward(module, calls, pool):
    """Bring the selected LUNs to the state; return the dict for exit_json."""
    params = module.params
    with client.seen(module, calls, pool) as seen:
        of = [records.original_uuid(pool, text) for text in params["clones_of"]]
        found = attach.as_clones(seen, params["scsi_ids"], of) if params["unplugged"] else seen
        names = params["scsi_ids"], of, params["all"]
        others = _copies_of_others(pool, client.mark_of(params), found)
        for scsi_id in params["scsi_ids"]:
            if scsi_id in others:
                raise Refused(others[scsi_id])
        mine = [lun for lun in found if lun.scsi_id not in others]
        try:
            chosen = attach.choose(mine, *names, params["foreign"])
        except NotFound as error:
            raise NotFound(" ".join([str(error), *_why_none(found, of, others)])) from error
        for lun in attach.doubtful(mine, params["scsi_ids"], of, params["foreign"]) if of or params["all"] else []:
            why = "the LUN may be the original" if lun.kind == luns.UNCONNECTED else "another pool may use the LUN"
            module.warn(f"The LUN {lun.scsi_id} will be skipped: its state is {lun.kind}, and {why}.")
        if not params["leave_others"] and params["state"] == "attached":
            attach.verify_none_left(found, chosen)
        rows = _forward_rows(module, calls, pool, chosen, found)
    for lun in attach.unseen(mine, *names):
        side, told = {"scsi_id": lun.scsi_id}, attach.not_attachable(lun).facts()
        rows.append({**told, "destroyed_vm_names": [], "changed": False, "before": side, "after": side})
    return ended(rows)


def _copies_of_others(pool, mark, found):
    """Return a sentence, by SCSIid, for each LUN that holds or held a copy without the mark."""
    told = {}
    for lun in found:
        ref = pool.sr_on(lun.scsi_id) or (pool.sr_by_uuid(lun.sr_uuid) if lun.kind == luns.RESIGNATURED else None)
        if lun.scsi_id and ref is not None and _is_of_others(pool.srs[ref], mark):
            told[lun.scsi_id] = f"The LUN {lun.scsi_id} was skipped. " + _of_others(pool.srs[ref], mark)
    return told


def _is_of_others(sr, mark):
    return records.is_copy(sr) and not records.is_marked(sr, mark)


def _of_others(sr, mark):
    return (
        f"The copy {sr['name_label']!r} ({sr['uuid']}) was attached without the mark {mark}. The copy was not changed."
    )


def _why_none(found, of, others):
    """Return a sentence for each copy of these SRs that is not selected.

    Each writer of a LUN can write its label, so no label selects a LUN with new identities: such a LUN is named.
    """
    again = (
        "The label of the LUN {} says that the LUN is a resignatured copy of the SR. The LUN was attached and "
        "forgotten, or another pool uses the LUN, or the label is forged. If the LUN is an unused copy, name the LUN "
        "in scsi_ids, without clones_of."
    )
    return [
        others.get(lun.scsi_id) or again.format(lun.scsi_id)
        for lun in found
        if lun.of_sr in of and (lun.scsi_id in others or lun.kind == luns.RESIGNATURED and not lun.is_ours)
    ]


def _forward_rows(module, calls, pool, chosen, found):
    params = module.params
    names = params["name"], records.run_id(client.mark_of(params))
    is_attach = params["state"] == "attached"
    wanted = attach_plan.AttachRequest(*names, params["jobs"], params["leave_others"], is_attach, params["unplugged"])
    planned = attach_plan.plan(calls, pool, chosen, wanted, found)
    if module.check_mode:
        return [_would(pool, row) for row in planned]
    written = set()

    def tell(scsi_id, step, how):
        if (step, how) == (attach.RESIGNATURING, attach.OVER):
            written.add(scsi_id)

    results = attach.carry_out(calls, pool, planned, wanted, tell)
    now = _read_again(calls)
    return [_became(pool, now, row.lun, each, row.lun.scsi_id in written) for row, each in zip(planned, results)]


def _read_again(calls):
    """Return the pool's records now; None where the pool does not answer."""
    try:
        return records.read(calls)
    except RelvmoiscsiError:
        return None


def _side(pool, lun, ref):
    """Return the kind of a LUN, and its SR (reference, or None) on the hosts: `before` or `after` of a row."""
    if ref is None:
        return {"scsi_id": lun.scsi_id, "lun_kind": lun.kind, "sr": None, "sr_name_label": None, "hosts": {}}
    sr = pool.srs[ref]
    hosts = on_hosts(pool, ref)
    return {
        "scsi_id": lun.scsi_id,
        "lun_kind": lun.kind,
        "sr": sr["uuid"],
        "sr_name_label": sr["name_label"],
        "hosts": hosts,
    }


def on_hosts(pool, ref):
    """Return the state of an SR on each host, from its PBDs."""
    plans = pool.host_plans(ref)
    return {each.name: "plugged" if each.is_plugged else "unplugged" if each.pbd else ABSENT for each in plans}


def _before(pool, lun):
    return _side(pool, lun, attach_plan.sr_of(pool, lun))


def _would(pool, row):
    """Return the row of check mode, from the plan that a run would execute."""
    lun, old, steps = row.lun, _before(pool, row.lun), bool(row.steps)
    told = {"problem": str(row.error) if row.error is not None else None}
    if row.refusal is not None:
        return _row(lun, attach.FAILED, False, old, old, told)
    new = {**old, "lun_kind": luns.RESIGNATURED} if row.resignatures or not old["sr"] else old
    done, idle = attach.NEW_IDS, attach.HAD_IDS
    if row.attaches:
        told["sr_name_label"] = row.name
        new = {**new, "sr": old["sr"] or "(new)", "sr_name_label": row.name}
        done, idle = attach.DONE, attach.PARTIAL if row.down else attach.ALREADY
    if row.unplugged is not None:
        return _row(lun, attach.FAILED, steps, old, new, told)
    if row.attaches:
        told["hosts"] = {host.name: "down" if host.is_down else "plugged" for host in row.hosts}
        told["problem"] = _away(told["hosts"])
        new = {**new, "lun_kind": luns.ATTACHED, "hosts": told["hosts"]}
    return _row(lun, f"would be {done}" if steps else idle, steps, old, new if steps else old, told)


def _became(pool, now, lun, result, is_written):
    """Return the result for a LUN. A partly plugged SR is an error. `now`: None where the pool does not answer."""
    old, told = _before(pool, lun), result.facts()
    after = _after(pool, now, lun, old, is_written)
    changed = after != old or result.status in (attach.DONE, attach.NEW_IDS)
    if result.status == attach.PARTIAL:
        told["problem"] = _away(told["hosts"])
    return _row(lun, result.status, changed, old, after, told)


def _after(pool, now, lun, old, is_written):
    kind = luns.RESIGNATURED if is_written else old["lun_kind"]
    ref = now.sr_on(lun.scsi_id) if now is not None else None
    was_overwritten = lun.kind in luns.UNTOUCHED and pool.sr_on(lun.scsi_id) == ref
    if ref is None or was_overwritten or not records.is_copy(now.srs[ref]):
        return {**old, "lun_kind": kind}
    after = _side(now, lun, ref)
    kind = luns.RESIGNATURED if set(after["hosts"].values()) == {ABSENT} else luns.ATTACHED
    return {**after, "lun_kind": kind}


def _away(hosts):
    """Return a sentence on the hosts without the SR; None where all hosts have the SR."""
    told = [f"{host} ({state.rstrip('.')})" for host, state in hosts.items() if state != "plugged"]
    return f"The SR is not plugged on {', '.join(told)}: correct the cause, then repeat the task." if told else None


def _row(lun, status, changed, old, after, told):
    row = {"scsi_id": lun.scsi_id, "old_sr": lun.of_sr or None, "new_sr": old["sr"]}
    row.update(
        sr_name_label=old["sr_name_label"], hosts={}, vdi_pairs=[], notes=[], destroyed_vm_names=[], problem=None
    )
    row.update(told)
    return {**row, "status": status, "changed": changed, "before": old, "after": after}


# --- back: detached, forgotten


def backward(module, calls, pool):
    """Detach the selected copies, and forget them for the state forgotten; return the dict for exit_json."""
    params, forgets = module.params, module.params["state"] == "forgotten"
    refs, gone = _copies(pool, params)
    for ref in refs:
        records.verify_copy(pool, ref)
    work = [ref for ref in refs if forgets or pool.pbds_of(ref)]
    plans, destroyed = {}, {ref: [] for ref in work}

    def one(calls, ref):
        with_vms, mark = forgets and params["with_vms"], client.mark_of(params)
        wanted = with_vms, mark, params["force"], params["last_copies"], forgets
        plan = plans[ref] = discard.plan(calls, [ref], *wanted)
        if forgets and not params["leave_vms"]:
            discard.verify_nobody_left(plan)
        if ref not in plan.pool.srs:
            return
        if module.check_mode:
            lock.verify_free(calls, [lock_keys.name_of(plan.pool.srs[ref])])
            return
        with discard.carrying_out(calls, plan) as carry_out:
            carry_out(calls, ref, destroyed[ref])

    outcomes = jobs.at_once(calls, work, one, params["jobs"])
    errors = {ref: each for ref, each in zip(work, outcomes) if isinstance(each, RelvmoiscsiError)}
    now = _read_again(calls) if errors else pool
    rows = [_gone_row(text) for text in gone]
    for ref in refs:
        made = plans[ref].made.get(ref, {}) if ref in plans else {}
        names = [vm["name_label"] for vm in made.values() if not vm["is_a_snapshot"]]
        row = _back_row(module, pool, ref, ref in work, errors.get(ref), names)
        if ref in errors and not module.check_mode:  # a part may have been done
            row["changed"] = bool(destroyed[ref]) or now is None or on_hosts(now, ref) != on_hosts(pool, ref)
        rows.append(row)
    return ended(rows)


def _copies(pool, params):
    """Return (references of the selected copies, the names of copies that the pool does not have)."""
    of = {records.original_uuid(pool, text) for text in params["clones_of"]}
    refs, gone, mark = [], [], client.mark_of(params)
    for text in params["srs"]:
        if records.has_sr(pool, text):
            refs.append(records.find_sr(pool, text))
        else:
            gone.append(text)
    for scsi_id in params["scsi_ids"]:
        ref = _copy_on(pool, scsi_id)
        if ref is not None:
            refs.append(ref)
        else:
            gone.append(scsi_id)
    for ref in refs:
        if _is_of_others(pool.srs[ref], mark):
            raise Refused(_of_others(pool.srs[ref], mark))
    for ref, sr in pool.copies():
        if (params["all"] or sr["other_config"].get(records.ORIGINAL_SR) in of) and records.is_marked(sr, mark):
            refs.append(ref)
    return list(dict.fromkeys(refs)), gone


def _copy_on(pool, scsi_id):
    """Return the copy on a LUN; None without a copy. Raises Refused for a LUN of another SR."""
    on = {sr["other_config"].get(records.SCSI_ID): ref for ref, sr in pool.copies()}
    other = pool.sr_on(scsi_id)
    if scsi_id not in on and other is not None:
        raise Refused(
            f"The LUN {scsi_id} holds the SR {pool.srs[other]['name_label']!r} ({pool.srs[other]['uuid']}), "
            "which is not an attached copy."
        )
    return on.get(scsi_id)


def _gone_row(text):
    row = {"scsi_id": None, "old_sr": None, "new_sr": None, "sr_name_label": text, "hosts": {}, "vdi_pairs": []}
    row.update(status="already gone", notes=[], destroyed_vm_names=[], problem=None)
    return {**row, "changed": False, "before": None, "after": None}


def _back_row(module, pool, ref, has_work, error, made):
    sr, state = pool.srs[ref], module.params["state"]
    old = {"sr": sr["uuid"], "sr_name_label": sr["name_label"], "hosts": on_hosts(pool, ref), "vms": made}
    new = None if state == "forgotten" else {**old, "hosts": dict.fromkeys(old["hosts"], ABSENT)}
    status = f"would be {state}" if module.check_mode else state
    if not has_work:
        status, new = f"already {state}", old
    if error is not None:
        status, new = attach.FAILED, old
    return {
        "scsi_id": sr["other_config"].get(records.SCSI_ID),
        "old_sr": sr["other_config"].get(records.ORIGINAL_SR) or None,
        "new_sr": sr["uuid"],
        "sr_name_label": sr["name_label"],
        "status": status,
        "hosts": new["hosts"] if new else {},
        "vdi_pairs": [],
        "notes": [],
        "destroyed_vm_names": old["vms"],
        "changed": has_work and error is None,
        "before": old,
        "after": new,
        "problem": str(error) if error is not None else None,
    }


# --- the result


def ended(rows):
    """Return the dict for exit_json, or for fail_json with `failed`, from the rows."""
    # check mode cannot know the UUID of an SR that a run would make
    told = [{key: value for key, value in row.items() if (key, value) != ("new_sr", None)} for row in rows]
    named = client.ended(told, "luns", "LUNs", lambda row: row["scsi_id"] or row["sr_name_label"] or "a target", _lines)
    return {**named, "map": id_map(rows)}


def id_map(rows):
    """Return the new UUIDs of VDIs by old UUID, by UUID of the new SR."""
    found = {}
    for row in rows:
        pairs = {pair["old_vdi"]: pair["new_vdi"] for pair in row["vdi_pairs"] if pair["old_vdi"]}
        if pairs:
            found[row["new_sr"]] = pairs
    return found


def _lines(side):
    """Return the lines for --diff of an SR and its PBDs; no line for a forgotten SR."""
    side = side or {}
    head = [f"{key}: {value}" for key, value in side.items() if key not in ("hosts", "vms") and value is not None]
    head += [f"  {host}: {state}" for host, state in side.get("hosts", {}).items()]
    head += [f"  VM {name}" for name in side.get("vms", [])]
    return "".join(map(client.line, head))
