# SPDX-License-Identifier: LGPL-2.1-only
"""What all modules have in common: the options that name a pool, a session, errors as Ansible wants them."""

from __future__ import annotations

import traceback
from contextlib import contextmanager

from ansible.module_utils.basic import env_fallback, missing_required_lib

try:
    from relvmoiscsi.errors import NotFound, RelvmoiscsiError, UsageError
    from relvmoiscsi.pool import attach, discard, jobs, luns, records, secrets
    from relvmoiscsi.pool.connection import Where, connect
    from relvmoiscsi.pool.vms import choice, clone, home, inventory, keep, rescue, restore, saved
    from relvmoiscsi.pool.vms import discard as made_vms

    IMPORT_ERROR = None
except ImportError:
    IMPORT_ERROR = traceback.format_exc()

__all__ = [
    "NotFound",
    "attach",
    "choice",
    "clone",
    "discard",
    "home",
    "inventory",
    "jobs",
    "keep",
    "luns",
    "made_vms",
    "records",
    "rescue",
    "restore",
    "saved",
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

PORTAL_TOGETHER = [("chap_user", "chap_password")]
PORTAL_REQUIRED_BY = {"chap_user": "target", "iqn": "target", "port": "target"}


def play(module, work):
    """Do `work(module, calls, pool)` in a session, and end the module with what it gives: a dict for exit_json.

    A dict with a true `failed` ends it as a failure, and so does an error of relvmoiscsi, whose sentence is the `msg`.
    """
    if IMPORT_ERROR is not None:
        module.fail_json(msg=missing_required_lib("relvmoiscsi[pool]"), exception=IMPORT_ERROR)
    result = {}
    try:
        _check_jobs(module.params)
        with connect(where(module.params)) as calls:
            result = work(module, calls, records.read(calls))
    except RelvmoiscsiError as error:
        module.fail_json(msg=str(error))
    if result.pop("failed", False):
        module.fail_json(**result)
    module.exit_json(**result)


def where(params):
    """Which pool, and as whom. "localhost" is no socket here, as in other modules: nothing runs in dom0."""
    return Where(
        params["hostname"],
        params["username"],
        params["password"],
        params["ca_path"],
        not params["validate_certs"],
    )


def _check_jobs(params):
    if params.get("jobs", 1) < 1:
        raise UsageError(f"jobs {params['jobs']}: at least one at a time.")


@contextmanager
def portals(module, calls, pool):
    """Where LUNs are to be looked for; the CHAP of the options is in a Secret of the pool for as long as this lasts."""
    params = module.params
    known = pool.portals()
    wish = records.Portal(params["target"] or "", params["iqn"] or "", params["port"] or "")
    asked = [wish.as_known(known)] if params["target"] else known
    if not asked:
        raise UsageError("No SR of the pool tells a target: give target.")
    with secrets.chap(calls, asked, params["chap_user"] or "", params["chap_password"] or "", module.warn) as ready:
        yield ready


@contextmanager
def seen(module, calls, pool):
    """Every LUN that the pool sees, as the options say; for as long as this lasts, with a CHAP that is good."""
    if module.params["hba"]:
        if module.params["target"]:
            raise UsageError("hba looks at what the master has, and goes with no target.")
        yield luns.find_on_master(calls, pool)
        return
    with portals(module, calls, pool) as places:
        yield luns.find(calls, pool, places, module.params["jobs"])


def summary(what, outcomes):
    """A sentence on those of (name, error text) pairs that have an error; "" without any."""
    bad = [f"{name}: {error}" for name, error in outcomes if error]
    return f"{len(bad)} of {len(outcomes)} {what} failed. " + " ".join(bad) if bad else ""
