# SPDX-License-Identifier: LGPL-2.1-only
"""What is said of a LUN that holds a run which is not over, or may hold one; each sentence names the way out. Pure."""

from relvmoiscsi.errors import NOTHING_WRITTEN, Unfinished
from relvmoiscsi.resignature.protocol.mark import IN_PROGRESS, KINDS, Tail


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


def unfinished(name: str, tail: Tail) -> Unfinished:
    """The error of whoever meets an unfinished run and is not the one to finish it."""
    step = "before its commit" if tail.phase == IN_PROGRESS else "after its commit"
    return Unfinished(f"{name} holds an unfinished {KINDS[tail.kind]}, cut {step}. Run `relvmoiscsi recover {name}`.")


def label_torn(name: str) -> Unfinished:
    """The error of whoever meets a label that a cut has torn."""
    return Unfinished(
        f"{name} has lost its label in a run that was cut, and holds the journal of that run. "
        f"Run `relvmoiscsi recover {name}`."
    )


def on_a_copy(name: str) -> str:
    """The way out for a copy of a LUN whose run to one VDI was cut behind its commit."""
    return f"On a copy of that LUN `relvmoiscsi resignature --vdis one {name}` finishes it and gives new identities."


def label_late(name: str) -> Unfinished:
    """The error of whoever meets a label that has landed late, and a journal that tells the right one."""
    return Unfinished(
        f"{name} has the label of a run that is over: a write that had failed has landed late, and LVM cannot use it. "
        f"Run `relvmoiscsi recover {name}`, which puts the right label back."
    )


def label_lost(name: str) -> Unfinished:
    """The error of whoever meets such a label, and no journal that does."""
    return Unfinished(
        f"{name} has the label of a run that is over: a write that had failed has landed late, and no journal tells "
        "the right one any more. Take the clone again."
    )


def journal_lost(name: str, tail: Tail) -> str:
    """The sentence about a run that nobody can finish or take back."""
    return (
        f"{name} holds an unfinished {KINDS[tail.kind]} whose journal does not read; LVM may have used its space "
        "since. Volumes may name parents of another SR: take the clone again."
    )


def mark_left_over(name: str, tail: Tail) -> str:
    """The sentence about a mark "in progress" that stands for nothing any more."""
    kind = KINDS[tail.kind]
    return (
        f"{name} has the mark of a {kind} whose journal does not read any more; nothing of that {kind} is on it. "
        f"`relvmoiscsi undo {name}` takes the mark away."
    )


def landed_late(name: str) -> str:
    """The sentence about a run that was taken back and has written since."""
    return (
        f"{name} holds identities of a run that was taken back: a write that had failed has landed late. "
        f"Run `relvmoiscsi undo {name}`."
    )
