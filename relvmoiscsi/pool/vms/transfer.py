# SPDX-License-Identifier: LGPL-2.1-only
"""Export and import the records of VMs, and read and write raw VDIs, by HTTP.

Each transfer has a task, and the status of the task decides: xapi may close the connection before the last byte. If a
handler fails before it takes the task, the task stays pending forever. Then the HTTP answer decides. A request with its
headers must fit into 1024 bytes, so session and task are cookies, without other headers. No blank may follow the
semicolon between the cookies, because xapi would take the blank for a part of the name.
Source: xen-api ocaml/xapi/{export,import,xapi_http}.ml, ocaml/libs/http-lib/http.ml.
"""

import html
import http.client
import re
import urllib.parse
from typing import List, Mapping, NamedTuple, Tuple

from relvmoiscsi.errors import Refused
from relvmoiscsi.host.xapi.sdk import GONE, reason
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone, Records, passing
from relvmoiscsi.pool.vms import ova_file

#: how long to wait for a task after an HTTP error: perhaps no handler has taken the task
VERDICT_SECONDS = 10.0
_MOST_SAID = 300  #: shown characters of an answer
_MOST_PAGE_BYTES = 1 << 16  #: bytes that are read of an error page


class _Request(NamedTuple):
    label: str  #: of the task
    method: str
    path: str
    query: Mapping[str, str]
    body: bytes = b""


def export_vm(calls: Calls, vm: str, snapshots: bool) -> bytes:
    """Return ova.xml of a VM in any power state. Raises PoolFailure, Refused."""
    query = {"ref": vm, "export_snapshots": "true" if snapshots else "false"}
    request = _Request("relvmoiscsi: records of a VM", "GET", "/export_metadata", query)
    try:
        archive, _ = _transferred(calls, request)
    except PoolFailure as failure:
        if failure.code == "HANDLE_INVALID" and "VDI" in failure.description:
            raise Refused(
                "The VM has a disk whose SR was forgotten. xapi removes such a disk from the VM within a minute. "
                "Repeat the command after that."
            ) from failure
        raise
    return ova_file.unpack(archive)


def import_vm(calls: Calls, document: bytes, label: str, dry_run: bool = False) -> List[str]:
    """Import ova.xml; return the references of the new VMs, none after a dry run. `label` names the task.

    Raises PoolFailure.
    """
    label, query = label + (" (dry run)" if dry_run else ""), {"dry_run": "true"} if dry_run else {}
    body = ova_file.pack(document)
    _, result = _transferred(calls, _Request(label, "PUT", "/import_metadata", query, body))
    return re.findall(r"OpaqueRef:[-0-9a-zA-Z]+", result)


def import_raw(calls: Calls, vdi: str, content: bytes) -> None:
    """Write bytes to the start of a VDI. Raises PoolFailure."""
    label, query = "relvmoiscsi: records of VMs onto a VDI", {"vdi": vdi, "format": "raw"}
    _transferred(calls, _Request(label, "PUT", "/import_raw_vdi", query, content))


def export_raw(calls: Calls, vdi: str) -> bytes:
    """Read all bytes of a small VDI. Raises PoolFailure."""
    label, query = "relvmoiscsi: records of VMs from a VDI", {"vdi": vdi, "format": "raw"}
    content, _ = _transferred(calls, _Request(label, "GET", "/export_raw_vdi", query))
    return content


def under_way(calls: Calls, label: str) -> Records:
    """Return the unfinished tasks with this name. Raises PoolFailure."""
    found = calls.records("task", name_label=label)
    return {ref: task for ref, task in found.items() if task["status"] in ("pending", "cancelling")}


def _transferred(calls: Calls, request: _Request) -> Tuple[bytes, str]:
    """Return (the content of the answer, the text of the task's result). Raises PoolFailure."""
    task, name = str(calls.call("task.create", request.label, "")), f"{request.method} {request.path}"
    status, content = _answered(calls, request, task)
    if status == http.client.OK:
        return content, calls.finish(name, task)
    if _is_redirect(request, status):
        _destroy(calls, task)
        raise PoolFailure(
            f"The master does not have the SR of the VDI attached; the host {content.decode()} has. Plug the SR on the "
            "master (`xe pbd-plug`), then repeat the command."
        )
    try:
        calls.finish(name, task, VERDICT_SECONDS)
    except PoolFailure as failure:
        if failure.code or isinstance(failure, PoolGone):
            raise
    _destroy(calls, task)
    raise PoolFailure(f"The pool at {calls.url} answered {status} to {name}{_said(content)}.")


def _is_redirect(request: _Request, status: int) -> bool:
    """Does the answer name another host, which has the SR of the VDI? The caller may not trust its certificate."""
    return status == http.client.FOUND and "vdi" in request.query


def _destroy(calls: Calls, task: str) -> None:
    """End and destroy a task that no handler has taken.

    xapi destroys only a task that has ended. XenServer before 7.2 cannot end the task, and deletes it after a day.
    """
    with passing("HANDLE_INVALID", "RBAC_PERMISSION_DENIED", "MESSAGE_METHOD_UNKNOWN"):
        calls.call("task.set_status", task, "failure")
        calls.call("task.destroy", task)


def _said(page: bytes) -> str:
    """Return the text of an error page, for the end of a sentence.

    A tag has no `<` inside: otherwise a page of many `<` takes minutes. The text is cut before `unescape`, because a
    number of 5000 digits raises ValueError there.
    """
    words = re.sub("<[^<>]*>", " ", page.decode("utf-8", "replace")).split()
    text = html.unescape(" ".join(words)[: 4 * _MOST_SAID])
    return f": {text[:_MOST_SAID]}".rstrip(".") if text else ""


def _answered(calls: Calls, request: _Request, task: str) -> Tuple[int, bytes]:
    """Return (HTTP status, content; for a redirect the address of the other host). Raises PoolGone."""
    connection = calls.http()
    target = request.path + ("?" + urllib.parse.urlencode(request.query) if request.query else "")
    headers = {"Cookie": f"session_id={calls.session};task_id={task}"}
    try:
        try:
            connection.request(request.method, target, request.body or None, headers)
        except (BrokenPipeError, ConnectionResetError):
            pass  # xapi has all bytes that it needs, or its answer names the error
        with connection.getresponse() as response:
            if request.method == "PUT" and response.status == http.client.OK:
                return response.status, b""  # sent before the import; the connection ends with the import
            if _is_redirect(request, response.status):
                return response.status, urllib.parse.urlsplit(response.getheader("Location", "")).netloc.encode()
            return response.status, response.read(None if response.status == http.client.OK else _MOST_PAGE_BYTES)
    except GONE as error:
        raise PoolGone(
            f"The pool at {calls.url} closed the connection during {request.path}: {reason(error)}."
        ) from error
    finally:
        connection.close()
