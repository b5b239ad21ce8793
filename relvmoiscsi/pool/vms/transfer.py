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
from typing import Dict, List, Mapping, Optional, Tuple

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import Refused
from relvmoiscsi.host.xapi.rpc import GONE
from relvmoiscsi.pool import marks
from relvmoiscsi.pool.calls import Calls, PoolFailure, Records, passing
from relvmoiscsi.pool.vms import ova_file
from relvmoiscsi.pool.vms.owners import Copy

#: key of task.other_config, for XenCenter: the object that a task works on. It takes the role vm-operator, where each
#: user of the pool can make a task, and write any other key of the task; xen-api ocaml/idl/datamodel.ml
_APPLIES_TO = "applies_to"
#: begin of the name of the task of an import; the UUID of the copy follows
_IMPORT = "relvmoiscsi: import of a VM onto the copy "
#: how long to wait for a task after an HTTP error: perhaps no handler has taken the task
VERDICT_SECONDS = 10.0
#: how long a task may take after the last byte
END_SECONDS = 600.0
_MOST_SAID = 300  #: shown characters of an answer
_HOST_OF_URL = re.compile("[a-z]+://([^/?#]+).*", re.DOTALL)  #: a redirect; any other text is shown as it is
_MOST_PAGE_BYTES = 1 << 16  #: bytes that are read of an error page


def export_vm(calls: Calls, vm: str, snapshots: bool) -> bytes:
    """Return ova.xml of a VM in any power state. Raises PoolFailure, Refused."""
    query = {"ref": vm, "export_snapshots": "true" if snapshots else "false"}
    try:
        archive, _ = _transferred(calls, "relvmoiscsi: records of a VM", "GET", "/export_metadata", query)
    except PoolFailure as failure:
        if failure.code == "HANDLE_INVALID" and "VDI" in failure.description:
            raise Refused(
                "The VM has a disk whose SR was forgotten. xapi removes such a disk from the VM within a minute."
            ).advising("Repeat the command after that.") from failure
        raise
    return ova_file.unpack(archive)


def import_vm(calls: Calls, document: bytes, copy: Copy, vm: str, dry_run: bool = False) -> List[str]:
    """Import ova.xml; return the references of the new VMs, none after a dry run.

    The disks of the VMs are on the copy. `vm` is the UUID of the original VM: `under_way` gives it. Raises PoolFailure.
    """
    label, query = _IMPORT + copy.uuid + (" (dry run)" if dry_run else ""), {"dry_run": "true"} if dry_run else {}
    _, result = _transferred(calls, label, "PUT", "/import_metadata", query, ova_file.pack(document), copy.ref, vm)
    return re.findall(r"OpaqueRef:[-0-9a-zA-Z]+", result)


def import_raw(calls: Calls, vdi: str, content: bytes) -> None:
    """Write bytes to the start of a VDI. Raises PoolFailure."""
    label, query = "relvmoiscsi: records of VMs onto a VDI", {"vdi": vdi, "format": "raw"}
    _transferred(calls, label, "PUT", "/import_raw_vdi", query, content)


def export_raw(calls: Calls, vdi: str) -> bytes:
    """Read all bytes of a small VDI. Raises PoolFailure."""
    label, query = "relvmoiscsi: records of VMs from a VDI", {"vdi": vdi, "format": "raw"}
    content, _ = _transferred(calls, label, "GET", "/export_raw_vdi", query)
    return content


def under_way(calls: Calls, copy: Copy) -> Dict[str, Records]:
    """Return the unfinished tasks of imports onto a copy, by the UUID of the original VM. Raises PoolFailure.

    A user who may only read can make any number of tasks with this name, and with any other key. So the pool compares
    the key as well: `import_vm` gives a task no other key, and the pool keeps a map as this text. A vm-operator can
    make such tasks, so a run asks once, and not for each VM. Source: xen-api ocaml/database/string_marshall_helper.ml.
    """
    found: Dict[str, Records] = {}
    of_imports = {"name_label": _IMPORT + copy.uuid, "other_config": f"(('{_APPLIES_TO}' '{copy.ref}'))"}
    for ref, task in calls.records("task", **of_imports).items():
        if task["status"] in ("pending", "cancelling"):
            found.setdefault(task["name_description"], {})[ref] = task
    return found


