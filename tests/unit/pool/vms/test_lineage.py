# SPDX-License-Identifier: LGPL-2.1-only
"""The states of a disk, whatever circles a stranger's marks make of them."""

import pytest
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


class Counted(dict):
    looked = 0

    def __contains__(self, key):
        Counted.looked += 1
        return super().__contains__(key)


def marks_of(text):
    """{disk: the UUIDs in its mark}, of a text such as "b:a c:ba"."""
    return {pair.split(":")[0]: dict.fromkeys(pair.split(":")[1]) for pair in text.split()}


@pytest.mark.parametrize(
    ("marks", "twice"),
    [
        ("b:a", ""),
        ("b:a c:ba", ""),
        ("c:ba b:a d:cba", ""),
        ("b:a c:a", "a"),
        ("b:ax c:ay", "a"),
        ("b:a c:ba d:a", "a"),
        ("b:a c:ba d:b", "b"),
        ("b:ca c:ba", ""),  # a circle
    ],
)
def test_a_uuid_is_claimed_twice_by_disks_of_which_neither_was_the_other(marks, twice):
    claims = marks_of(marks)
    found = lineage.claimed_twice(claims)
    assert "".join(sorted(found)) == twice
    for uuid, (one, other) in found.items():
        assert one != other and uuid in claims[one] and uuid in claims[other]
        assert one not in claims[other] and other not in claims[one]


def test_few_of_the_marks_that_a_stranger_writes_are_compared(monkeypatch):
    """The mark of each hub names all hubs. So the disks without a relation to a hub are the last ones looked at."""
    monkeypatch.setattr(Counted, "looked", 0)
    hubs, uuids, disks = ([f"{kind}{number}" for number in range(30)] for kind in ("hub", "uuid", "disk"))
    claims = {hub: Counted.fromkeys([*uuids, *hubs]) for hub in hubs}
    claims.update(
        {disk: Counted.fromkeys([*uuids, *hubs]) for disk in [f"{disk}.{n}" for disk in disks for n in range(10)]}
    )
    assert set(lineage.claimed_twice(claims)) == {*uuids, *hubs}
    assert Counted.looked <= 2 * sum(map(len, claims.values()))
