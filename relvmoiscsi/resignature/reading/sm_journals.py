# SPDX-License-Identifier: LGPL-2.1-only
"""Settle SM's unfinished work on a clone, by the rules of SM's recovery. Pure.

An array snapshot may catch SM in the middle of a VDI snapshot, an inflation or a leaf coalesce. SM marks such work with
a journal volume, and settles the work at the next operation on the SR. SM cannot do so on a clone under new UUIDs: SM's
recovery looks the VDIs up in xapi's database, which does not have the new UUIDs. So the plan of a resignature settles
the work, by SM's rules and in SM's order.

    inflate_<VDI>_<bytes>   a VHD's volume was being enlarged          keep the larger volume
    clone_<VDI>_1           text: <base>_<clone>, or <base>_
        no base                                                        drop the journal
        a leaf missing, or not a valid VHD                             roll back: drop the leaves, base becomes the VDI
        all volumes there                                              complete: base hidden and read-only, MGT records
    leaf_<VDI>_1            text: <parent>; of a VHD, QCOW2 see below
        parent, or OLD_<VDI>, there                                    roll back: both get their names, parent hidden
        neither                                                        complete: drop the journal
    <SR>_trim_lv            no journal: all free space, being trimmed  drop the volume

A leaf that holds blocks is never dropped: the journal may be older than the VM's last writes to the leaf. Nor is a leaf
that does not read, unless `vhd-util check` calls it invalid for the same reason: SM drops such a leaf itself.

LVM does not wipe new volumes. Until vhd-util writes to a new leaf, the leaf may hold the VHD of a deleted disk:

    names the base                  a leaf of this snapshot: the UUID of the base is new, so no older VHD names the base
    names the base's parent         a leaf, when the base is empty and (the base is hidden or the leaf is empty)
    names the base's parent         in other cases unknown, so refused

`qemu-img create` writes the name of the base last, behind a flush of all else. Then SM adds its extension to the header
of the QCOW2, and only then a VM may use the leaf. Where SM asks `qemu-img check`, the extension decides:

    has the extension, names the base         a leaf of this snapshot
    no extension, no block                    roll back: no VM has used the leaf
    no extension, blocks, the base is shown   of a deleted disk, or of a VM that ran on: unknown, so refused

LVM does not wipe journal volumes either. When MGT knows the base in the text, or the base has other children, the text
is of an older journal. Then the work of the new journal had not begun.

A leaf coalesce is complete but for its journal when both volumes have their new names. SM still takes such a coalesce
back while the VM is paused. When tapdisk has the new leaf open, the VM is not paused: then the coalesce is finished.

SM 3.2.12-21.2 of XCP-ng and later do not pause the VM while a QCOW2 leaf is coalesced: tapdisk copies the leaf into the
parent, and then writes to the parent. Each SM makes the parent writable before the copy, and renames the leaf behind
the copy. A VM that is paused until the end, under an older SM, leaves the same data in both. So, for each SM:

    the parent is read-only                  no copy has begun: roll back
    the leaf has no block                    the guest reads the parent, whichever is open: roll back
    both have their names                    the last writes may be in the leaf or in the parent: refused
    OLD_<VDI> is there                       the parent has all data: finish, under either name of the parent

Sources: SM drivers/LVHDSR.py (_undoAllJournals, _handleInterruptedCloneOp), drivers/cleanup.py
(_handleInterruptedCoalesceLeaf, _doCoalesceLeaf), drivers/lvhdutil.py (inflate), drivers/journaler.py,
drivers/on_slave.py (commit_tapdisk), drivers/qcow2util.py (snapshot), drivers/trim_util.py (do_trim); QEMU
block/mirror.c, block/qcow2.c (qcow2_co_create).
"""

import re
from typing import Iterable, Match, Optional, Set, Tuple