def _transferred(
    calls: Calls, label: str, method: str, path: str, query: Mapping[str, str], body: bytes = b"", sr: str = "",
    vm: str = "",
) -> Tuple[bytes, str]:  # fmt: skip
    """Return (the content of the answer, the text of the result of the task with this label). Raises PoolFailure.

    With `sr`, `under_way` finds the task, and `vm` in its description.
    """
    task, name = str(calls.call("task.create", label, vm)), f"{method} {path}"
    if sr:
        marks.add(calls, "task", task, _APPLIES_TO, sr)
    status, content, other = _answered(calls, method, path, query, body, task)
    if status == http.client.OK:
        return content, calls.wait(name, task, Deadline(END_SECONDS))
    if other is not None:  # the caller may not trust the certificate of the other host
        _destroy(calls, task)
        asked = f"the host at {calls.url}"  # the master; the own host where the command runs in dom0
        raise PoolFailure(f"The SR of the VDI is not attached to {asked}; {other} has it.").advising(
            f"Plug the SR on {asked}, then repeat the command."
        )
    try:
        calls.wait(name, task, Deadline(VERDICT_SECONDS))
    except PoolFailure as failure:
        if failure.code:
            raise
    _destroy(calls, task)
    # A tag has no `<` inside: otherwise a page of many `<` takes minutes. The text is cut before `unescape`, because a
    # number of 5000 digits raises ValueError there.
    words = re.sub("<[^<>]*>", " ", content.decode("utf-8", "replace")).split()
    text = html.unescape(" ".join(words)[: 4 * _MOST_SAID])[:_MOST_SAID]
    said = f": {text}".rstrip(".") if text else ""
    raise PoolFailure(f"The pool at {calls.url} answered {status} to {name}{said}.")


def _destroy(calls: Calls, task: str) -> None:
    """End and destroy a task that no handler has taken.

    xapi destroys only a task that has ended. XenServer before 7.2 cannot end the task, and deletes it after a day.
    """
    with passing("HANDLE_INVALID", "RBAC_PERMISSION_DENIED", "MESSAGE_METHOD_UNKNOWN"):
        calls.call("task.set_status", task, "failure")
        calls.call("task.destroy", task)


def _answered(
    calls: Calls, method: str, path: str, query: Mapping[str, str], body: bytes, task: str
) -> Tuple[int, bytes, Optional[str]]:
    """Return (HTTP status, content, the other host that has the SR of the VDI). Raises PoolGone."""
    connection = calls.http()
    target = path + ("?" + urllib.parse.urlencode(query) if query else "")
    headers = {"Cookie": f"session_id={calls.session};task_id={task}"}
    try:
        connection.connect()  # not in `request`: after a reset in the handshake of TLS, there is no answer to read
        try:
            connection.request(method, target, body or None, headers)
        except (BrokenPipeError, ConnectionResetError):
            pass  # xapi has all bytes that it needs, or its answer names the error
        with connection.getresponse() as response:
            status = response.status
            if method == "PUT" and status == http.client.OK:
                return status, b"", None  # sent before the import; the connection ends with the import
            if status == http.client.FOUND and "vdi" in query:
                host = _HOST_OF_URL.sub(r"\1", response.getheader("Location", "")[:_MOST_SAID])
                return status, b"", f"the host {host}" if host else "another host"
            return status, response.read(None if status == http.client.OK else _MOST_PAGE_BYTES), None
    except GONE as error:
        raise calls.gone(path, error) from error
    finally:
        connection.close()
