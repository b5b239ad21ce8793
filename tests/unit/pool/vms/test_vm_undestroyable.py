# SPDX-License-Identifier: LGPL-2.1-only
"""A clone that xapi does not destroy is told of before the first one is destroyed."""

import shlex

import pytest

from kit.advised import commands_in
from kit.pool.database import NULL
from kit.pool_verbs import discard
from kit.xe import xe
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.pool.calls import PoolFailure


@pytest.fixture
def clones(halted):
    """Of "alpha", which would go first, and of "web", with a snapshot."""
    halted.lab.vm("alpha", halted.lab.vdi("Production", "before")[0])
    made = {each.vm_name: halted.ref_of(each) for each in halted.clone(everything=True)}
    halted.clone_of_web, halted.count = made["web"], len(made) + 1
    halted.snapshot_of_clone = halted.lab.snapshot(made["web"], "later")
    return halted


def clones_left(day):
    there = day.db.records("VM").values()
    return len([vm for vm in there if "relvmoiscsi:clone-of" in vm["other_config"] or vm["name_label"] == "later"])


def mark(day, vm, text="true"):
    day.db.add_to("VM", vm, "other_config", "default_template", text)


def as_template(day):
    mark(day, day.clone_of_web, "1")
    day.db.set("VM", day.clone_of_web, "is_a_template", True)


def with_memory(day):
    day.db.set("VM", day.snapshot_of_clone, "power_state", "Suspended")
    day.db.create("VTPM", VM=day.snapshot_of_clone)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda day: mark(day, day.clone_of_web), "The VM 'web on .*' has the key default_template .*, and xapi does"),
        (
            lambda day: mark(day, day.snapshot_of_clone),
            "The snapshot 'later' of the VM .* has the key default_template",
        ),
        (as_template, "The VM 'web on .*' has the key default_template"),
        (with_memory, "The snapshot 'later' of the VM 'web on .*' has memory and a vTPM, and xapi does not destroy it"),
    ],
    ids=["a key", "a key of a snapshot", "a template", "memory and a vTPM"],
)
def test_a_clone_that_xapi_does_not_destroy_is_refused_first(clones, spoil, said):
    spoil(clones)
    (line,) = commands_in(clones.refuses(discard, said))
    assert xe(clones.lab.pool, shlex.split(line)[1:]) == (0, "", "")
    discard(clones)
    assert clones_left(clones) == 0


def test_what_xapi_alone_knows_it_is_asked_first(clones):
    """Whoever imports a VM gives it a metrics object of any class, and xapi then destroys no such VM."""
    clones.db.forge("VM", clones.clone_of_web, "metrics", clones.sr)
    clones.refuses(discard, "VM_metrics", PoolFailure)
    clones.db.set("VM", clones.clone_of_web, "metrics", NULL)
    clones.db.set("VM", clones.clone_of_web, "is_default_template", True)
    clones.db.set("VM", clones.clone_of_web, "is_a_template", True)
    clones.refuses(discard, "VM_IS_TEMPLATE", PoolFailure)


def test_what_another_client_does_after_the_plan_stops_the_run_before_it_destroys(clones):
    with pytest.raises(RelvmoiscsiError, match="default_template"):
        discard(clones, told=lambda _: mark(clones, clones.clone_of_web))
    assert clones_left(clones) == clones.count
