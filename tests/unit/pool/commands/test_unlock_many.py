# SPDX-License-Identifier: LGPL-2.1-only
"""A vm-operator can write any number of locks: a sentence names some of them, and the number of the others."""

import pytest

from relvmoiscsi.pool import lock, lock_keys
from relvmoiscsi.pool.connection import connect


@pytest.fixture
def many(lab):
    """The open keys of one run, for 300 names."""
    names = [f"vm-{number:03}" for number in range(300)]
    with connect(lab.where()) as calls:
        run = lock.Held(calls, names, "restore")
        run._begins = [lock_keys.OPEN_KEY]
        run.take()
    return names


def test_the_refusal_of_a_name_without_a_lock_names_some_locks(pool_command, many):
    ran = pool_command("unlock", "Production", "--yes")
    assert ran.status == 3 and f"These are locked: {', '.join(many[:5])} and 295 more. Nothing was changed." in ran.err


def test_the_question_names_some_locks_and_a_dry_run_names_all(pool_command, type_in, many):
    type_in("n\n")
    ran = pool_command("unlock", many[0])
    shown = [name for name in many if f"{name}, locked by" in ran.err]
    assert ran.status == 4 and shown == many[:5]
    assert "These 300 locks would be broken: " in ran.err and " and 295 more (--dry-run names all). A live" in ran.err
    assert len(pool_command("unlock", many[0], "--dry-run").out.splitlines()) == 300


def test_a_lun_without_an_sr_and_without_a_lock_has_no_lock(clone, pool_command):
    """The SCSIid of a refusal, once the lock is gone."""
    for text in (clone, "naa." + clone[1:]):
        ran = pool_command("unlock", text, "--yes")
        assert ran.status == 3 and f"There is no lock on '{text}'. The pool has no lock. Nothing was" in ran.err
