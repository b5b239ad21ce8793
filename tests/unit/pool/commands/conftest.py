# SPDX-License-Identifier: LGPL-2.1-only
"""The commands of `relvmoiscsi pool` in this process, Ctrl-C at a call of the pool, and a pool for commands on LUNs."""

import io
import signal
import threading
from contextlib import redirect_stdout

import pytest

from kit.lun_world import World
from kit.office import RESTORE, new_office
from kit.pool_lab import Image, Lab
from relvmoiscsi import cli


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


@pytest.fixture(scope="session")
def image_of_copy(image_of_originals):
    """With a clone that is attached as an SR with the name "a copy"."""
    world, said = World(), io.StringIO()
    with world.pool(hosts=("xs1", "xs2")) as pool, pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        made = Lab(world, pool)
        image_of_originals.put(made)
        for key, value in pool.environment.items():
            patch.setenv(key, value)
        clone = made.clone("Production")
        assert cli.main(["pool", "attach", clone, "--yes", "--name", "a copy"]) == 0
        assert "\nnext: relvmoiscsi pool clone --all --isolated night-" in said.getvalue()
        return Image(made, copied=clone)


@pytest.fixture
def lab(world, name_pool, request):
    """With the copy, if the test has one: to attach a clone takes longer than most tests."""
    image = request.getfixturevalue("image_of_copy" if "copy" in request.fixturenames else "image_of_originals")
    with world.pool(hosts=("xs1", "xs2")) as pool:
        made = Lab(world, pool)
        made.__dict__.update(image.put(made))
        name_pool(pool)
        yield made


@pytest.fixture
def clone(lab):
    return getattr(lab, "copied", None) or lab.clone("Production")


@pytest.fixture
def copy(lab):
    """The SR of the clone, with the name "a copy"."""
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
