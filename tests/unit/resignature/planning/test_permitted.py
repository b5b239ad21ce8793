# SPDX-License-Identifier: LGPL-2.1-only
"""What LVM and the storage manager permit is resignatured, or refused by name before anything is planned.

`tests/judged/luns/test_permitted_judged.py` lets real LVM make such LUNs.
"""

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from kit.examples import examples
from kit.permitted import drawn, judged


@st.composite
def states(draw):
    return drawn(lambda options: draw(st.sampled_from(options)))


@settings(max_examples=examples(1000), deadline=None, suppress_health_check=list(HealthCheck))
@given(states())
def test_what_check_calls_good_is_resignatured_and_what_is_refused_is_named_by_check(state):
    note(repr(state))

    judged(state.built().disk)
