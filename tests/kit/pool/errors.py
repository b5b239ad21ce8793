# SPDX-License-Identifier: LGPL-2.1-only
"""The exceptions of the simulator: an error as a XenAPI client gets it, and one that is also the client's mistake."""


class XenError(Exception):
    """A XenAPI error: its code and parameters, all strings. `description` is the ErrorDescription on the wire."""

    def __init__(self, code, *params):
        super().__init__(code, *params)
        self.description = [code] + [str(param) for param in params]


class Mistake(XenError):
    """The same, of what no client of a real xapi may ask for: an unknown call, field or role, or the wrong arguments.

    `Pool.stop` raises it once more, so that no test passes by it.
    """


class Silent(Exception):
    """No answer comes before the client gives up."""
