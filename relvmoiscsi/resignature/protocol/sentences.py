# SPDX-License-Identifier: LGPL-2.1-only
"""Messages about a LUN with a run that is not over. Each message says how to recover the run. Pure."""

from contextlib import contextmanager
from typing import Iterator

from relvmoiscsi.errors import NOTHING_WRITTEN, DeviceError, Overtaken, Refused, Unfinished, in_state
from relvmoiscsi.resignature.protocol.commit_record import IN_PROGRESS, KINDS, UNDO, CommitRecord
from relvmoiscsi.wording import shell_command

#: after a refused undo
TAKE_AGAIN = "If you need the old identities, take the clone again."


def nothing_written(before: str = "") -> str:
    """The sentence about a device without further writes. `before` is a sentence about the writes so far."""
    return before + "; nothing else was written." if before else NOTHING_WRITTEN


def only_free_space(name: str, before: str) -> str:
    """The sentence about a device after a failed step 1."""
    start = before or f"{name} is as it was"
    return start + "; beyond that only free space of the metadata area was written."


def only_unseen(name: str) -> str:
    """The sentences about a device after a failed write of a new image."""
    return (
        f"Every VDI on {name} reads as before: only free extents and metadata space, and sectors of images that "
        "nobody reads, were written. A write that failed may still land: detach the disk before anybody uses it."
    )


def overtaken(name: str) -> str:
    """The sentences about a device that another program has changed during the writes of a new image."""
    return (
        "Only free extents, and sectors that no image showed when it was read, were written. If another host has made "
        f"one VDI of {name} meanwhile, its image may hold up to 16 MiB of this run: then take the clone again."
    )


@contextmanager
def since_begun(name: str, kind: int, label_offset: int) -> Iterator[None]:
    """Add the state of the device to errors from step 2 on.

    A refusal without a state becomes Unfinished, because something was written. An overtaken run that finds another
    label knows no more: another run has recovered it, the array has restored the LUN, or anything has written there.
    """
    try:
        with in_state(lambda: cut_sentence(name, kind), DeviceError):
            yield
    except Refused as refused:
        if refused.disk_state:
            raise
        raise Unfinished(refused.told, refused.sm_key).in_state(cut_sentence(name, kind)) from refused
    except Overtaken as error:
        show = shell_command("relvmoiscsi show", name)
        changed = f"Something else has changed the label since. `{show}` shows the state of {name}."
        error.in_state(changed if error.offset == label_offset else cut_sentence(name, kind))
        raise


def cut_sentence(name: str, kind: int) -> str:
    """The sentence about a device after step 2 or a later step has failed, or was interrupted."""
    return (
        f"The {KINDS[kind]} of {name} was begun and may be unfinished: once the device answers, "
        f"`{shell_command('relvmoiscsi recover', name)}` finishes it or rolls it back."
    )


def unfinished(name: str, record: CommitRecord) -> Unfinished:
    """The error of a command that finds an unfinished run and does not recover the run."""
    is_early, recover = record.phase == IN_PROGRESS, shell_command("relvmoiscsi recover", name)
    when, what = ("before", "rolls it back") if is_early else ("after", "finishes it")
    again = f", or `{shell_command('relvmoiscsi undo', name)}` again, which completes it" if record.kind == UNDO else ""
    return Unfinished(f"{name} holds an unfinished {KINDS[record.kind]}, cut {when} its commit.").advising(
        f"Run `{recover}`, which {what}{again}.", recover
    )


def on_a_copy(name: str) -> str:
    """The advice for a copy of a LUN whose run to one VDI was cut after the commit."""
    finish = shell_command("relvmoiscsi resignature --vdis one", name)
    return f"On a copy of that LUN `{finish}` finishes it and gives new identities."


def journal_lost(name: str, record: CommitRecord) -> str:
    """The sentences about a run that relvmoiscsi can neither finish nor roll back."""
    return (
        f"{name} holds an unfinished {KINDS[record.kind]} whose journal does not read; LVM may have used its space "
        "since. Volumes may name parents of another SR: take the clone again."
    )
