# SPDX-License-Identifier: LGPL-2.1-only
"""Pools with the drivers a test writes."""

import os
import shutil
import uuid
from contextlib import ExitStack

import pytest
import XenAPI

from kit import pool_fakes
from kit.pool import client
from kit.pool.simulator import Pool


@pytest.fixture
def start(tmp_path):
    """Starts a pool: `start({"FakeSR": text of a driver}, hosts=("a", "b"))`."""
    drivers = tmp_path / "sm"
    drivers.mkdir()
    sockets = "/tmp/xapi" + uuid.uuid4().hex  # short, and without the underscore that XenAPI.UDSTransport turns into /
    os.mkdir(sockets, 0o700)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, sockets)

        def start_pool(texts=(), **options):
            for name, text in dict(texts).items():
                pool_fakes.install(drivers, name, text)
            options.setdefault("sm_plugins", "*")
            return stack.enter_context(Pool(drivers, sockets + "/xapi", **options))

        yield start_pool


@pytest.fixture
def connect():
    """A session on a pool: `connect(pool)`."""
    with ExitStack() as stack:
        yield lambda pool, **options: stack.enter_context(client.connected(pool, **options))


@pytest.fixture
def errors():
    """The ErrorDescription of a call that fails: `errors(call, parameters...)`."""

    def of(call, *params, **options):
        with pytest.raises(XenAPI.Failure) as caught:
            call(*params, **options)
        return caught.value.details

    return of