from relvmoiscsi import untrusted
from relvmoiscsi.errors import BadChecksum, BadMagic, FormatError, Place, Truncated, Unsupported, WayOut
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.identity import UUID_PATTERN
from relvmoiscsi.formats.mgt import new_record
from relvmoiscsi.formats.naming import LvName
from relvmoiscsi.formats.qcow2 import Qcow2
from relvmoiscsi.formats.vhd import Vhd
from relvmoiscsi.resignature.reading.lun_contents import Content, Lun, Volume, Work
from relvmoiscsi.resignature.reading.sm_work import WorkArea
from relvmoiscsi.wording import said

_CLONE = re.compile(f"(?P<base>{UUID_PATTERN})_(?P<clone>{UUID_PATTERN})?")
_LEAF = re.compile(UUID_PATTERN)

BASE_LABEL = "base copy"

_TAKE_AGAIN = "Let the storage manager finish on the original, and take the copy again"

#: defects that libvhd finds as well. It takes more places and values than the readers of `formats` take
_INVALID_FOR_SM = (BadChecksum, BadMagic, Truncated)

#: of the chain of a base. SM makes chains of 30, and a LUN may have a journal for each VDI of a long chain.
#: Source: SM drivers/vhdutil.py MAX_CHAIN_SIZE
_MOST_LEVELS = 100


def journal_text(block: bytes) -> Optional[str]:
    """The text in the first block of a journal volume: the length of the text in decimal, a blank, the text.

    None for a block without such a text.
    """
    digits, _blank, rest = block.partition(b" ")
    try:
        length = untrusted.number(digits.decode("ascii"))
        is_whole = len(digits) <= 3 and length <= len(rest)
        return rest[:length].decode("ascii") if is_whole else None
    except ValueError:  # also UnicodeDecodeError
        return None


def snapshot_of(name: LvName, text: Content) -> Optional[Match[str]]:
    """The UUIDs in the journal of a snapshot: `base`, which the original volume gets, and `clone`, of a second leaf.

    None for any other volume, and for any other text: SM makes new UUIDs for both.
    """
    found = _CLONE.fullmatch(text) if name.journal == naming.CLONE and isinstance(text, str) else None
    return found if found is not None and len({name.uuid, *found.groups()}) == 3 else None


def under_way(volumes: Iterable[Tuple[LvName, Content]]) -> Set[str]:
    """The VDIs of unfinished snapshots, and of unfinished leaf coalesces of QCOW2: their block tables must be read.

    The survey asks before it reads a volume.
    """
    found: Set[str] = set()
    coalesced, qcow2s = set(), set()
    for name, content in volumes:
        snapshot = snapshot_of(name, content)
        if snapshot is not None:
            found.update(filter(None, (name.uuid, *snapshot.groups())))
        if name.journal == naming.LEAF:
            coalesced.add(str(name.uuid))
        if name.kind == naming.QCOW2:
            qcow2s.add(str(name.uuid))
    return found | coalesced & qcow2s


def unfinished_work(lun: Lun) -> Optional[Work]:
    """SM's unfinished work on a LUN, settled; None when the LUN has no such work.

    Raises Unsupported, naming the journal, for work that cannot be settled safely.
    """
    area = WorkArea(lun)
    trims = [volume for volume in lun.volumes if lun.is_trim(volume)]
    if not area.journals and not trims:
        return None
    for trim in trims:
        area.drop(trim)
        area.say(
            f"The storage manager was trimming free space. {trim.name.text} is dropped: it holds no data, and the next "
            "trim would remove it."
        )
    for kind, settle in ((naming.INFLATE, _inflate), (naming.CLONE, _clone), (naming.LEAF, _leaf)):
        for journal in area.journals:
            if journal.name.journal == kind:
                settle(area, journal)
                area.drop(journal)
    return area.result()


def _refuse(area: WorkArea, journal: Volume, problem: str) -> Unsupported:
    """The error for a journal whose work has not begun, or is about VDIs that are gone: the journal alone may go."""
    found = Unsupported(f"Logical volume {journal.name.text}", Place(journal.name.text, 0), problem)
    return found.with_way_out(area.lun.without_lv(journal.name.text))


