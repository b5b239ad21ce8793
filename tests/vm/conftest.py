# SPDX-License-Identifier: LGPL-2.1-only
"""Tests here run as root of a machine that tools/e2e.sh boots, and are not even collected anywhere else.

A test gets the fixture `lab` (kit.lab.bench). After each one the world must be as it was before: what the lab made is
taken away by the lab, everything else must have been taken away by what was tested.
"""

import json
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit import examples
from kit.lab import initiator, xapi
from kit.lab.bench import cleared
from kit.lab.guest import INITIATOR, Guest
from kit.lab.warm import Warm
from kit.pool import standin
from kit.pool.simulator import DRIVERS, XAPI_SOCKET, Pool, sm_directory

HERE = Path(__file__).resolve().parent
IN_VM = bool(os.environ.get("RELVMOISCSI_VM"))

#: User-Mode Linux has no Fibre Channel over Ethernet
HAS_FCOE = os.environ.get("RELVMOISCSI_MACHINE") == "qemu"

collect_ignore_glob = ([] if HAS_FCOE else ["test_fibre_channel.py"]) if IN_VM else ["test_*.py"]


def pytest_addoption(parser):
    calls = 40 if examples.WHOLE else 6
    parser.addoption("--pairs", type=int, default=1, help="how often the files bench_*.py measure")
    parser.addoption("--calls", type=int, default=calls, help="calls of which every other one is killed")
    parser.addoption("--seed", type=int, default=examples.SEED, help="of the moments of the kills")


def pytest_collection_modifyitems(items):
    here = {path for path in {str(item.fspath) for item in items} if HERE in Path(path).parents}
    for item in items:
        if str(item.fspath) in here:
            item.add_marker("vm")
            item.add_marker("processes")


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    """A failure is told at once: a VM that is given up later tells nothing any more."""
    if report.failed:
        print(f"\n=== {report.nodeid}, {report.when}\n{report.longreprtext}\n===", flush=True)


@pytest.fixture(scope="session")
def guest():
    """The host, set up once."""
    guest = Guest().setup()
    yield guest
    guest.teardown()


@pytest.fixture(autouse=True)
def lab(guest):
    """A bench to work on, cleared afterwards; then the world must be as it was before."""
    with cleared(guest) as bench:
        yield bench


@pytest.fixture(scope="module")
def report(request):
    """For what a module measures: it is left, as JSON, in the file that the module's REPORT names, beside junit.xml."""
    found = {}
    yield found
    with open(os.path.join(os.environ["RELVMOISCSI_VM"], request.module.REPORT), "w", encoding="utf-8") as file:
        json.dump(found, file, indent=2)


# --- SR.create


@pytest.fixture(scope="session")
def warm(guest):
    """Has what drivers import, and forks for each call."""
    warm = Warm()
    yield warm
    warm.stop()


@pytest.fixture(scope="session")
def host_with_sm(guest, warm):
    """What SM and the driver leave on every host is there, and so are our udev rules."""
    xapi.set_up_host()


@pytest.fixture(scope="session")
def sm_dir(tmp_path_factory):
    """A directory with our driver and a stand-in for lvmoiscsi."""
    return sm_directory(tmp_path_factory.mktemp("sm"), xapi.DRIVER, DRIVERS / "LVMoISCSISR")


@pytest.fixture(scope="session")
def known_drivers():
    """{directory: what its drivers said of themselves}: xapi asks them when it starts, a test needs it asked once."""
    return {}


@pytest.fixture
def make_pool(lab, host_with_sm, warm, sm_dir, known_drivers):
    """Makes a pool of hosts, with the [driver] section of `configure`, which goes when the test ends.

    `drivers` is another directory of drivers, `options` are those of Pool. Calls are forks of `warm`, unless
    `executes`. `ask_again`: the drivers are asked what they are, as those of the first pool were.
    """
    pools, ends = [], ExitStack()

    def make(multipathing="false", drivers=None, ask_again=None, executes=False, **options):
        os.makedirs(os.path.dirname(XAPI_SOCKET), exist_ok=True)
        xapi.configure()
        directory = drivers or sm_dir
        ask_again = bool(drivers) if ask_again is None else ask_again
        pool = Pool(directory, XAPI_SOCKET, drivers=None if ask_again else known_drivers.get(directory), **options)
        ends.callback(pool.stop)
        pool.runner.in_process["LVMoISCSISR"] = standin.reply
        if not executes:
            pool.runner.start = warm.start
        pool.__enter__()
        pools.append(pool)
        known_drivers[directory] = pool.storage.drivers
        for host in pool.hosts:
            pool.db.set("host", host, "other_config", {"iscsi_iqn": INITIATOR, "multipathing": multipathing})
        return pool

    ends.callback(xapi.CONFIG.unlink, missing_ok=True)
    with ends:
        yield make
        for pool in pools:
            pool.runner.continue_all()
        lab.end_calls()


@pytest.fixture
def pool(make_pool):
    return make_pool()


@pytest.fixture
def image(lab):
    """The smallest golden LUN: one VDI."""
    return lab.image("one")


@pytest.fixture
def original(lab, image):
    """The LUN of the SR, behind a target of its own."""
    return lab.lun(image)


@pytest.fixture
def clone(lab, image):
    return lab.lun(image.clone("clone.img"))


@pytest.fixture
def standin_sees(lab):
    """Tells the stand-in for lvmoiscsi of LUNs, and how to reach them."""

    def of(target, lun):
        chap = {"chapuser": target.chap.user, "chappassword": target.chap.password} if target.chap else {}
        return {"target": "127.0.0.1", "targetIQN": target.iqn, "LUNid": str(lun.number), "SCSIid": lun.scsi_id,
                "device": "/dev/disk/by-id/scsi-" + lun.scsi_id, **chap}  # fmt: skip

    def tell(*targets):
        users = ["{chapuser}", "{chappassword}"] if any(target.chap for target in targets) else []
        words = {"attach": ["login", "{targetIQN}", "{portal}", *users], "detach": ["logout", "{targetIQN}"],
                 "list": ["list", "{targetIQN}"]}  # fmt: skip
        told = {name: [["kit.lab.reach", *rest]] for name, rest in words.items()}
        told["luns"] = [of(target, lun) for target in targets for lun in target.luns]
        told["references"] = str(initiator.SR_REF)
        with open(standin.LAB, "w", encoding="utf-8") as file:
            json.dump(told, file)

    yield tell
    if os.path.exists(standin.LAB):
        os.unlink(standin.LAB)
