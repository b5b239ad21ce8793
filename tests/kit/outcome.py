# SPDX-License-Identifier: LGPL-2.1-only
"""A disk before and after a resignature, and the judgement on it: the same SR under new ids."""

import re
from contextlib import ExitStack
from typing import Optional

from kit import reader
from kit.build_volumes import noise
from kit.lvmreader import dashed
from kit.sparse import SparseDisk
from relvmoiscsi import engine
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.lun import run
from relvmoiscsi.lun.opened import ISCSI_LUN, Guard, OpenLun, PoolAnswer


def entropy_of(seed=0):
    """Entropy that is the same for the same seed."""
    drawn = []

    def entropy(length):
        drawn.append(length)
        return noise(length, f"{seed} {len(drawn)}")

    return entropy


class Unguarded(Guard):
    """Nobody uses the LUN, and no lock is taken."""

    def ask(self, replaced, new_sr):
        return PoolAnswer("Nobody uses it.", "the pool")

    def verify_finished(self, sr_uuid):
        pass

    def held(self, vg_names, replaced):
        return ExitStack()


def opened(device, guard=None, scsi_id=None):
    """A device as a LUN that is open."""
    return OpenLun(device, ISCSI_LUN, scsi_id, guard or Unguarded())


def consent_to_all(_lun, _proposal):
    pass


def run_on(device, entropy, request=engine.ResignatureRequest(), consent=consent_to_all, guard=None):  # noqa: B008
    """The run of the driver on a device, with consent to everything."""
    return run.resignature(opened(device, guard), request, entropy, consent, recovers_undo=True)


class Outcome:
    """A disk before and after a resignature. Who changes `after` looks at it with a reader of his own."""

    def __init__(self, before: SparseDisk, after: SparseDisk, ids: IdMap, result: Optional[engine.Result],
                 prepared: Optional[engine.Prepared] = None):  # fmt: skip
        self.before, self.after, self.ids, self.result, self.prepared = before, after, ids, result, prepared
        self._seen = {}

    @property
    def sr_before(self):
        return self._sr("before", self.before)

    @property
    def sr_after(self):
        return self._sr("after", self.after)

    def _sr(self, when, disk):
        if when not in self._seen:
            self._seen[when] = reader.read_sr(disk)
        return self._seen[when]


def resignatured(disk, seed="ids", **options):
    """A disk before and after a resignature; the disk given stays as it is."""
    after = disk.copy()
    prepared = engine.prepare(after, entropy_of(seed), engine.ResignatureRequest(**options))
    result = engine.resignature(after, prepared)
    return Outcome(disk, after, prepared.plan.run.ids, result, prepared)


def names_of(ids):
    """Old to new, as they are printed: UUIDs, and LVM ids with their dashes."""
    names = dict(ids.uuids)
    names.update((dashed(old), dashed(new)) for old, new in ids.lvm_ids.items())
    return names


def assert_same_sr_under_new_ids(outcome, allowed=()):
    """The judgement in one: nothing shared, nothing lost, nothing touched but identities and what else is `allowed`."""
    before, after, names = outcome.before, outcome.after, names_of(outcome.ids)
    if outcome.sr_before.mgt and re.match(reader.UUID + "$", outcome.sr_before.mgt.sr_uuid):
        names.setdefault(outcome.sr_before.mgt.sr_uuid, outcome.ids.new_sr)
    layout = reader.Layout((*reader.layout_of(before).allowed, *allowed))
    assert not reader.identities(before) & reader.identities(after)
    assert essence(after) == reader.renamed(essence(before), names)
    assert reader.same_guest(before, after, layout)
    assert len(areas_of(after)) == len(areas_of(before))
    assert not any(mda.precommitted for mda in areas_of(after) if not mda.ignored)  # to those nothing is written
    assert outcome.sr_after.vg.seqno == outcome.sr_before.vg.seqno + 1


def essence(disk):
    """What readers see, but for LVM's complaint about a PV that is not marked as used: a new label marks it."""
    view, *rest = reader.essence(disk)
    warnings = tuple(warning for warning in view[-1] if "does not say that the PV is in use" not in warning)
    return (view[:-1], warnings, *rest)


def areas_of(disk):
    return [reader.read_mda(disk, area) for area in reader.read_label(disk).mdas]
