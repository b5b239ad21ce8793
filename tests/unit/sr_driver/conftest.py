# SPDX-License-Identifier: LGPL-2.1-only
"""SMlog in memory, the driver's main called in this process, and a simulated xapi."""

import shutil
import tempfile

import pytest

from kit import driver_calls
from kit.pool.simulator import Pool
from relvmoiscsi.host import settings
from relvmoiscsi.sr_driver.main import main


@pytest.fixture(autouse=True)
def no_line_goes_to_this_machines_log(smlog):
    """The driver logs wherever it runs."""


@pytest.fixture(autouse=True)
def the_settings_of_this_machine_count_for_no_call(monkeypatch):
    monkeypatch.setattr(settings, "read_config", lambda _path: "")


@pytest.fixture
def answer(capsysbinary):
    """The answer to a call: `answer(text of the argument)`."""

    def of(*arguments):
        capsysbinary.readouterr()
        assert main(["/opt/xensource/sm/ReLVMoISCSISR", *arguments]) == 0
        return driver_calls.read(*capsysbinary.readouterr())

    return of


@pytest.fixture
def socket_directory():
    """A directory whose name leaves room: the path of a unix socket may have 107 bytes."""
    path = tempfile.mkdtemp(prefix="xapi", dir="/tmp")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def pool(tmp_path, socket_directory):
    """A pool without drivers."""
    (tmp_path / "sm").mkdir()
    with Pool(tmp_path / "sm", socket_directory + "/xapi") as started:
        yield started
