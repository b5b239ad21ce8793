# SPDX-License-Identifier: LGPL-2.1-only
"""The commands of `relvmoiscsi pool` in this process, Ctrl-C at a call of the pool, and a pool for commands on LUNs."""

import signal
import threading

import pytest

from kit.lun_world import World
from kit.office import RESTORE, new_office
from kit.pool_lab import Image, Lab


@pytest.fixture
def pool_command(command):
    return lambda *words: command("pool", *words)


@pytest.fixture
def interrupts():
    """`interrupts(pool, *moments)`: a person presses Ctrl-C at each of these calls of the pool, (method, how many'th
    since the moment before). A thread that makes such a call goes on when the main one, interrupted, cleans up.
    """
    left = []

    def at(pool, *moments, number=signal.SIGINT):
        left[:] = moments
        main, seen, cleans_up = threading.main_thread(), [], threading.Event()

        def before(method, _params):
            is_main = threading.current_thread() is main
            if is_main:
                cleans_up.set()
            seen.append(method)
            if left and (method, seen.count(method)) == left[0]:
                del left[0], seen[:]
                cleans_up.clear()
                signal.pthread_kill(main.ident, number)  # raises, where it is our own
                assert is_main or cleans_up.wait(60)

        pool.api.before = before

    yield at
    assert not left, "it was not interrupted"


# --- a pool with two SRs, a clone, and a copy that is attached


@pytest.fixture
def world():
    return World()


@pytest.fixture(scope="session")
def image_of_originals():
    world = World()
    with world.pool(hosts=("xs1", "xs2")) as pool:
        made = Lab(world, pool)
        made.original("Production")
        made.original("Testing")
        return Image(made)


@pytest.fixture
def lab(world, name_pool, image_of_originals):
    with world.pool(hosts=("xs1", "xs2")) as pool:
        made = Lab(world, pool)
        image_of_originals.put(made)
        name_pool(pool)
        yield made


@pytest.fixture
def clone(lab):
    return lab.clone("Production")


@pytest.fixture
def copy(clone, pool_command):
    """The SR of the clone, with the name "a copy"."""
    ran = pool_command("attach", clone, "--yes", "--name", "a copy")
    assert ran.status == 0 and "\nnext: relvmoiscsi pool clone --all --isolated night-" in ran.out
    return "a copy"


@pytest.fixture(scope="session")
def image_of_office():
    with new_office() as made:
        return Image(made, **made.make())


@pytest.fixture
def office(name_pool, image_of_office):
    with new_office() as ready:
        ready.__dict__.update(image_of_office.put(ready))
        name_pool(ready.pool)
        yield ready


@pytest.fixture
def halted(office):
    """The VM "web" does not run."""
    office.pool.api.vms.vm_hard_shutdown("", office.web)
    return office


@pytest.fixture
def restored(halted, pool_command):
    """The VM "web" has the disk of the copy."""
    assert pool_command(*RESTORE).status == 0
    return halted


@pytest.fixture
def refused(office, pool_command):
    """`refused(4, "sentence", *words)`: the command ends so, says so, and the pool is as it was."""

    def run(status, says, *words):
        before = office.state()
        ran = pool_command(*words)
        assert ran.status == status and says in ran.err + ran.out and office.state() == before
        return ran

    return run