def _refuse_data(area: WorkArea, volume: Volume, problem: str) -> Unsupported:
    """The error for work that has begun: without the journal, a scan of SM could drop data of a VM. So the VDI goes."""
    found = Unsupported(f"Logical volume {volume.name.text}", Place(volume.name.text, 0), problem)
    return found.with_way_out(WayOut(vdi=str(area.as_found(volume).name.uuid)))


# --- inflate


def _inflate(area: WorkArea, journal: Volume) -> None:
    if not untrusted.is_number(journal.name.value):
        raise _refuse(area, journal, f"the size in its name is {said(journal.name.value)}")
    uuid = str(journal.name.uuid)
    volume = area.disk(uuid)
    if volume is None:
        area.say(f"The volume of VDI {uuid} was to be inflated, and is gone: the journal goes too.")
        return
    if isinstance(volume.content, Vhd) and volume.content.stale_end is not None:
        # the last sector of the enlarged volume holds the footer of another VHD
        healed = volume.content._replace(end_footer=volume.content.footer, stale_end=None, killed=False)
        area.put(volume._replace(content=healed))
    area.say(f"The volume of VDI {uuid} was being inflated: it stays as large as it is.")


# --- snapshot and clone


def _clone(area: WorkArea, journal: Volume) -> None:
    uuid = str(journal.name.uuid)
    snapshot = snapshot_of(journal.name, journal.content)
    if snapshot is None:
        # SM makes the volume of the journal, then writes the text, then begins work. Once work has begun, the base copy
        # is a visible disk without a record in MGT
        leaf = area.disk(uuid)
        if leaf is None or isinstance(leaf.content, FormatError) or area.has_strangers:
            raise _refuse(area, journal, f"a snapshot of VDI {uuid} was under way, and its journal does not read")
        area.say(f"A snapshot of VDI {uuid} was about to begin: it is dropped.")
        return
    base_uuid, clone_uuid = snapshot.groups()
    base, leaf = area.disk(base_uuid), area.disk(uuid)
    if base is None:
        if leaf is None:
            raise _refuse(area, journal, f"neither VDI {uuid} nor its base copy {base_uuid} is there")
        area.say(f"A snapshot of VDI {uuid} was about to begin, or its base copy is gone: the VDI stays as it is.")
        return
    clone = area.disk(clone_uuid) if clone_uuid else None
    own = [volume.lv.id for volume in (leaf, clone) if volume is not None]
    if base_uuid in area.records or any(each.lv.id not in own for each in area.children(base)):
        # SM adds the base to MGT after it drops the journal: the snapshot has ended, or the text is of an older journal
        if leaf is None:
            raise _refuse(area, journal, f"VDI {uuid} is gone, and its journal speaks of another snapshot")
        area.say(f"A snapshot of VDI {uuid} was about to begin, or has ended: the journal is dropped.")
        return
    if clone_uuid in area.records:  # SM gives the clone a record after it drops the journal
        raise _refuse(area, journal, f"it says that the snapshot of VDI {uuid} made VDI {clone_uuid}, which MGT knows")
    present = [volume for volume in (leaf, clone) if volume is not None]
    if len(present) == (2 if clone_uuid else 1) and all(_is_leaf(area, volume, base) for volume in present):
        _complete(area, journal, base, clone)
    elif all(_may_go(area, volume, base) for volume in present):
        for volume in present:
            area.drop(volume)
        area.rename(area.set_read_only(area.set_hidden(base, False), False), uuid)
        damaged = [one.name.text for one in present if isinstance(one.content, FormatError) and not one.unwritten]
        loss = "loses nothing"
        if damaged:
            loss = f"deletes {' and '.join(damaged)}, which does not read, as the storage manager would"
        area.say(f"A snapshot of VDI {uuid} was under way and not complete: it is rolled back, and {loss}.")
    elif leaf is not None and not isinstance(leaf.content, FormatError):
        parent = area.disk(leaf.parent.uuid) if leaf.parent else None
        if parent is None or parent.lv.id not in _ancestry(area, base):
            problem = f"it holds blocks, and was not made of {base.name.text}, the base copy of its snapshot"
            raise _refuse_data(area, leaf, f"{problem}. {_TAKE_AGAIN}")
        is_shown = not base.hidden
        if clone is not None and (
            isinstance(clone.content, FormatError)
            and _may_go(area, clone, base)
            or is_shown
            and _has_no_extension(clone)
        ):
            area.drop(clone)  # no VM has used the clone
            clone = None
        _complete(area, journal, base, clone)  # the VM has written to the leaf since: no leaf may go
    else:
        problem = f"a snapshot of VDI {uuid} was under way, and its volumes hold both data and damage"
        raise _refuse_data(area, journal, problem)


