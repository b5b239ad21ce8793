# SPDX-License-Identifier: LGPL-2.1-only
"""SMlog in memory, the driver's main called in this process, and a simulated xapi."""

import logging
import shutil
import syslog
import tempfile

import driver_calls
import pytest

from pool.simulator import Pool
from relvmoiscsi.driver.main import main


@pytest.fixture(autouse=True)
def smlog(monkeypatch):
    """The lines that went to SMlog: [(priority, text)]; nothing goes to this machine's."""
    lines = []
    monkeypatch.setattr(syslog, "syslog", lambda priority, text: lines.append((priority, text)))
    logger = logging.getLogger("relvmoiscsi")
    handlers, level = list(logger.handlers), logger.level
    yield lines
    logger.handlers[:] = handlers
    logger.setLevel(level)


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
