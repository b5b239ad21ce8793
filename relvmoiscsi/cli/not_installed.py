# SPDX-License-Identifier: LGPL-2.1-only
"""In the place of a command that is in a package of its own: `relvmoiscsi pool`, in dom0."""

import argparse
from typing import NoReturn

from relvmoiscsi import __version__
from relvmoiscsi.cli.output import Maker
from relvmoiscsi.errors import NotFound


def add_command(make: Maker) -> None:
    """A command that takes whatever words there are, and says what to install."""
    sub = make(_not_here, "It is not installed.")
    sub.prefix_chars = "\0"  # options are words like all others
    sub.add_argument("words", nargs="*", help=argparse.SUPPRESS)


def _not_here(_arguments: argparse.Namespace) -> NoReturn:
    raise NotFound(
        "The command `relvmoiscsi pool` is not installed here. Install its package, which is built beside that of "
        f"relvmoiscsi: `yum install ./relvmoiscsi-pool-{__version__}-1.noarch.rpm`. It may run on any other machine as "
        "well: `pip install .[pool]` in a clone of its repository."
    )
