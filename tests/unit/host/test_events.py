# SPDX-License-Identifier: LGPL-2.1-only
"""Waiting ends with the event, whichever way events come.

The messages are those of a LIO LUN in the test VM (Linux 6.1, udev 252), with the fields that are read.
"""

import base64
import errno
import os
import socket
import time

import pytest

from kit.udev_world import Scripted
from relvmoiscsi.errors import NotFound
from relvmoiscsi.host import events as events_module
from relvmoiscsi.host.events import NoEvents, SocketEvents, listen, wait_for

#: received from the kernel (group 1): a workqueue, then a disk; and from udev (group 2), with its header
OF_A_WORKQUEUE = (
    b"add@/devices/virtual/workqueue/scsi_tmf_6\0ACTION=add\0DEVPATH=/devices/virtual/workqueue/scsi_tmf_6\0"
    b"SUBSYSTEM=workqueue\0SEQNUM=1321\0"
)
OF_A_DISK = (
    b"add@/devices/platform/host6/session1/target6:0:0/6:0:0:0/block/sda\0ACTION=add\0"
    b"DEVPATH=/devices/platform/host6/session1/target6:0:0/6:0:0:0/block/sda\0SUBSYSTEM=block\0MAJOR=8\0MINOR=0\0"
    b"DEVNAME=sda\0DEVTYPE=disk\0DISKSEQ=11\0SEQNUM=1343\0"
)
OF_A_MAP_FROM_UDEV = base64.b64decode(
    "bGlidWRldgD+7cr+KAAAACgAAABcAQAA8AMdt3vLxe4CAAQAEIAAAFVERVZfREFUQUJBU0VfVkVSU0lPTj0xAEFDVElPTj1hZGQAREVWUEFUSD0v"
    "ZGV2aWNlcy92aXJ0dWFsL2Jsb2NrL2RtLTAAU1VCU1lTVEVNPWJsb2NrAERFVk5BTUU9L2Rldi9kbS0wAERFVlRZUEU9ZGlzawBESVNLU0VRPTEy"
)


# --- waiting


def test_what_is_there_already_needs_no_event_and_listening_begins_before_the_first_look():
    order, events = [], Scripted()

    def listening(subsystem):
        order.append("listen to " + subsystem)
        return events

    assert wait_for(lambda: order.append("look") or ["sdb"], 10, "scsi", listening) == ["sdb"]
    assert order == ["listen to scsi", "look"]
    assert events.waits == [] and events.closed


def test_each_event_is_a_look_and_the_value_is_given_back():
    found = []
    events = Scripted(lambda: None, lambda: found.append("sdb"))

    assert wait_for(lambda: found, 600, listen=events) == ["sdb"]
    assert len(events.waits) == 2
    for found in ("there", ""):  # without time it is still looked once
        assert wait_for(lambda: found, 0, listen=Scripted()) == (found or None)  # noqa: B023 - called at once


def test_no_wait_is_longer_than_the_time_between_two_looks_or_than_what_is_left():
    events = Scripted(lambda: None, lambda: time.sleep(0.1))

    assert wait_for(lambda: None, 0.05, listen=events) is None
    assert all(0 < seconds <= 0.05 for seconds in events.waits) and events.closed

    events = Scripted(*[lambda: None] * 5)
    count = iter(range(6))
    wait_for(lambda: next(count) == 5, 1000, listen=events)
    assert max(events.waits) == events_module.RECHECK_SECONDS


def test_a_failing_condition_ends_the_wait_and_the_listening():
    events = Scripted()

    with pytest.raises(NotFound):
        wait_for(lambda: fail(NotFound("gone")), 10, listen=events)
    assert events.closed


def fail(error):
    raise error


# --- listening


class Socket:
    """A socket that gives these messages, or errors, and is readable as long as there are any."""

    def __init__(self, *messages, bind_error=None):
        self.messages = list(messages)
        self.bind_error = bind_error
        self.readable, self.signal = os.pipe()
        self.calls = []
        if messages:
            os.write(self.signal, b"x")

    def __call__(self, *kind):
        self.calls.append(("socket", *kind))
        return self

    def setsockopt(self, *option):
        self.calls.append(("setsockopt", *option))

    def bind(self, address):
        self.calls.append(("bind", address))
        if self.bind_error:
            raise self.bind_error

    def fileno(self):
        return self.readable

    def recv(self, size):
        message = self.messages.pop(0) if self.messages else BlockingIOError(errno.EAGAIN, "empty")
        if isinstance(message, OSError):
            raise message
        return message[:size]

    def close(self):
        self.calls.append(("close",))
        os.close(self.readable)
        os.close(self.signal)


def test_both_groups_are_listened_to():
    fake = Socket()

    SocketEvents("block", fake).close()

    assert fake.calls[0] == ("socket", 16, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, 15)
    assert fake.calls[-2:] == [("bind", (0, 3)), ("close",)]


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([OF_A_DISK], id="from the kernel"),
        pytest.param([OF_A_MAP_FROM_UDEV], id="from udev, behind its header"),
        pytest.param([OF_A_WORKQUEUE, OF_A_DISK, OF_A_WORKQUEUE], id="among others"),
        pytest.param([OSError(errno.ENOBUFS, "lost"), OF_A_WORKQUEUE], id="lost ones may have been of that kind"),
    ],
)
def test_an_event_of_the_subsystem_ends_the_wait_and_all_are_read(messages):
    fake = Socket(*messages)
    events = SocketEvents("block", fake)

    events.wait(600)

    assert fake.messages == []
    events.close()


def test_events_of_other_subsystems_do_not_end_the_wait():
    fake = Socket(OF_A_WORKQUEUE)
    events = SocketEvents("block", fake)
    os.read(fake.readable, 1)
    began = time.monotonic()

    events.wait(0.05)

    assert time.monotonic() - began >= 0.05 and fake.messages == []
    events.close()


def test_other_errors_of_the_socket_go_through_and_one_that_cannot_be_bound_is_closed():
    events = SocketEvents("block", Socket(OSError(errno.EBADF, "closed")))
    with pytest.raises(OSError, match="closed"):
        events.wait(1)
    events.close()

    fake = Socket(bind_error=PermissionError(errno.EPERM, "no"))
    with pytest.raises(PermissionError):
        SocketEvents("block", fake)
    assert fake.calls[-1] == ("close",)


def test_the_kernel_is_listened_to_and_where_it_gives_no_events_there_are_short_waits(monkeypatch):
    monkeypatch.setattr(SocketEvents, "__init__", lambda _self, _subsystem: None)
    assert type(listen("block")) is SocketEvents

    monkeypatch.setattr(SocketEvents, "__init__", lambda _self, _subsystem: fail(PermissionError(errno.EPERM, "no")))
    events = listen("block")
    events.wait(0.01)
    events.close()
    assert type(events) is NoEvents and events.recheck_seconds < events_module.RECHECK_SECONDS


def test_the_kernel_gives_such_a_socket():
    try:
        events = SocketEvents("block")
    except OSError as error:
        pytest.skip(f"no uevents here: {error}")
    events.wait(0)
    events.close()
