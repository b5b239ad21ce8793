# SPDX-License-Identifier: LGPL-2.1-only
"""One call of xapi, from argument to answer: one document on stdout, and always the exit status 0."""

import logging
import sys
from typing import Sequence, TextIO, Tuple

from relvmoiscsi import __version__
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, RelvmoiscsiError, in_state
from relvmoiscsi.host import terminated
from relvmoiscsi.host.sm_log import SmLogHandler
from relvmoiscsi.sr_driver import protocol
from relvmoiscsi.sr_driver.codes import (
    GENERIC_EXCEPTION,
    UNIMPLEMENTED,
    Fault,
    fault_of,
    unmistakable,
)
from relvmoiscsi.sr_driver.iscsi import ISCSI
from relvmoiscsi.sr_driver.transport import CallRequest, Transport
from relvmoiscsi.untrusted import xml_safe

log = logging.getLogger(__name__)


def success(transport: Transport) -> Fault:
    """Return the fault that means success: CloudStack needs this failure; a contract since 2015 (docs/host.rst)."""
    sentences = "The SR has been successfully resigned. Use the {} type to attach it"
    return Fault(1, "Error reporting error, unknown key " + sentences.format(transport.stock_type))


def main(argv: Sequence[str], transport: Transport = ISCSI) -> int:
    """Answer the call in `argv`. Return the exit status 0."""
    smlog = SmLogHandler()
    root = logging.getLogger("relvmoiscsi")
    root.setLevel(logging.INFO)
    root.addHandler(smlog)
    try:
        with terminated.heeded():
            response, stderr = _answer(argv, smlog, transport)
    except terminated.Terminated:
        response, stderr = _refusal(_terminated_error(NOTHING_WRITTEN), smlog)
    except RelvmoiscsiError as error:
        response, stderr = _refusal(error, smlog)
    except Exception as error:  # a bug: the operator gets the exception, SMlog has the traceback
        log.exception("a bug in relvmoiscsi %s", __version__)
        text = f"A bug in relvmoiscsi {__version__}: {error!r}. SMlog has more."
        response, stderr = _failure(GENERIC_EXCEPTION, text, smlog), ""
    _write(sys.stderr, stderr)
    _write(sys.stdout, response)
    return 0


def _terminated_error(state: str) -> RelvmoiscsiError:
    problem = "SIGTERM ended this call: `kill` or the restart of a service sent the signal."
    return Refused(problem, "SRUnavailable").in_state(state)


def _refusal(error: RelvmoiscsiError, smlog: SmLogHandler) -> Tuple[str, str]:
    fault = fault_of(error)
    log.error("failed with %d: %s", fault.code, xml_safe(fault.text))
    return _failure(fault.code, fault.text, smlog), unmistakable(getattr(error, "xml", ""))


def _failure(code: int, text: str, smlog: SmLogHandler) -> str:
    return protocol.fault_response(code, unmistakable(smlog.masked(text)))


def _write(stream: TextIO, text: str) -> None:
    """Write UTF-8 in every locale: xapi's environment sets no locale."""
    stream.buffer.write(xml_safe(text).encode("utf-8"))
    stream.flush()


def _answer(argv: Sequence[str], smlog: SmLogHandler, transport: Transport) -> Tuple[str, str]:
    call = protocol.parse_call(protocol.usage(argv))
    smlog.hide(call.session_ref)
    for key, value in call.device_config.items():
        if key.endswith("password"):
            smlog.hide(value)
    if call.command not in ("sr_create", "sr_probe"):
        text = f"The operation {call.command} is not supported by SRs of type {transport.sr_type}"
        return _failure(UNIMPLEMENTED, text, smlog), ""
    config = transport.parse_config(call.device_config)
    return _worked_on(call, config, smlog, transport)


def _worked_on(call: protocol.Call, config: CallRequest, smlog: SmLogHandler, transport: Transport) -> Tuple[str, str]:
    """Return the answer to a call with a valid device-config. A call that is refused earlier imports none of this."""
    from relvmoiscsi.deadline import NOT_BEGUN, Deadline  # noqa: PLC0415
    from relvmoiscsi.host.settings import deadline_seconds  # noqa: PLC0415
    from relvmoiscsi.host.xapi.api import Xapi  # noqa: PLC0415

    state = "" if call.command == "sr_probe" else NOT_BEGUN
    try:
        deadline = Deadline(deadline_seconds(), state=state)
        xapi = Xapi(call.session_ref, subtask_of=call.subtask_of, deadline=deadline)
        if call.command == "sr_probe":
            from relvmoiscsi.sr_driver.probe import sr_probe  # noqa: PLC0415

            return protocol.string_response(sr_probe(call, config, xapi, smlog, deadline, transport)), ""
        from relvmoiscsi.sr_driver.create import sr_create  # noqa: PLC0415

        with in_state(lambda: deadline.disk_state if deadline.has_passed else ""):  # an error's own state goes first
            sr_uuid = sr_create(call, config, xapi, smlog, deadline, transport)
    except terminated.Terminated as end:
        raise _terminated_error(state or NOTHING_WRITTEN) from end
    log.info("the LUN is SR %s now; %.1f seconds", sr_uuid, deadline.seconds - deadline.left)
    done = success(transport)
    return protocol.fault_response(done.code, done.text), done.stderr
