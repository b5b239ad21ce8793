# SPDX-License-Identifier: LGPL-2.1-only
"""What LVM and the storage manager permit is resignatured, or refused by name before anything is planned.

`tests/judged/luns/test_permitted_judged.py` lets real LVM make such LUNs.
"""

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from kit.build_volumes import Record
from kit.builder import named
from kit.examples import examples
from kit.outcome import entropy_of
from kit.permitted import FREED, NOWHERE, State, drawn, judged
from relvmoiscsi import engine
from relvmoiscsi.errors import UsageError
from relvmoiscsi.formats.identity import IdMap


@st.composite
def states(draw):
    return drawn(lambda options: draw(st.sampled_from(options)))


@settings(max_examples=examples(500), deadline=None, suppress_health_check=list(HealthCheck))
@given(states())
def test_what_check_calls_good_is_resignatured_and_what_is_refused_is_named_by_check(state):
    note(repr(state))

    judged(state.built().disk)


def test_a_chosen_uuid_that_stands_in_the_name_of_a_volume_is_refused_before_the_plan():
    """Else two volumes would get one name."""
    names = named("backup_{freed}"), named("backup_{nowhere}")
    built = State(names, (Record(FREED, deleted=True),)).built()
    uuids = built.truth.uuids
    chosen = IdMap(uuids["sr"], {uuids[FREED]: uuids[NOWHERE]}, {})

    with pytest.raises(UsageError, match=uuids[NOWHERE] + " is already on the LUN"):
        engine.prepare(built.disk, entropy_of("ids"), engine.ResignatureRequest(chosen=chosen))
