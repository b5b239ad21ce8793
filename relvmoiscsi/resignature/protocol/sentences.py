# SPDX-License-Identifier: LGPL-2.1-only
"""Messages about a LUN with a run that is not over. Each message says how to recover the run. Pure."""

from contextlib import contextmanager
from typing import Iterator

from relvmoiscsi.errors import NOTHING_WRITTEN, DeviceError, NoRoom, Overtaken, Refused, Unfinished, in_state
from relvmoiscsi.resignature.protocol.commit_record import IN_PROGRESS, KINDS, UNDO, CommitRecord
from relvmoiscsi.wording import shell_command

TAKE_NEW_CLONE = "Take the clone again."
DETACH = "Detach the disk before anybody uses it."
#: after a refused undo
TAKE_AGAIN = "If you need the old identities, take the clone again."


IF_ONE_VDI = "If another host has made one VDI of the LUN meanwhile, take the clone again."


def nothing_written(before: str = "") -> str:
    """The sentence about a device without further writes. `before` is a sentence about the writes so far."""
    return before + "; nothing else was written." if before else NOTHING_WRITTEN


def only_free_space(name: str, before: str) -> str:
    """The sentence about a device after a failed step 1."""
    start = before or f"{name} is as it was"
    return start + "; beyond that only free space of the metadata area was written."


@contextmanager
def while_unseen(name: str) -> Iterator[None]:
    """Add the state of the device to errors of the writes that no reader sees yet, and what to do then."""
    unseen = (
        f"Every VDI on {name} reads as before: only free extents and metadata space, and sectors of images that "
        "nobody reads, were written."
    )
    with in_state(f"{unseen} A write that failed may still land.", advice=DETACH), in_state(unseen, NoRoom):
        yield


def overtaken(name: str) -> str:
    """The sentences about a device that another program has changed during the writes of a new image.

    The advice is IF_ONE_VDI.
    """
    return (
        "Only free extents, and sectors that no image showed when it was read, were written. If another host has made "
        f"one VDI of {name} meanwhile, its image may hold up to 16 MiB of this run."
    )


@contextmanager
def since_begun(name: str, kind: int, label_offset: int) -> Iterator[None]:
    """Add the state of the device to errors from step 2 on.

    A refusal without a state becomes Unfinished, because something was written. An overtaken run that finds another
    label knows no more: another run has recovered it, the array has restored the LUN, or anything has written there.
    """
    begun = f"The {KINDS[kind]} of {name} was begun and may be unfinished."
    recover = f"Once the device answers, `{shell_command('relvmoiscsi recover', name)}` finishes it or rolls it back."
    try:
        with in_state(begun, DeviceError, advice=recover):
            yield
    except (Refused, Overtaken) as error:
        if error.disk_state:
            raise
        if isinstance(error, Refused):
            unfinished = Unfinished(error.message, error.sm_key).in_state(begun)
            raise unfinished.advising(error.advice).advising(recover) from error
        if error.offset != label_offset:
            error.in_state(begun).advising(recover)
        else:
            show = f"`{shell_command('relvmoiscsi show', name)}` shows the state of {name}."
            error.in_state("Something else has changed the label since.").advising(show)
        raise


def unfinished(name: str, record: CommitRecord) -> Unfinished:
    """The error of a command that finds an unfinished run and does not recover the run.

    The run was cut, or is at work on this host or another: the LUN does not tell.
    """
    is_early, recover = record.phase == IN_PROGRESS, shell_command("relvmoiscsi recover", name)
    when, what = ("before", "rolls it back") if is_early else ("after", "finishes it")
    again = f", or `{shell_command('relvmoiscsi undo', name)}` again, which completes it" if record.kind == UNDO else ""
    return Unfinished(f"{name} holds an unfinished {KINDS[record.kind]}, {when} its commit.").advising(
        f"Run `{recover}`, which {what}{again}.", recover
    )


def on_a_copy(name: str, record: CommitRecord) -> str:
    """The advice, behind that of `recover`, for a copy of a LUN whose run to one VDI was cut after the commit.

    Only a SCSIid tells a copy from the LUN of the run. Otherwise, the run is finished on the copy too, with its ids.
    """
    if any(record.scsi_id_digest):
        finish = shell_command("relvmoiscsi resignature --vdis one", name)
        return f"On a copy of that LUN with a SCSIid of its own, `{finish}` finishes it and gives new identities."
    again = shell_command("relvmoiscsi resignature --again --vdis one", name)
    return f"The run has recorded no SCSIid that tells a copy: on a copy of that LUN, run `{again}` after that."


def journal_lost(name: str, record: CommitRecord) -> str:
    """The sentences about a run that relvmoiscsi can neither finish nor roll back. Only a new clone helps."""
    return (
        f"{name} holds an unfinished {KINDS[record.kind]} whose journal does not read; LVM may have used its space "
        "since. Volumes may name parents of another SR."
    )
