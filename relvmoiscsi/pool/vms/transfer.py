# SPDX-License-Identifier: LGPL-2.1-only
"""Records of VMs out of the pool and into it, and bytes into a raw VDI: by HTTP, beside the calls.

Each goes with a task, and the task is the verdict: xapi may hang up before the last byte was sent. A request and its
headers must fit into 1024 bytes, so session and task are cookies and nothing else is said there; xapi takes a blank
between the two for a part of the name.
Source: xen-api ocaml/xapi/{export,import,xapi_http}.ml, ocaml/libs/http-lib/http.ml.
"""

import http.client
import re
import urllib.parse
from contextlib import contextmanager
from typing import Iterator, List, Mapping

from relvmoiscsi.pool.calls import GONE, Calls, PoolFailure, PoolGone, reason
from relvmoiscsi.pool.vms import ova_file

_PENDING = ("pending", "cancelling")
_TOLD_BY_THE_TASK = (http.client.OK, http.client.BAD_REQUEST, http.client.INTERNAL_SERVER_ERROR)


def export_vm(calls: Calls, vm: str, snapshots: bool) -> bytes:
    """ova.xml of a VM, in whatever state it is. Raises PoolFailure, Refused."""
    query = {"ref": vm, "export_snapshots": "true" if snapshots else "false"}
    task = _task(calls, "relvmoiscsi: records of a VM")
    with _sent(calls, "GET", "/export_metadata", query, task, b"") as response:
        _verify_accepted(calls, response)
        archive = response.read() if response.status == http.client.OK else b""
    calls.finish("VM.export_metadata", task)
    return ova_file.unpack(archive)


def import_vm(calls: Calls, document: bytes, label: str, dry_run: bool = False) -> List[str]:
    """References of the VMs that were made of ova.xml; none of a dry run. `label` names the task.

    Raises PoolFailure.
    """
    task = _task(calls, label + (" (dry run)" if dry_run else ""))
    query = {"dry_run": "true"} if dry_run else {}
    with _sent(calls, "PUT", "/import_metadata", query, task, ova_file.pack(document)) as response:
        _verify_accepted(calls, response)
    return re.findall(r"OpaqueRef:[-0-9a-zA-Z]+", calls.finish("VM.import_metadata", task))


def import_raw(calls: Calls, vdi: str, content: bytes) -> None:
    """Put bytes at the start of a VDI. Raises PoolFailure."""
    task = _task(calls, "relvmoiscsi: records of VMs onto a VDI")
    with _sent(calls, "PUT", "/import_raw_vdi", {"vdi": vdi, "format": "raw"}, task, content) as response:
        _verify_accepted(calls, response)
    calls.finish("VDI.import_raw", task)


def export_raw(calls: Calls, vdi: str) -> bytes:
    """All of a small VDI. Raises PoolFailure."""
    task = _task(calls, "relvmoiscsi: records of VMs from a VDI")
    with _sent(calls, "GET", "/export_raw_vdi", {"vdi": vdi, "format": "raw"}, task, b"") as response:
        _verify_accepted(calls, response)
        content = response.read()
    calls.finish("VDI.export_raw", task)
    return content


def under_way(calls: Calls, label: str) -> List[str]:
    """Tasks of this name that have not ended. Raises PoolFailure."""
    found = calls.records("task", f'field "name_label" = "{label}"')
    return [ref for ref, task in found.items() if task["status"] in _PENDING]


def pending(calls: Calls, tasks: List[str]) -> List[str]:
    """UUIDs of those that have not ended. Raises PoolFailure."""
    if not tasks:
        return []
    found = calls.records("task")
    return [str(found[ref]["uuid"]) for ref in tasks if ref in found and found[ref]["status"] in _PENDING]


def wait_for(calls: Calls, tasks: List[str], seconds: float) -> None:
    """Until all have ended, or as long as no news of any has come for so many seconds. Raises PoolFailure."""
    token, pending = "", set(tasks)
    while pending:
        batch = calls.call("event.from", ["task/" + task for task in sorted(pending)], token, seconds)
        if not batch["events"]:
            return
        for event in batch["events"]:
            if event.get("snapshot", {}).get("status") not in _PENDING:
                pending.discard(event["ref"])
        token = batch["token"]


def _task(calls: Calls, label: str) -> str:
    return str(calls.call("task.create", label, ""))


@contextmanager
def _sent(
    calls: Calls, method: str, path: str, query: Mapping[str, str], task: str, body: bytes
) -> Iterator[http.client.HTTPResponse]:
    """The answer to a request, to be read within the block. Raises PoolGone."""
    connection = calls.http()
    target = path + ("?" + urllib.parse.urlencode(query) if query else "")
    headers = {"Cookie": f"session_id={calls.session};task_id={task}"}
    try:
        try:
            connection.request(method, target, body or None, headers)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has all that it wanted, or the answer says what it did not want
        with connection.getresponse() as response:
            yield response
    except GONE as error:
        raise PoolGone(f"The pool at {calls.url} went away during {path}: {reason(error)}.") from error
    finally:
        connection.close()


def _verify_accepted(calls: Calls, response: http.client.HTTPResponse) -> None:
    """Raises PoolFailure for a request that no task will tell of: one that is sent elsewhere, or not understood."""
    if response.status not in _TOLD_BY_THE_TASK:
        raise PoolFailure(f"The pool at {calls.url} answers {response.status} where VMs are exported and imported.")
