# SPDX-License-Identifier: LGPL-2.1-only
"""The states of a disk, whatever circles a stranger's marks make of them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.examples import examples
from relvmoiscsi.pool.vms import lineage

VDIS = st.sampled_from("abcdefgh")


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(VDIS, st.lists(VDIS, max_size=4)), st.dictionaries(VDIS, st.integers(0, 255)))
def test_a_vdi_has_the_owners_of_each_state_that_a_walk_to_later_states_finds(before, owners):
    known = lineage.with_later(before, owners)

    for first in "abcdefgh":
        found, seen, left = 0, set(), [first]
        while left:
            each = left.pop()
            if each not in seen:
                seen.add(each)
                found |= owners.get(each, 0)
                left += [uuid for uuid, earlier in before.items() if each in earlier]
        assert known.get(first, 0) == found
