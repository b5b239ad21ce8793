# SPDX-License-Identifier: LGPL-2.1-only
"""The steps of a login, in which its generators speak."""

from typing import NamedTuple

from relvmoiscsi.iscsi.keys import Keys

SECURITY, OPERATIONAL, FULL_FEATURE = 0, 1, 3

#: the stage that follows
NEXT = {SECURITY: OPERATIONAL, OPERATIONAL: FULL_FEATURE}


class Request(NamedTuple):
    """What to send, in a stage; `goes_on` asks for the next stage."""

    stage: int
    goes_on: bool
    keys: Keys


class Answer(NamedTuple):
    """What the target said to it, and whether it goes on to the next stage."""

    went_on: bool
    keys: Keys
