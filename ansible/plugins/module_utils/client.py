# SPDX-License-Identifier: LGPL-2.1-only
"""What all modules have in common: the options that name a pool, a session, errors as Ansible wants them."""

from __future__ import annotations

import re
import sys
import traceback

from ansible.module_utils.basic import env_fallback

try:
    from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError, UsageError
    from relvmoiscsi.pool import attach, attach_plan, jobs, luns, records
    from relvmoiscsi.pool.connection import Where, connect
    from relvmoiscsi.pool.vms import choice, clone, inventory, move_home, rescue, restore, restore_journal, save_vms
    from relvmoiscsi.pool.vms import discard as made_vms
    from relvmoiscsi.pool.vms import forget as discard

    IMPORT_ERROR = None
except ImportError:
    IMPORT_ERROR = traceback.format_exc()

__all__ = [
    "NotFound",
    "Refused",
    "RelvmoiscsiError",
    "UsageError",
    "attach",
    "attach_plan",
    "choice",
    "clone",
    "discard",
    "inventory",
    "jobs",
    "luns",
    "made_vms",
    "move_home",
    "records",
    "rescue",
    "restore",
    "restore_journal",
    "save_vms",
]

CONNECTION = {
    "hostname": {
        "type": "str",
        "required": True,
        "aliases": ["host", "pool"],
        "fallback": (env_fallback, ["XENSERVER_HOST"]),
    },
    "username": {
        "type": "str",
        "default": "root",
        "aliases": ["admin", "user"],
        "fallback": (env_fallback, ["XENSERVER_USER"]),
    },
    "password": {
        "type": "str",
        "required": True,
        "no_log": True,
        "aliases": ["pass", "pwd"],
        "fallback": (env_fallback, ["XENSERVER_PASSWORD"]),
    },
    "validate_certs": {"type": "bool", "default": True, "fallback": (env_fallback, ["XENSERVER_VALIDATE_CERTS"])},
    "ca_path": {"type": "path"},
}

PORTAL = {
    "target": {"type": "str"},
    "iqn": {"type": "str"},
    "port": {"type": "str"},
    "hba": {"type": "bool", "default": False},
    "chap_user": {"type": "str"},
    "chap_password": {"type": "str", "no_log": True},
    "jobs": {"type": "int", "default": 10},
}

#: what is made for one purpose, and is to be found again by it
MARK = {"mark": {"type": "str"}}

PORTAL_TOGETHER = [("chap_user", "chap_password")]
PORTAL_REQUIRED_BY = {"chap_user": "target", "iqn": "target", "port": "target"}


#: options by which something is named: an empty one is a variable that has no value, and never means "any"
_NAMES = ("sr", "vm", "vdi", "isolated", "name", "mark", "srs", "clones_of", "scsi_ids", "vms", "disks", "networks")

#: options of the command, and what says the same here; others have the same name
_SAID = {
    "--undo": "state: undone",
    "--home": "state: home",
    "--done": "state: absent",
    "--ca": "ca_path",
    "--network": "networks",
    "--rw": "writable",
    "--insecure": "validate_certs: false",
}


def play(module, work):
    """Do `work(module, calls, pool)` in a session, and end the module with what it gives: a dict for exit_json.

    A dict with a true `failed` ends it as a failure, and so does an error of relvmoiscsi, whose sentence is the `msg`.
    """
    if IMPORT_ERROR is not None:
        module.fail_json(msg=NOT_INSTALLED, exception=IMPORT_ERROR)
    result = {}
    try:
        verify(module.params)
        with connect(where(module.params)) as calls:
            result = work(module, calls, records.read(calls))
    except RelvmoiscsiError as error:
        module.fail_json(msg=in_words_of(module.params, str(error)))
    for row in result.get("luns", result.get("vms", [])):
        if row.get("error"):
            row["error"] = in_words_of(module.params, row["error"])
    if result.pop("failed", False):
        module.fail_json(**{**result, "msg": in_words_of(module.params, result["msg"])})
    module.exit_json(**result)


NOT_INSTALLED = (
    f"The Python package relvmoiscsi, with XenAPI, is not installed for {sys.executable}. Install it there from "
    "relvmoiscsi's sources (`pip install '.[pool]'`); it is on no package index."
)


def in_words_of(params, text):
    """A sentence of the command, with options that this module has in the place of the command's."""

    def said(option):
        name = option[2:].replace("-", "_")
        return name if name in params else _SAID.get(option, option)

    def one(match):
        found = match.group(0)
        if not found.startswith("`"):
            return said(found)
        return f"`{said(found[1:-1])}`" if found.startswith("`--") and " " not in found else found

    return re.sub(r"`[^`]*`|(?<![\w-])--[a-z]+(?:-[a-z]+)*", one, text)


def verify(params):
    """Raises UsageError for options that mean nothing."""
    if params.get("jobs", 1) < 1:
        raise UsageError(f"jobs {params['jobs']}: at least one at a time.")
    for key in _NAMES:
        value = params.get(key)
        words = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if value is not None and any(word is None or not str(word).strip() for word in words):
            raise UsageError(f"{key} is empty, or something in it is: nothing is named by that.")
    if "hba" in params:
        source(params).verify()
    if params.get("mark") and not re.fullmatch(r"[A-Za-z0-9_.-]{1,60}", params["mark"]):
        raise UsageError(f"mark {params['mark']!r}: letters, digits, and any of -_. are what it may have, 60 at most.")


def run_of(params):
    """The id of this run, with the mark, if there is one, between colons: what is made bears it. It begins with the
    time, by which runs are older or younger than others.
    """
    return records.run_id() + (f":{params['mark']}:" if params.get("mark") else "")


def is_marked(params, record):
    """Was this SR, or VM, made with the mark of the options? Without one everything is."""
    if not params.get("mark"):
        return True
    return record["other_config"].get(records.RUN, "").split(":")[1:2] == [params["mark"]]


def where(params):
    """Which pool, and as whom. "localhost" is no socket here, as in other modules: nothing runs in dom0."""
    return Where(
        params["hostname"],
        params["username"],
        params["password"],
        params["ca_path"],
        not params["validate_certs"],
    )


def source(params):
    """Where LUNs are to be looked for."""
    texts = (params[name] or "" for name in ("target", "iqn", "port", "chap_user", "chap_password"))
    return luns.Source(*texts, is_hba=params["hba"], at_once=params["jobs"])


def seen(module, calls, pool):
    """A block that has every LUN which the pool sees, as the options say."""
    return luns.seen(calls, pool, source(module.params), module.warn)


def as_if_off(vms):
    """Records of VMs, as those that run will be when they are turned off."""
    return {ref: {**vm, "power_state": "Halted"} for ref, vm in vms.items()}


def turn_off(calls, vm):
    """Hard, unless it is off. Raises PoolFailure."""
    if calls.call("VM.get_power_state", vm) != "Halted":
        calls.run("VM.hard_shutdown", vm)


def summary(what, outcomes):
    """A sentence on those of (name, error text) pairs that have an error; "" without any."""
    bad = [f"{name}: {error}" for name, error in outcomes if error]
    return f"{len(bad)} of {len(outcomes)} {what} failed. " + " ".join(bad) if bad else ""
