# SPDX-License-Identifier: LGPL-2.1-only
"""A name that is not known, a closed port, a lost route and silence are four different answers, in bounded time."""

import errno
import socket
import threading

import pytest

from kit.clock import Clock
from relvmoiscsi.errors import NotFound
from relvmoiscsi.host.deadline import Deadline, OutOfTime
from relvmoiscsi.host.iscsi.portals import Portal, parse_portal, same_portal
from relvmoiscsi.host.iscsi.reach import in_turn, reach, resolve

FILER = Portal("filer", 3260)


def answers(*addresses):
    """A resolver, as socket.getaddrinfo is one."""

    def lookup(name, port, family, kind):
        assert (family, kind) == (0, socket.SOCK_STREAM)
        return [(socket.AF_INET, kind, 6, "", (address, port)) for address in addresses]

    return lookup


def fails(error):
    def function(*_):
        raise error

    return function


class Connection:
    closed = 0

    def close(self):
        Connection.closed += 1


def test_a_portal_is_written_with_brackets_around_ipv6():
    assert str(Portal("10.0.0.1", 3260)) == "10.0.0.1:3260"
    assert str(Portal("fd00::1", 3260)) == "[fd00::1]:3260"


@pytest.mark.parametrize("text", ["10.0.0.1:3260", "[fd00::1]:860", "filer:1"])
def test_a_portal_is_read_as_it_is_written(text):
    assert str(parse_portal(text)) == text


@pytest.mark.parametrize("text", ["", "filer", ":3260", "filer:", "filer:x"])
def test_what_is_no_portal_is_not_read(text):
    with pytest.raises(ValueError, match="no portal"):
        parse_portal(text)


@pytest.mark.parametrize(
    "one, other, same",
    [
        (Portal("10.0.0.1", 1), Portal("10.0.0.1", 1), True),
        (Portal("10.0.0.1", 1), Portal("10.0.0.1", 2), False),
        (Portal("fd00::1", 1), Portal("FD00:0:0::0001", 1), True),
        (Portal("fe80::1%eth0", 1), Portal("fe80::1", 1), True),
        (Portal("Filer", 1), Portal("filer", 1), True),
        (Portal("filer", 1), Portal("10.0.0.1", 1), False),
    ],
)
def test_portals_are_the_same_however_they_are_written(one, other, same):
    assert same_portal(one, other) is same


def test_a_name_stands_for_all_its_addresses_once():
    found = resolve(FILER, lookup=answers("10.0.0.1", "10.0.0.2", "10.0.0.1"))

    assert found == [Portal("10.0.0.1", 3260), Portal("10.0.0.2", 3260)]


def test_an_address_needs_no_name_server():
    assert resolve(Portal("127.0.0.1", 3260)) == [Portal("127.0.0.1", 3260)]


@pytest.mark.parametrize(
    "lookup, words",
    [
        (fails(socket.gaierror(-2, "Name or service not known")), "Name or service not known"),
        (fails(UnicodeError("label empty or too long")), "label empty"),
        (answers(), "it has no address"),
    ],
)
def test_a_name_without_an_address_is_an_error(lookup, words):
    with pytest.raises(NotFound, match=words) as caught:
        resolve(FILER, lookup=lookup)
    assert caught.value.sm_key == "DNSError"


def test_a_name_server_that_is_silent_is_not_waited_for():
    forever = threading.Event()
    try:
        with pytest.raises(NotFound, match="no name server answered within 0.05 seconds") as caught:
            resolve(FILER, timeout=0.05, lookup=lambda *_: [forever.wait(60)])
    finally:
        forever.set()
    assert caught.value.sm_key == "DNSError"


@pytest.mark.parametrize(
    "error, words",
    [
        (
            ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
            "Nothing listens at the portal 10.0.0.1:3260",
        ),
        (socket.timeout("timed out"), "does not answer: no TCP connection within 5 seconds"),
        (OSError(errno.ETIMEDOUT, "Connection timed out"), "does not answer"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "has no route to the portal .*: No route to host"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "has no route"),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), "takes no TCP connection: Cannot assign"),
    ],
)
def test_each_way_not_to_be_reached_has_its_sentence(error, words):
    with pytest.raises(NotFound, match=words) as caught:
        reach(FILER, connect=fails(error), lookup=answers("10.0.0.1"))
    assert caught.value.sm_key == "ISCSITarget"


def test_the_first_address_that_takes_a_connection_is_taken():
    tried = []

    def connect(address, timeout):
        tried.append((address, timeout))
        if address[0] == "10.0.0.1":
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        return Connection()

    before = Connection.closed
    assert reach(FILER, 2.0, connect, answers("10.0.0.1", "10.0.0.2", "10.0.0.3")) == Portal("10.0.0.2", 3260)
    assert tried == [(("10.0.0.1", 3260), 2.0), (("10.0.0.2", 3260), 2.0)]
    assert Connection.closed == before + 1


def test_of_several_addresses_each_says_why_not():
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    with pytest.raises(NotFound, match="10.0.0.1:3260.*10.0.0.2:3260"):
        reach(FILER, connect=fails(refused), lookup=answers("10.0.0.1", "10.0.0.2"))


def test_a_real_port_is_tried():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        portal = Portal(*server.getsockname())
        assert reach(portal) == portal
    with pytest.raises(NotFound, match="Nothing listens"):
        reach(portal)


# --- the time


def test_a_silent_portal_leaves_time_for_those_behind_it():
    clock = Clock()
    portals = [Portal(f"10.0.0.{number}", 3260) for number in range(3)]

    began, limits = clock.now, []
    for portal, seconds in in_turn(portals, Deadline(50, clock)):
        limits.append((portal, seconds))
        if portal != portals[-1]:
            clock.now += seconds  # it says nothing until its time is over

    assert [portal for portal, _ in limits] == portals
    assert clock.now - began < 20
    assert limits[-1][1] == 50 - (clock.now - began), "the last one has all that is left"


def test_a_short_budget_is_shared_between_portals_and_the_work():
    clock = Clock()
    portals = [Portal(f"10.0.0.{number}", 3260) for number in range(4)]

    for _, seconds in in_turn(portals, Deadline(20, clock)):
        assert seconds >= 4
        clock.now += min(seconds, 4)


def test_no_address_is_tried_after_the_deadline():
    clock, tried = Clock(), []

    def silent(address, timeout):
        tried.append(timeout)
        clock.now += timeout
        raise socket.timeout("timed out")

    with pytest.raises(OutOfTime, match="10.0.0.3:3260"):
        reach(FILER, connect=silent, lookup=answers("10.0.0.1", "10.0.0.2", "10.0.0.3"), deadline=Deadline(8, clock))

    assert tried == [5, 3]
