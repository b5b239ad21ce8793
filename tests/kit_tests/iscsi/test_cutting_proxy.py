# SPDX-License-Identifier: LGPL-2.1-only
"""The proxy forwards what it may, and cuts at the byte that it was told."""

import pytest
from plain import Plain

from kit.iscsi.hostile import HostileTarget
from kit.iscsi.proxy import FIN, CuttingProxy, sweep
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
