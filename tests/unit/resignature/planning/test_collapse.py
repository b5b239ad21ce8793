# SPDX-License-Identifier: LGPL-2.1-only
"""A chain becomes one image: what a guest reads through it stays, and all programs can go on with it.

The reader, tapdisk and the storage manager are models that share nothing with the engine (`kit.chains`).
"""

import pytest

from kit.chains import flatten
from kit.chains.random_chain import random_chain
from kit.cuts import entropy
from kit.examples import seeds
from relvmoiscsi import engine
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.errors import Refused

pytestmark = pytest.mark.states

SMALL = {"bat_entries": 4096, "blocks": 14}
ANY = OneVdiRequest()


def made_one(chain, request=ANY):
    """The LUN with one VDI, the name of its volume, and the plan that led to it."""
    disk = chain.disk.copy()
    prepared = engine.prepare(disk, entropy(0), engine.ResignatureRequest(one=request))
    engine.resignature(disk, prepared)
    (volume,) = engine.inspect(disk).lun.disks().values()
    return disk, volume.name.text, prepared


@pytest.mark.parametrize("seed", seeds(range(12), 6))
def test_a_guest_reads_the_same_and_nothing_else_is_left_on_the_lun(seed):
    chain = random_chain(seed, free=40, **SMALL)

    disk, name, _ = made_one(chain)

    assert flatten(disk, name) == chain.flats[chain.leaf], chain.story
    lun = engine.inspect(disk).lun
    assert sorted(volume.name.text for volume in lun.volumes) == sorted(["MGT", name])
    assert list(lun.records()) == list(lun.disks())
    (record,) = lun.mgt.records
    assert (record.is_a_snapshot, record.snapshot_of, record.vdi_type) == (False, "", "vhd")
    assert lun.volume(name).parent is None


@pytest.mark.parametrize("seed", seeds(range(20, 26), 6))
def test_geometries_as_the_storage_manager_makes_them(seed):
    chain = random_chain(seed, free=40, blocks=10)

    disk, name, _ = made_one(chain)

    assert flatten(disk, name) == chain.flats[chain.leaf], chain.story


def test_too_few_free_extents_are_refused_with_their_number():
    chain = random_chain(3, free=0, depth=3, thick=False, **SMALL)

    with pytest.raises(Refused, match=r"needs \d+ free extents of 4 MiB before its commit"):
        made_one(chain)


def test_more_to_copy_than_a_call_may_is_refused_with_the_sizes():
    chain = random_chain(38, free=40, **SMALL)

    with pytest.raises(Refused, match=r"takes [0-9]+ bytes of copying, and a call may copy 1048576 here"):
        made_one(chain, OneVdiRequest(most_bytes=1 << 20))
