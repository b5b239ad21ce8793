# SPDX-License-Identifier: LGPL-2.1-only
"""One call of xapi, from argument to answer: one document on stdout, and always the exit status 0."""

import logging
import sys
from typing import Sequence
from xmlrpc.client import Fault

from relvmoiscsi import __version__
from relvmoiscsi.errors import RelvmoiscsiError, in_state
from relvmoiscsi.host.sm_log import SmLogHandler
from relvmoiscsi.sr_driver import protocol
from relvmoiscsi.sr_driver.codes import GENERIC_EXCEPTION, UNIMPLEMENTED, fault_of, unmistakable
from relvmoiscsi.sr_driver.iscsi import ISCSI
from relvmoiscsi.sr_driver.transport import Transport
from relvmoiscsi.untrusted import xml_safe

log = logging.getLogger(__name__)


def success(transport: Transport) -> Fault:
    """Return the fault that means success: CloudStack needs this failure; a contract since 2015 (docs/host.rst)."""
    sentences = "The SR has been successfully resigned. Use the {} type to attach it"
    return Fault(1, "Error reporting error, unknown key " + sentences.format(transport.sr_type.stock))


def main(argv: Sequence[str], transport: Transport = ISCSI) -> int:
    """Answer the call in `argv`. Return the exit status 0."""
    smlog = SmLogHandler()
    root = logging.getLogger("relvmoiscsi")
    root.setLevel(logging.INFO)
    root.addHandler(smlog)
    stderr = ""
    try:
        response = _answer(argv, smlog, transport)
    except RelvmoiscsiError as error:
        fault = fault_of(error)
        log.error("failed with %d: %s", fault.faultCode, xml_safe(fault.faultString))
        response, stderr = _failure(fault, smlog), unmistakable(getattr(error, "xml", ""))
    except Exception as error:  # a bug: the operator gets the exception, SMlog has the traceback
        log.exception("a bug in relvmoiscsi %s", __version__)
        text = f"A bug in relvmoiscsi {__version__}: {error!r}. SMlog has more."
        response = _failure(Fault(GENERIC_EXCEPTION, text), smlog)
    for stream, text in ((sys.stderr, stderr), (sys.stdout, response)):
        stream.buffer.write(xml_safe(text).encode("utf-8"))  # in every locale: xapi's environment sets none
        stream.flush()
    return 0


def _failure(fault: Fault, smlog: SmLogHandler) -> str:
    return protocol.fault_response(Fault(fault.faultCode, unmistakable(smlog.masked(fault.faultString))))


def _answer(argv: Sequence[str], smlog: SmLogHandler, transport: Transport) -> str:
    """Return the answer of a call that does not fail, or the fault that means success. Raises RelvmoiscsiError."""
    call = protocol.parse_call(protocol.usage(argv))
    smlog.hide(call.session_ref)
    for key, value in call.device_config.items():
        if key.endswith("password"):
            smlog.hide(value)
    if call.command not in ("sr_create", "sr_probe"):
        text = f"The operation {call.command} is not supported by SRs of type {transport.sr_type.name}"
        return _failure(Fault(UNIMPLEMENTED, text), smlog)
    config = transport.parse_config(call.device_config)

    # A call that is refused before this line imports none of this.
    from relvmoiscsi.deadline import NOT_BEGUN, Deadline  # noqa: PLC0415
    from relvmoiscsi.host.settings import deadline_seconds  # noqa: PLC0415
    from relvmoiscsi.host.xapi.api import Xapi  # noqa: PLC0415

    deadline = Deadline(deadline_seconds(), state="" if call.command == "sr_probe" else NOT_BEGUN)
    xapi = Xapi(call.session_ref, subtask_of=call.subtask_of, deadline=deadline)
    if call.command == "sr_probe":
        from relvmoiscsi.sr_driver.probe import sr_probe  # noqa: PLC0415

        return protocol.string_response(sr_probe(call, config, xapi, smlog, deadline, transport))
    from relvmoiscsi.sr_driver.create import sr_create  # noqa: PLC0415

    with in_state(lambda: deadline.disk_state if deadline.has_passed else ""):  # an error's own state goes first
        sr_uuid = sr_create(call, config, xapi, smlog, deadline, transport)
    log.info("the LUN is SR %s now; %.1f seconds", sr_uuid, deadline.seconds - deadline.left)
    return protocol.fault_response(success(transport))
