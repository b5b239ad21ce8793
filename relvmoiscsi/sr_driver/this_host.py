# SPDX-License-Identifier: LGPL-2.1-only
"""The host that a call runs on, as xapi has it."""

from typing import Any, Dict

from relvmoiscsi.host.xapi.api import Xapi, XapiFailure
from relvmoiscsi.sr_driver.protocol import Call


def record_of_host(call: Call, xapi: Xapi) -> Dict[str, Any]:
    """Its record. Raises XapiFailure."""
    try:
        found: Dict[str, Any] = xapi.call("host.get_record", call.host_ref)
        return found
    except XapiFailure as failure:
        failure.sm_key = "APILocalhost"
        raise
