# SPDX-License-Identifier: LGPL-2.1-only
"""Common code of all modules: the options for a pool, a session, errors in Ansible's form."""

from __future__ import annotations

import re
import sys
import traceback

from ansible.module_utils.basic import env_fallback

try:
    from relvmoiscsi.errors import RelvmoiscsiError, UsageError
    from relvmoiscsi.pool import lun_search, records
    from relvmoiscsi.pool.connection import Where, connect
    from relvmoiscsi.scsi_id_text import typed_scsi_id
    from relvmoiscsi.wording import printable, printable_lines

    IMPORT_ERROR = None
except ImportError:
    IMPORT_ERROR = traceback.format_exc()

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

#: the option for a mark on new objects, by which a later task finds these objects
MARK = {"mark": {"type": "str"}}

PORTAL_TOGETHER = [("chap_user", "chap_password")]
PORTAL_REQUIRED_BY = {"chap_user": "target", "iqn": "target", "port": "target"}


#: options that name an object: an empty value comes from an empty variable, and never means "any"
_NAMES = ("sr", "vm", "vdi", "isolated", "name", "mark", "srs", "clones_of", "scsi_ids", "vms", "disks", "networks")

#: options of the command, and the module's options for the same purpose; other options have equal names
_SAID = {
    "--undo": "state: undone",
    "--home": "state: home",
    "--ca": "ca_path",
    "--network": "networks",
    "--rw": "writable",
    "--insecure": "validate_certs: false",
}


def play(module, work):
    """Call `work(module, calls, pool)` in a session, and end the module with the returned dict for exit_json.

    A dict with a true `failed` ends the module as a failure. So does an error of relvmoiscsi, whose text is the `msg`.
    """
    if IMPORT_ERROR is not None:
        module.fail_json(msg=NOT_INSTALLED, exception=IMPORT_ERROR)
    result, warn = {}, module.warn
    module.warn = lambda text: warn(printable(text))
    try:
        verify(module.params)
        if module.params.get("scsi_ids"):
            module.params["scsi_ids"] = [typed_scsi_id(text) for text in module.params["scsi_ids"]]
        with connect(where(module.params)) as calls:
            try:
                result = work(module, calls, records.read(calls))
            finally:
                for note in calls.notes:
                    module.warn(note)
    except RelvmoiscsiError as error:
        module.fail_json(msg=printable(in_words_of(module.params, str(error))))
    for row in result.get("luns", result.get("vms", [])):
        if row.get("problem"):
            row["problem"] = in_words_of(module.params, row["problem"])
    if result.pop("failed", False):
        module.fail_json(**shown({**result, "msg": in_words_of(module.params, result["msg"])}))
    module.exit_json(**shown(result))


def shown(value, lines=False):
    """Return a result with escapes for control characters in all its texts: Ansible prints them as they are.

    `lines`: texts are lines, as in `diff`, whose names have no line feeds (`line`).
    """
    if isinstance(value, dict):
        return {shown(key): shown(each, lines or key == "diff") for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(each, lines) for each in value]
    if isinstance(value, str):
        return printable_lines(value) if lines else printable(value)
    return value


def line(text):
    """Return a line of a diff: a name of the pool may have line feeds, and becomes no second line."""
    return printable(text) + "\n"


NOT_INSTALLED = (
    f"The Python package relvmoiscsi is not installed for {sys.executable}. Install it from "
    "relvmoiscsi's sources (`pip install .`). No package index has it."
)


def in_words_of(params, text):
    """Return a sentence of the command, with the module's options in place of the command's options."""

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
    """Raises UsageError for invalid options."""
    if params.get("jobs", 1) < 1:
        raise UsageError(f"jobs {params['jobs']}: give at least one.")
    for key in _NAMES:
        value = params.get(key)
        words = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if value is not None and any(word is None or not str(word).strip() for word in words):
            raise UsageError(f"{key} is empty or contains an empty value. Give names, or leave the option out.")
    if "hba" in params:
        source(params).verify()
    if params.get("mark") and not re.fullmatch(r"[A-Za-z0-9_.-]{1,60}", params["mark"]):
        raise UsageError(f"mark {params['mark']!r}: give at most 60 letters, digits, and the characters -_.")


def mark_of(params):
    """Return the mark of the options; "" without a mark."""
    return params["mark"] or ""


def where(params):
    """Return the address and the credentials. Unlike for the command, "localhost" is no socket: modules avoid dom0."""
    return Where(
        params["hostname"],
        params["username"],
        params["password"],
        params["ca_path"],
        not params["validate_certs"],
    )


def source(params):
    """Return the source of LUNs."""
    texts = (params[name] or "" for name in ("target", "iqn", "port", "chap_user", "chap_password"))
    return lun_search.LunSearch(*texts, is_hba=params["hba"], at_once=params["jobs"])


def seen(module, calls, pool):
    """Yield every LUN of the source, for the block."""
    return lun_search.seen(calls, pool, source(module.params), module.warn)


def summary(what, outcomes):
    """Return a sentence on the (name, error text) pairs with an error; "" without an error."""
    bad = [f"{name}: {error}" for name, error in outcomes if error]
    return f"{len(bad)} of {len(outcomes)} {what} failed. " + " ".join(bad) if bad else ""


def ended(rows, key, what, named, text_of=str):
    """Return the dict for exit_json, or for fail_json with `failed`, from rows.

    Each row has `changed`, `problem`, `before` and `after`. `named` returns the name of a row's object. `text_of`
    returns the lines for --diff from `before` or `after`.
    """
    told = [{name: value for name, value in row.items() if name not in ("before", "after")} for row in rows]
    diff = {side: "".join(text_of(row[side]) for row in rows) for side in ("before", "after")}
    msg = summary(what, [(named(row), row["problem"]) for row in rows])
    result = {"changed": any(row["changed"] for row in rows), key: told, "diff": diff}
    return {**result, "failed": True, "msg": msg} if msg else result
