# SPDX-License-Identifier: LGPL-2.1-only
"""A sample of steps has one of each kind in every run."""

from kit import examples
from kit.examples import of_each_kind

KINDS = ["lock", "write", "write", "write", "flush", "unlock"]


def test_each_kind_is_there_in_the_order_of_the_run_and_the_whole_is_all_steps(monkeypatch):
    monkeypatch.setattr(examples, "WHOLE", False)
    for seed in range(20):
        monkeypatch.setattr(examples, "SEED", seed)
        chosen = of_each_kind(KINDS, 100)
        assert {KINDS[number - 1] for number in chosen} == set(KINDS)
        assert chosen == sorted(chosen) and len(chosen) <= len(set(KINDS)) + 1

    monkeypatch.setattr(examples, "WHOLE", True)
    assert of_each_kind(KINDS, 100) == [1, 2, 3, 4, 5, 6]