def _is_leaf(area: WorkArea, leaf: Volume, base: Volume) -> bool:
    """Whether `leaf` is a complete leaf of this snapshot, and not the VHD of a deleted disk.

    SM asks `vhd-util check`; complete means complete for `vhd-util check`. For a QCOW2, see the table above.
    """
    if isinstance(leaf.content, Vhd) and leaf.content.end_footer is None or _has_no_extension(leaf):
        return False
    parent = area.disk(leaf.parent.uuid) if leaf.parent else None
    if parent is None or not leaf.is_made_of(parent):
        return False
    if parent.lv.id == base.lv.id:
        return True  # the UUID of the base is new: no older VHD names the base
    return bool(base.empty) and (base.hidden or bool(leaf.empty)) and parent.lv.id in _ancestry(area, base)


def _has_no_extension(leaf: Volume) -> bool:
    """Whether `leaf` is a QCOW2 without SM's extension, so that SM has not finished making the image."""
    return isinstance(leaf.content, Qcow2) and leaf.content.hidden_at is None


def _ancestry(area: WorkArea, base: Volume) -> Set[str]:
    """The LV ids of the base and its nearest parents. Stops when the chain has a loop, or more levels than SM makes."""
    found: Set[str] = set()
    volume: Optional[Volume] = base
    while volume is not None and volume.lv.id not in found and len(found) < _MOST_LEVELS:
        found.add(volume.lv.id)
        volume = area.disk(volume.parent.uuid) if volume.parent else None
    return found


def _may_go(area: WorkArea, leaf: Volume, base: Volume) -> bool:
    """Whether no guest has written to `leaf`. Raises Unsupported when this cannot be decided.

    A base that is not hidden proves nothing: SM unhides the base at the start of a take-back, and the take-back fails
    when a VM has the leaf open.
    """
    if isinstance(leaf.content, FormatError) and not isinstance(leaf.content, _INVALID_FOR_SM) and not leaf.empty:
        problem = "this leaf of an unfinished snapshot may hold data of a VM"
        raise _refuse_data(area, leaf, f"{problem}. {leaf.content.message} {_TAKE_AGAIN}")
    if leaf.name.kind == naming.RAW:
        raise _refuse_data(area, leaf, f"it is raw, and no snapshot makes a raw leaf. {_TAKE_AGAIN}")
    if isinstance(leaf.content, FormatError) or leaf.empty:
        return True
    parent = area.disk(leaf.parent.uuid) if leaf.parent else None
    names_base = parent is not None and parent.lv.id == base.lv.id
    if base.hidden or names_base and not _has_no_extension(leaf):
        return False
    may_be_new = base.empty and parent is not None and leaf.is_made_of(parent) and parent.lv.id in _ancestry(area, base)
    if names_base or may_be_new:
        problem = f"{leaf.name.text} holds blocks, which may be of a deleted disk or of a VM that ran on. {_TAKE_AGAIN}"
        raise _refuse_data(area, leaf, problem)
    return True


