# SPDX-License-Identifier: LGPL-2.1-only
"""The time that an answer of a pool may take: all of it, and not each byte."""

import io
import itertools
import socket
from types import SimpleNamespace

import pytest

from relvmoiscsi.host.xapi import rpc

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"


@pytest.fixture
def answered(monkeypatch):
    """What a client reads whose server sends these parts, each so many seconds after the last; the limit is 60."""

    def answered(parts, seconds):
        now = itertools.count(0, seconds)
        monkeypatch.setattr(rpc, "time", SimpleNamespace(monotonic=lambda: next(now)))
        client, server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a read gives one part
        with client, server:
            client.settimeout(60)
            for part in parts:
                server.send(part)
            with rpc.BoundedResponse(client) as response:
                response.begin()
                return response.read()

    return answered


def test_an_answer_that_drips_ends_at_the_limit(answered):
    drops = [bytes([byte]) for byte in HEAD + b"abc"]
    assert answered(drops, 1) == b"abc"
    with pytest.raises(socket.timeout, match="not complete after 60 seconds"):
        answered(drops, 20)
    with pytest.raises(socket.timeout, match="not complete after 60 seconds"):
        answered([HEAD, b"a", b"b", b"c"], 29)


def test_no_read_waits_for_longer_than_the_answer_has_left(monkeypatch):
    """A server that sends a byte, and then nothing."""
    now, waits = itertools.count(0, 25), []
    monkeypatch.setattr(rpc, "time", SimpleNamespace(monotonic=lambda: next(now)))

    class Connection:
        def gettimeout(self):
            return 60

        def settimeout(self, seconds):
            waits.append(seconds)

        def makefile(self, *_, **__):
            return io.BytesIO(HEAD)

    answer = rpc._TimedSocket(Connection())
    assert answer.readinto(bytearray(1)) == 1 and answer.readinto(bytearray(1)) == 1
    assert [round(seconds) for seconds in waits] == [35, 60, 10, 60]


def test_a_large_answer_has_the_time_of_a_slow_line(answered, monkeypatch):
    monkeypatch.setattr(rpc, "SLOWEST_BYTES", 10)
    parts = [HEAD.replace(b"3", b"100"), *[b"12345"] * 20]
    assert len(answered(parts, 2)) == 100  # 80 seconds and more
