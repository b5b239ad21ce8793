# SPDX-License-Identifier: LGPL-2.1-only
"""VHD chains of an SR: what a guest reads through them, programs that work on them, and judges of what becomes of them.

    flat          what a guest reads; written for judging, shares no code with the rest
"""

from .flat import (  # noqa: F401  (what tests want of the reader is to be had from here)
    BLOCK,
    SECTOR,
    SECTORS,
    ChainError,
    Flat,
    Link,
    digest_of_sectors,
    flatten,
    footer_uuid,
    guest_bytes,
    links,
)
