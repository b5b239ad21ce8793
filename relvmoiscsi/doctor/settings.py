# SPDX-License-Identifier: LGPL-2.1-only
"""What the administrator has set for calls of the SR driver on a host."""

from relvmoiscsi.doctor import host_root
from relvmoiscsi.doctor.finding import Finding, ok, problem, unknown
from relvmoiscsi.errors import Refused
from relvmoiscsi.host.settings import ONE, settings_in
from relvmoiscsi.host.this_host import Host

CONFIG = "/etc/relvmoiscsi.conf"
#: what the hosts of a pool are compared by
KEEPS_ALL = "The SR driver keeps every VDI of a LUN."
MAKES_ONE = "The SR driver makes each LUN one with a single VDI."


def examine_vdis(host: Host) -> Finding:
    """Whether a LUN becomes one with a single VDI, if the call does not say."""
    try:
        text = host_root.read(host, CONFIG).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        text = ""
    except OSError as error:
        return unknown(
            "vdis",
            f"{CONFIG} cannot be read: {error.strerror}.",
            "Run `relvmoiscsi doctor` as root for a complete check.",
        )
    try:
        wanted = settings_in(text, CONFIG).vdis
    except Refused as error:
        return problem("vdis", error.message, "Correct that line, then check the result with `relvmoiscsi settings`.")
    return ok("vdis", MAKES_ONE if wanted == ONE else KEEPS_ALL)