def _complete(area: WorkArea, journal: Volume, base: Volume, clone: Optional[Volume]) -> None:
    uuid = str(journal.name.uuid)
    area.set_read_only(area.set_hidden(base, True), True)
    record = area.records.get(uuid)
    kind = record.type if record else "user"
    # the records that SM writes: the VDI's label is lost
    is_parent = any(area.children(base)) or any(area.children(base, is_old=True))
    for volume, label in ((clone, ""), (base if is_parent else None, BASE_LABEL)):
        if volume is not None:
            uuid_there, vdi_type = str(volume.name.uuid), naming.MGT_TYPES[volume.name.kind]
            area.new_records[uuid_there] = new_record(uuid_there, label, vdi_type, kind, managed=not label)
    area.say(f"A snapshot of VDI {uuid} was under way: all its volumes are there, so it is completed.")


# --- leaf coalesce


def _leaf(area: WorkArea, journal: Volume) -> None:
    uuid = str(journal.name.uuid)
    leaf, old = area.disk(uuid), area.disk(uuid, is_old=True)
    if isinstance(journal.content, str) and _LEAF.fullmatch(journal.content) and journal.content != uuid:
        parent_uuid = journal.content
    elif leaf is not None and old is None and leaf.parent is not None:  # SM has not renamed a volume yet
        parent_uuid = leaf.parent.uuid
    else:
        problem = f"VDI {uuid} was being coalesced into its parent, and the journal does not read"
        raise _refuse_data(area, journal, problem)
    parent = area.disk(parent_uuid)
    if parent is None and old is None:
        if leaf is None:
            raise _refuse(area, journal, f"neither VDI {uuid} nor its parent {parent_uuid} is there")
        area.freed_records.append(parent_uuid)
        area.say(f"VDI {uuid} was being coalesced into its parent: that is done, only the journal goes.")
        return
    child = old or leaf
    if child is not None and (child.parent is None or child.parent.uuid != parent_uuid):
        problem = (
            f"the journal says that VDI {uuid} was coalesced into {parent_uuid}, and its image names another parent"
        )
        raise _refuse_data(area, journal, problem)
    # tapdisk had the leaf open at the time of the array snapshot: tapdisk kills the footer in the last sector. While SM
    # inflates the volume, the last sector may hold a killed footer of a deleted volume
    is_killed = leaf is not None and isinstance(leaf.content, Vhd) and leaf.content.killed
    is_qcow2 = any(volume is not None and volume.name.kind == naming.QCOW2 for volume in (leaf, old))
    merged = leaf if parent is None else parent if leaf is None else None  #: SM renames the leaf, then the parent
    ran_on = is_qcow2 or is_killed and parent is None and uuid not in area.inflated
    if merged is not None and old is not None and ran_on:
        area.drop(old)
        area.set_read_only(area.set_hidden(area.rename(merged, uuid), False), False)
        area.freed_records.append(parent_uuid)
        area.say(f"VDI {uuid} was coalesced into its parent, which has its last writes: old leaf and journal go.")
        return
    if parent is None:
        if leaf is None:
            raise _refuse(area, journal, f"the parent {parent_uuid} of VDI {uuid} is gone")
        parent, leaf = area.rename(leaf, parent_uuid), None
    if leaf is None:
        if old is None:
            raise _refuse(area, journal, f"VDI {uuid} is gone, its parent {parent_uuid} is there")
        leaf = area.rename(old, uuid)
    elif is_qcow2 and "WRITE" in parent.lv.status and not leaf.empty:
        problem = (
            f"VDI {uuid} was being coalesced into its parent, perhaps while its VM ran, and the LUN does not show "
            f"whether the leaf or the parent has the VM's last writes. {_TAKE_AGAIN}"
        )
        raise _refuse_data(area, leaf, problem)
    area.set_hidden(leaf, False)
    area.set_read_only(area.set_hidden(parent, True), True)
    area.say(f"VDI {uuid} was being coalesced into its parent: that is rolled back, SM will do it again.")
