# SPDX-License-Identifier: LGPL-2.1-only
"""A command beside a run of another client never says that there is nothing to do: the run may change that."""

import pytest

from relvmoiscsi.pool import lock, lock_keys
from relvmoiscsi.pool.connection import connect

#: the command that has done the work before, and the command that finds nothing to do
ON_COPY = {
    "clone": (("clone", "a copy", "web", "--isolated", "lab", "--yes"),) * 2,
    "restore": (("restore", "a copy", "web", "--yes"),) * 2,
    "rescue": (("rescue", "a copy", "data", "--vm", "helper", "--yes"),) * 2,
    "rescue --done": ((), ("rescue", "a copy", "--done", "--yes")),
    "attach": ((), ("attach", "LUN", "--yes")),
}


@pytest.fixture
def web(lab):
    lab.vm("helper")
    return lab.vm("web", lab.vdi("Production", "root disk")[0])


@pytest.fixture
def beside(lab, pool_command):
    """Run a command while another client has locked `name`."""

    def run(name, doing, *words):
        with connect(lab.where()) as calls, lock.held(calls, [lock_keys.name_for(name)], doing):
            return pool_command(*words)

    return run


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
@pytest.mark.parametrize("name", ON_COPY)
def test_what_is_done_on_a_copy_is_not_told_beside_a_run_on_the_copy(
    clone, copy, web, pool_command, beside, name, more
):
    """Beside a live discard, `clone` said "already there" and `attach` "already attached": a moment later both went."""
    before, again = ON_COPY[name]
    again = [clone if word == "LUN" else word for word in again]
    assert not before or pool_command(*before).status == 0
    assert pool_command(*again, *more).status == 0
    ran = beside(clone, "discard", *again, *more)
    assert ran.status == 4 and f"Another client has locked {clone}: `relvmoiscsi pool discard` of " in ran.err
    assert "already" not in ran.out and "next: " not in ran.out


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_attach_all_passes_over_a_copy_that_another_client_works_on(clone, copy, pool_command, beside, more):
    ran = beside(clone, "discard", "attach", "--all", "--yes", *more)
    assert ran.status == 4 and f"Another client has locked {clone}: " in ran.out and "already" not in ran.out


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
@pytest.mark.parametrize("end", ["--undo", "--home", "--keep"])
def test_an_end_of_a_restore_is_refused_beside_the_restore(lab, copy, web, pool_command, beside, end, more):
    """--undo said "not restored", and seconds later the restore had shut the VM down, and ended well."""
    words, uuid = ("restore", end, "web", "--yes", *more), lab.pool.db.get("VM", web, "uuid")
    assert pool_command(*words).status == 0
    ran = beside(uuid, "restore", *words)
    assert ran.status == 4 and f"Another client has locked {uuid}: `relvmoiscsi pool restore` of " in ran.err


@pytest.mark.parametrize("name", ["clone", "restore", "rescue", "rescue --done"])
def test_a_copy_that_goes_while_a_command_reads_the_pool_is_told_as_discarded(lab, copy, web, pool_command, name):
    """The command had read the SR and not yet its VDIs. It said that `attach` was interrupted."""
    sr = lab.pool.db.refs("SR", name_label=copy)[0]
    lab.before("VM.get_all_records", lambda: lab.discard(lab.pool.db.get("SR", sr, "uuid")))
    ran = pool_command(*ON_COPY[name][1])
    assert ran.status == 4 and "Another client has discarded the copy" in ran.err and "attach" not in ran.err
