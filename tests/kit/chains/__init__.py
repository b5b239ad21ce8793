# SPDX-License-Identifier: LGPL-2.1-only
"""VHD chains of an SR: what a guest reads through them, programs that work on them, and judges of what becomes of them.

    flat          what a guest reads; written for judging, shares no code with the rest
    lun           the volumes of an SR, to read from and write to, to make, grow and shrink
    libvhd        a VHD in a volume: its parts, where the next block goes, how vhd-util writes
    tapdisk       what tapdisk writes when a guest does
    sm            how large the storage manager makes volumes; snapshot, coalesce, grow
    guest         what a guest has written, in a flat copy; writes by chance
    random_chain  SRs with one live VDI on a chain of VHDs, by chance, and what must be read through each volume
    judge         is a VHD that was made of a chain as good as one that tapdisk wrote, for guest and storage manager?

None of them uses the engine or its formats, so each can judge them:

    chain = random_chain(seed)
    device = chain.disk.copy()
    ids = engine.resignature(device, engine.prepare(device, entropy)).ids
    found = judge(device, renamed(chain.leaf, ids.uuids), chain.flats[chain.leaf])
    assert found.dense
"""

from .flat import (  # noqa: F401  (what tests want of the reader is to be had from here)
    BLOCK,
    SECTOR,
    SECTORS,
    ChainError,
    Flat,
    digest,
    digest_of_sectors,
    flatten,
    guest_bytes,
    links,
)
