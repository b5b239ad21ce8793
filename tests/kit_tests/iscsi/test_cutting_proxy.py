# SPDX-License-Identifier: LGPL-2.1-only
"""The proxy forwards what it may, and cuts at the byte that it was told."""

import time

import pytest
from plain import Plain

from kit.iscsi.hostile import HostileTarget
from kit.iscsi.proxy import FIN, SILENCE, Cut, CuttingProxy, sweep
from kit.iscsi.wire import Gone


class Through(Plain):
    """The plain initiator, by way of a proxy."""

    def __init__(self, target, proxy):
        self._proxy = proxy
        super().__init__(Portals(target, proxy))


class Portals:
    """A target whose portal is that of the proxy."""

    def __init__(self, target, proxy):
        self.portals, self.iqn, self.luns = [proxy.portal], target.iqn, target.luns


def whole(target, proxy):
    with Through(target, proxy) as plain:
        plain.login()
        plain.known()
        plain.write(0, b"w" * 2048)
        assert plain.read(0, 4)[1] == b"w" * 2048
        plain.logout()


def test_without_a_cut_all_goes_through():
    with HostileTarget() as target, CuttingProxy(target.portal) as proxy:
        whole(target, proxy)

        assert proxy.passed("out") > 2048 and proxy.passed("in") > 2048
        assert (proxy.connections, proxy.cut) == (1, 0)


@pytest.mark.parametrize("how", ["RST", FIN])
def test_a_sweep_cuts_at_each_of_its_bytes(how):
    with HostileTarget(ignore=["isid kept"]) as target:
        with CuttingProxy(target.portal) as proxy:
            whole(target, proxy)
        cuts = list(sweep(proxy.lengths(), 197, how))
        assert len(cuts) > 20

        for cut in cuts:
            with CuttingProxy(target.portal, [cut]) as proxy:
                with pytest.raises((OSError, Gone)):
                    whole(target, proxy)
                proxy.wait_for_cut()
                assert proxy.passed(cut.way) == cut.after


def test_a_second_cut_strikes_the_connection_after():
    with HostileTarget() as target, CuttingProxy(target.portal, [Cut("out", 400), Cut("in", 900)]) as proxy:
        for _ in range(2):
            with pytest.raises((OSError, Gone)):
                whole(target, proxy)
        whole(target, proxy)

        assert (proxy.cut, proxy.connections) == (2, 3)


def test_silence_leaves_the_connection_open():
    cut = Cut("in", 100, SILENCE)
    with HostileTarget() as target, CuttingProxy(target.portal, [cut]) as proxy, Through(target, proxy) as plain:
        plain.sock.settimeout(0.2)
        with pytest.raises(OSError, match="timed out"):
            plain.login()
        plain.sock.sendall(b"still open")


def test_a_delay_is_added_to_each_round_trip():
    with HostileTarget() as target, CuttingProxy(target.portal, delay=0.05) as proxy, Through(target, proxy) as plain:
        began = time.monotonic()
        plain.stage(0, 1, dict(plain.naming(), AuthMethod="None"))

        assert 0.05 <= time.monotonic() - began < 2


def test_a_target_that_is_not_there_resets():
    with CuttingProxy("127.0.0.1:1") as proxy, HostileTarget() as target, pytest.raises((OSError, Gone)):
        whole(target, proxy)
