# SPDX-License-Identifier: LGPL-2.1-only
"""The states that LUNs may be asked to have, on the Python API of `relvmoiscsi pool`.

A row says what became of a LUN: `changed`, `before` and `after` (the SR, its name, and how it is on each host), and
what relvmoiscsi tells. Check mode gives the same rows without a write.
"""

from __future__ import annotations

from ansible_collections.relvmoiscsi.pool.plugins.module_utils import client

ABSENT = "absent"


# --- from clones to copies: resignatured, attached


def forward(module, calls, pool):
    """The LUNs that are named, brought to the state asked for; the dict for exit_json."""
    params = module.params
    with client.seen(module, calls, pool) as found:
        of = [client.records.original_uuid(pool, text) for text in params["clones_of"]]
        names = params["scsi_ids"], of, params["all"]
        chosen = client.attach.choose(found, *names, params["foreign"])
        passed = client.attach.unseen(found, *names)
        _tell_doubtful(module, found, chosen, names)
        if not params["leave_others"] and params["state"] == "attached":
            client.attach.verify_none_left(found, chosen)
        rows = _forward_rows(module, calls, pool, chosen)
    rows += [_failed_row(client.attach.passed_over(lun)) for lun in passed]
    return ended(rows)


def _tell_doubtful(module, found, chosen, names):
    scsi_ids, of, everything = names
    for lun in client.attach.doubtful(found, chosen) if of or everything else []:
        module.warn(f"The LUN {lun.scsi_id} is left out: it is {lun.kind}, and may be in use elsewhere.")


def _forward_rows(module, calls, pool, chosen):
    params = module.params
    wanted = client.attach.Wanted(params["name"], client.records.today(), client.records.run_id(), params["jobs"])
    names = client.attach.names(pool, chosen, wanted)
    if module.check_mode:
        would = would_attach if params["state"] == "attached" else would_resignature
        return [would(pool, lun, names[lun.scsi_id]) for lun in chosen]
    if params["state"] == "attached":
        results = client.attach.attach(calls, pool, chosen, wanted)
        return [attached_row(pool, lun, result) for lun, result in zip(chosen, results)]
    results = client.attach.resignature_all(calls, pool, chosen, wanted)
    return [resignatured_row(pool, lun, result) for lun, result in zip(chosen, results)]


def before(pool, lun):
    """What a LUN is, and its SR on the hosts, as they were read before anything was done."""
    ref = pool.sr_by_uuid(lun.sr_uuid) if lun.kind in (client.luns.ATTACHED, client.luns.RESIGNATURED) else None
    if ref is None:
        return {"scsi_id": lun.scsi_id, "kind": lun.kind, "sr": None, "name": None, "hosts": {}}
    return {
        "scsi_id": lun.scsi_id,
        "kind": lun.kind,
        "sr": lun.sr_uuid,
        "name": pool.srs[ref]["name_label"],
        "hosts": on_hosts(pool, ref),
    }


def on_hosts(pool, ref):
    """How an SR is on each host, as its PBDs say."""
    pbds = pool.pbds_of(ref)
    states = {}
    for host in pool.hosts_in_order():
        plugged = host in pbds and pbds[host][1]["currently_attached"]
        states[pool.host_name(host)] = "plugged" if plugged else "unplugged" if host in pbds else ABSENT
    return states


def would_attach(pool, lun, name):
    """The row of check mode. What only a run that was cut has left undone on the VDIs is not looked for."""
    old = before(pool, lun)
    new = {**old, "kind": client.luns.ATTACHED, "name": old["name"] or name}
    new["hosts"] = {pool.host_name(host): _would_be_plugged(pool, host) for host in pool.hosts_in_order()}
    changed = new["hosts"] != old["hosts"] or new["kind"] != old["kind"]
    status = f"would be {client.attach.DONE}" if changed else client.attach.ALREADY
    return _row(lun, status, changed, old, {**new, "sr": old["sr"] or "(new)"}, {"name": new["name"]})


def _would_be_plugged(pool, host):
    return "plugged" if pool.live[host] else "down"


def would_resignature(pool, lun, _name):
    old = before(pool, lun)
    changed = lun.kind in client.luns.UNTOUCHED
    status = f"would be {client.attach.NEW_IDS}" if changed else client.attach.HAD_IDS
    return _row(lun, status, changed, old, {**old, "kind": client.luns.RESIGNATURED} if changed else old, {})


def attached_row(pool, lun, result):
    """What became of a LUN that was to be attached. One that is on some hosts alone is an error."""
    old, told = before(pool, lun), result.facts()
    after = {**old, "kind": client.luns.ATTACHED, "sr": result.sr_uuid, "name": result.name, "hosts": told["hosts"]}
    if result.status == client.attach.FAILED:
        return _failed_row(result, old)
    same = old["sr"] is not None and _plugged(old["hosts"]) == _plugged(told["hosts"])
    changed = result.status == client.attach.DONE or result.status == client.attach.PARTIAL and not same
    row = _row(lun, result.status, changed, old, after, told)
    if result.status == client.attach.PARTIAL:
        away = [f"{host} ({state.rstrip('.')})" for host, state in told["hosts"].items() if state != "plugged"]
        row["error"] = f"It is not plugged on {', '.join(away)}: run the same again when that is mended."
    return row


