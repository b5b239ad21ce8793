# SPDX-License-Identifier: LGPL-2.1-only
"""One call of xapi, from argument to answer. Whatever happens, one document goes to stdout and the exit status is 0."""

import logging
import sys
from typing import Sequence, TextIO, Tuple

from relvmoiscsi import __version__
from relvmoiscsi.errors import RelvmoiscsiError, in_state
from relvmoiscsi.host.deadline import NOT_BEGUN, Deadline
from relvmoiscsi.host.settings import deadline_seconds
from relvmoiscsi.host.sm_log import SmLogHandler
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.host.xapi.xml_rpc import xml_safe
from relvmoiscsi.sr_driver import protocol
from relvmoiscsi.sr_driver.codes import (
    GENERIC_EXCEPTION,
    UNIMPLEMENTED,
    Fault,
    fault_of,
    unmistakable,
)
from relvmoiscsi.sr_driver.config import Config, parse_config
from relvmoiscsi.sr_driver.protocol import Call

log = logging.getLogger(__name__)

#: CloudStack takes SR.create as done only if it fails with this; a contract since 2015 (docs/host.rst)
SUCCESS = Fault(
    1,
    "Error reporting error, unknown key The SR has been successfully resigned. Use the lvmoiscsi type to attach it",
)


def main(argv: Sequence[str]) -> int:
    """Answer the call in `argv`; gives the exit status, which is 0."""
    smlog = SmLogHandler()
    root = logging.getLogger("relvmoiscsi")
    root.setLevel(logging.INFO)
    root.addHandler(smlog)
    try:
        response, stderr = _answer(argv, smlog)
    except RelvmoiscsiError as error:
        fault = fault_of(error)
        log.error("failed with %d: %s", fault.code, xml_safe(fault.text))
        response, stderr = _failure(fault.code, fault.text, smlog), unmistakable(getattr(error, "xml", ""))
    except Exception as error:  # a bug: the operator gets its name, SMlog the traceback
        log.exception("a bug in relvmoiscsi %s", __version__)
        text = f"A bug in relvmoiscsi {__version__}: {error!r}. SMlog has more."
        response, stderr = _failure(GENERIC_EXCEPTION, text, smlog), ""
    _write(sys.stderr, stderr)
    _write(sys.stdout, response)
    return 0


def _failure(code: int, text: str, smlog: SmLogHandler) -> str:
    return protocol.fault_response(code, unmistakable(smlog.masked(text)))


def _write(stream: TextIO, text: str) -> None:
    """As UTF-8, whatever the locale: xapi's environment has none."""
    stream.buffer.write(xml_safe(text).encode("utf-8"))
    stream.flush()


def _answer(argv: Sequence[str], smlog: SmLogHandler) -> Tuple[str, str]:
    call = protocol.parse_call(protocol.usage(argv))
    smlog.hide(call.session_ref)
    for key, value in call.device_config.items():
        if key.endswith("password"):
            smlog.hide(value)
    if call.command not in ("sr_create", "sr_probe"):
        text = f"The operation {call.command} is not supported by SRs of type relvmoiscsi"
        return _failure(UNIMPLEMENTED, text, smlog), ""
    config = parse_config(call.device_config)  # a call that it refuses needs nothing else
    deadline = Deadline(deadline_seconds())
    if call.command == "sr_create":
        return _create(call, config, smlog, deadline)
    from relvmoiscsi.sr_driver.probe import sr_probe  # noqa: PLC0415 - each command imports what it needs

    return protocol.string_response(sr_probe(call, config, _xapi(call, deadline), smlog, deadline)), ""


def _create(call: Call, config: Config, smlog: SmLogHandler, deadline: Deadline) -> Tuple[str, str]:
    from relvmoiscsi.sr_driver.create import sr_create  # noqa: PLC0415

    with in_state(lambda: NOT_BEGUN if deadline.has_passed else ""):  # if the LUN was written, that is said already
        sr_uuid = sr_create(call, config, _xapi(call, deadline), smlog, deadline)
    log.info("the LUN is SR %s now; %.1f seconds", sr_uuid, deadline.seconds - deadline.left)
    return protocol.fault_response(SUCCESS.code, SUCCESS.text), SUCCESS.stderr


def _xapi(call: Call, deadline: Deadline) -> Xapi:
    return Xapi(call.session_ref, subtask_of=call.subtask_of, deadline=deadline)
