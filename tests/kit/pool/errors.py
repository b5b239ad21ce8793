# SPDX-License-Identifier: LGPL-2.1-only
"""The one exception of the simulator: an error as a XenAPI client gets it."""


class XenError(Exception):
    """A XenAPI error: its code and parameters, all strings. `description` is the ErrorDescription on the wire."""

    def __init__(self, code, *params):
        super().__init__(code, *params)
        self.description = [code] + [str(param) for param in params]