def _plugged(hosts):
    return {host for host, state in hosts.items() if state == "plugged"}


def resignatured_row(pool, lun, result):
    old = before(pool, lun)
    if result.status == client.attach.FAILED:
        return _failed_row(result, old)
    changed = result.status == client.attach.NEW_IDS
    after = {**old, "kind": client.luns.RESIGNATURED} if changed else old
    return _row(lun, result.status, changed, old, after, result.facts())


def _failed_row(result, old=None):
    """A LUN may have new identities although it was not attached: then that has changed."""
    old = old or {"scsi_id": result.scsi_id}
    told = result.facts()
    return {**told, "changed": bool(result.sr_uuid and result.sr_uuid != old.get("sr")), "before": old, "after": old}


def _row(lun, status, changed, old, after, told):
    row = {"scsi_id": lun.scsi_id, "sr": {"old": lun.of_sr or None, "new": old["sr"]}, "name": old["name"], "hosts": {}}
    row.update(vdis=[], error=None)
    row.update(told)
    return {**row, "status": status, "changed": changed, "before": old, "after": after}


# --- back: detached, forgotten


def backward(module, calls, pool):
    """The copies that are named, taken from all hosts, and forgotten if asked for; the dict for exit_json."""
    params = module.params
    refs, gone = _copies(pool, params)
    with_vms = params["with_vms"] and params["state"] == "forgotten"
    plan = client.made_vms.plan(calls, refs, with_vms)
    work = [ref for ref in refs if params["state"] == "forgotten" or pool.pbds_of(ref)]
    errors = {} if module.check_mode else _take(calls, plan, work, params)
    rows = [_gone_row(text) for text in gone]
    rows += [_back_row(module, pool, ref, ref in work, errors.get(ref), plan.made.get(ref, ())) for ref in refs]
    return ended(rows)


def _take(calls, plan, work, params):
    """Do it; the errors by SR."""
    uuids = [plan.pool.srs[ref]["uuid"] for ref in work]

    def one(calls, ref):
        if params["state"] == "forgotten":
            client.made_vms.carry_out(calls, plan, ref, [], uuids)
        else:
            client.discard.detach(calls, plan.pool, ref, plan.known(ref))

    outcomes = client.jobs.at_once(calls, work, one, params["jobs"])
    return {ref: each for ref, each in zip(work, outcomes) if isinstance(each, client.RelvmoiscsiError)}


def _copies(pool, params):
    """(references of the copies that are meant, what of them the pool does not have any more)."""
    of = {client.records.original_uuid(pool, text) for text in params["clones_of"]}
    refs, gone = [], []
    for text in params["srs"]:
        if client.records.has_sr(pool, text):
            refs.append(client.records.find_sr(pool, text))
        else:
            gone.append(text)
    on = {sr["other_config"].get(client.records.SCSI_ID): ref for ref, sr in pool.copies()}
    for scsi_id in params["scsi_ids"]:
        if scsi_id in on:
            refs.append(on[scsi_id])
        else:
            gone.append(scsi_id)
    for ref, sr in pool.copies():
        if params["all"] or sr["other_config"].get(client.records.ORIGINAL_SR) in of:
            refs.append(ref)
    return list(dict.fromkeys(refs)), gone


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
    """What exit_json, or fail_json with `failed`, is to get of the rows."""
    told = [{key: value for key, value in row.items() if key not in ("before", "after")} for row in rows]
    changed = any(row["changed"] for row in rows)
    result = {"changed": changed, "luns": told, "map": id_map(rows), "diff": diff(rows)}
    msg = client.summary("LUNs", [(row["scsi_id"] or row["name"] or "a target", row["error"]) for row in rows])
    if msg:
        result.update(failed=True, msg=msg)
    return result


def id_map(rows):
    """New UUIDs of VDIs by old ones, by UUID of the new SR."""
    found = {}
    for row in rows:
        pairs = {pair["old"]: pair["new"] for pair in row["vdis"] if pair["old"]}
        if pairs:
            found[row["sr"]["new"]] = pairs
    return found


def diff(rows):
    """For --diff: the SRs and their PBDs before and after."""

    def text(side):
        return "".join(_lines(row[side]) for row in rows if row[side])

    return {"before": text("before"), "after": text("after")}


def _lines(side):
    head = [f"{key}: {value}" for key, value in side.items() if key not in ("hosts", "vms") and value is not None]
    head += [f"  {host}: {state}" for host, state in side.get("hosts", {}).items()]
    head += [f"  VM {name}" for name in side.get("vms", [])]
    return "".join(line + "\n" for line in head)
