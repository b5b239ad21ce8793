# SPDX-License-Identifier: LGPL-2.1-only
"""What is said of a LUN that holds a run which is not over, or may hold one; each sentence names the way out. Pure."""

from relvmoiscsi.errors import NOTHING_WRITTEN, Unfinished
from relvmoiscsi.resignature.protocol.commit_record import IN_PROGRESS, KINDS, CommitRecord


def nothing_written(before: str = "") -> str:
    """The sentence about a device that is as it was; or as it has been since what `before` says."""
    return before + "; nothing else was written." if before else NOTHING_WRITTEN


def only_free_space(name: str, before: str) -> str:
    """The sentence about a device on which a first step has failed."""
    start = before or f"{name} is as it was"
    return start + "; beyond that only free space of the metadata area was written."


def only_unseen(name: str) -> str:
    """The sentence about a device on which a new image was begun."""
    return (
        f"Every VDI on {name} reads as before: only free extents and metadata space, and sectors of images that "
        "nobody reads, were written. A write that failed may still land: detach the disk before anybody uses it."
    )


def overtaken(name: str) -> str:
    """The sentence about a device that has changed while a new image was begun."""
    return (
        "Only free extents, and sectors that no image showed when it was read, were written. Where another host has "
        f"made one VDI of {name} meanwhile, the last 16 MiB of this run may lie in it: then take the clone again."
    )


def cut_sentence(name: str, kind: int) -> str:
    """The sentence about a device on which a later step has failed, or was interrupted."""
    return (
        f"The {KINDS[kind]} of {name} was begun and may be unfinished: once the device answers, `relvmoiscsi recover "
        f"{name}` finishes it or takes it back."
    )


def unfinished(name: str, record: CommitRecord) -> Unfinished:
    """The error of whoever meets an unfinished run and is not the one to settle it."""
    kind = KINDS[record.kind]
    if record.phase == IN_PROGRESS:
        return Unfinished(
            f"{name} holds an unfinished {kind}, cut before its commit. Run `relvmoiscsi recover {name}`, which takes "
            "it back."
        )
    return Unfinished(
        f"{name} holds an unfinished {kind}, cut after its commit. Run `relvmoiscsi recover {name}`, which finishes it."
    )


def on_a_copy(name: str) -> str:
    """The way out for a copy of a LUN whose run to one VDI was cut behind its commit."""
    return f"On a copy of that LUN `relvmoiscsi resignature --vdis one {name}` finishes it and gives new identities."


def journal_lost(name: str, record: CommitRecord) -> str:
    """The sentence about a run that nobody can finish or take back."""
    return (
        f"{name} holds an unfinished {KINDS[record.kind]} whose journal does not read; LVM may have used its space "
        "since. Volumes may name parents of another SR: take the clone again."
    )
