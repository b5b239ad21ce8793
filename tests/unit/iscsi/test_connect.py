# SPDX-License-Identifier: LGPL-2.1-only
"""Names and portals: resolved and connected in bounded time, each failure with its own sentence; and how it is said."""

import errno
import os
import socket
import threading

import pytest

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import NotFound, Refused, Unreachable, UsageError
from relvmoiscsi.iscsi import Portal
from relvmoiscsi.iscsi.connect import connect, resolve
from relvmoiscsi.iscsi.target_sessions import isid_of_reader, isid_of_writer


@pytest.fixture
def listener():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(4)
        yield sock


def never(*_):
    raise AssertionError("no name server is asked for an address")


def only_numbers(host, port, family, kind, protocol, flags):
    if flags & socket.AI_NUMERICHOST:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return [(socket.AF_INET, kind, 0, "", ("127.0.0.1", port)), (socket.AF_INET6, kind, 0, "", ("::1", port, 0, 0))]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_address_is_asked_of_nobody_and_a_name_may_have_several(host, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", never)

    (found,) = resolve(Portal(host, 3260), 60)

    assert found[1][:2] == (host, 3260)
    monkeypatch.undo()
    assert [one[1][0] for one in resolve(Portal("san", 3260), 60, only_numbers)] == ["127.0.0.1", "::1"]


def test_a_name_server_that_does_not_answer_is_given_up():
    release, answered = threading.Event(), []

    def silent(*arguments):
        if arguments[-1] & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        release.wait(60)
        answered.append(1)
        return []

    with pytest.raises(NotFound, match="no name server answered within 0.1 seconds") as caught:
        resolve(Portal("san", 3260), 0.1, silent)

    assert caught.value.sm_key == "DNSError"
    assert not answered
    release.set()


@pytest.mark.parametrize("error", [UnicodeError("label too long"), socket.gaierror(socket.EAI_NONAME, "not known")])
def test_a_name_that_nobody_knows_is_said(error):
    def lookup(*_):
        raise error

    with pytest.raises(NotFound, match="has no address: .*Check the name") as caught:
        resolve(Portal("no.such.host.invalid", 3260), 60, lookup)

    assert caught.value.sm_key == "DNSError"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_where_this_process_can_open_no_more_files_the_portal_is_not_blamed(number, monkeypatch):
    def full(*_):
        raise OSError(number, os.strerror(number))

    with pytest.raises(Refused, match="^This process cannot open enough files: ") as caught:
        resolve(Portal("san", 3260), 60, full)
    assert caught.value.advice
    monkeypatch.setattr(socket, "socket", full)
    with pytest.raises(Refused, match="^This process cannot open enough files: "):
        connect(Portal("127.0.0.1", 3260), "", Deadline(5))


def test_a_portal_that_does_not_answer_ends_with_the_deadline():
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        with pytest.raises(NotFound, match="does not answer: no TCP connection within") as caught:
            connect(Portal("127.0.0.1", port), "", Deadline(0.3))
        for one in waiting:
            one.close()

    assert caught.value.sm_key == "ISCSITarget"


@pytest.mark.parametrize(
    "number, words",
    [
        (errno.EHOSTUNREACH, "no route to the portal .*relvmohba"),
        (errno.ECONNREFUSED, "Nothing listens at the portal 10.0.0.1:3260.*iSER"),
        (errno.EACCES, "takes no TCP connection: EACCES"),
    ],
)
def test_each_reason_says_what_to_do(number, words, monkeypatch):
    monkeypatch.setattr(socket.socket, "connect_ex", lambda *_: number)
    with pytest.raises(Unreachable, match=words):
        connect(Portal("10.0.0.1", 3260), "", Deadline(5))


def both(port):
    """What a resolver answers for a name with an address of each family."""
    return [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::1", port, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
    ]


def test_an_address_of_a_family_that_the_kernel_lacks_is_one_address_without_an_answer(listener, monkeypatch):
    port = listener.getsockname()[1]

    class WithoutIpv6(socket.socket):
        def __init__(self, family=-1, *arguments, **more):
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *arguments, **more)

    monkeypatch.setattr(socket, "socket", WithoutIpv6)
    with connect(Portal("both.test", port), "", Deadline(60), lambda *_: both(port)) as connection:
        assert connection.getpeername() == ("127.0.0.1", port)
    with pytest.raises(Unreachable, match=r"no route to the portal \[fd00::1\].*EAFNOSUPPORT"):
        connect(Portal("fd00::1", port), "", Deadline(5), lambda *_: both(port)[:1])


@pytest.mark.parametrize("interface", ["", "127.0.0.5", "lo"])
def test_a_connection_does_not_block_and_leaves_from_an_address_or_through_an_interface(listener, interface):
    if interface == "lo" and os.geteuid() != 0:
        pytest.skip("only root may choose a network interface")
    with connect(Portal("127.0.0.1", listener.getsockname()[1]), interface, Deadline(60)) as connection:
        option = connection.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0").decode()
        assert interface in (connection.getsockname()[0], option)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        with pytest.raises(BlockingIOError):
            connection.recv(1)


def test_an_address_of_another_family_than_the_interface_is_one_address_without_an_answer(listener):
    port = listener.getsockname()[1]

    with connect(Portal("both.test", port), "127.0.0.5", Deadline(60), lambda *_: both(port)) as connection:
        assert connection.getsockname()[0] == "127.0.0.5"
    for interface, row in (("127.0.0.5", 0), ("::1", 1)):
        with pytest.raises(Unreachable, match=f"can leave through {interface}: .* families") as caught:
            connect(Portal("one.test", port), interface, Deadline(60), lambda *_, row=row: [both(port)[row]])
        assert "Check the iface of open-iscsi" in caught.value.advice


@pytest.mark.parametrize("interface", ["no-such-nic", "192.0.2.77"])
def test_an_interface_that_is_not_there_is_named(interface, listener):
    with pytest.raises(Refused, match=f"through {interface}") as caught:
        connect(Portal("127.0.0.1", listener.getsockname()[1]), interface, Deadline(60))

    assert caught.value.sm_key == "ISCSIInitiator"


def test_isids_are_of_the_random_kind_and_of_host_target_and_lun():
    one = isid_of_writer("host", "iqn.a", "3600")

    assert one == isid_of_writer("host", "iqn.a", "3600")
    for other in (("host2", "iqn.a", "3600"), ("host", "iqn.b", "3600"), ("host", "iqn.a", "3601")):
        assert one not in (isid_of_writer(*other), isid_of_writer("hos", "tiqn.a", "3600"))
    assert isid_of_reader() != isid_of_reader()
    assert {(isid[0], len(isid)) for isid in (one, isid_of_reader())} == {(0x80, 6)}
    with pytest.raises(UsageError, match="UUID of this host"):
        isid_of_writer("", "iqn.a", "3600")
