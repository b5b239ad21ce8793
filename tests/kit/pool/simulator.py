# SPDX-License-Identifier: LGPL-2.1-only
"""A pool of simulated hosts, for tests.

with Pool(drivers_directory, socket_path) as pool:
    session = client.connect(pool)
    session.xenapi.SR.create(...)
    assert not pool.log.grep("the CHAP secret")
"""

import os
from contextlib import ExitStack
from pathlib import Path

from . import plugins
from .api import Api, Member
from .database import Database
from .datamodel import RELEASES
from .near import near
from .runner import CallLog, Runner
from .server import TcpServer, UnixServer
from .storage import Storage

#: where a host's xapi listens
XAPI_SOCKET = "/var/lib/xcp/xapi"

#: the stand-in for lvmoiscsi
DRIVERS = Path(__file__).resolve().parent / "drivers"

SM_PLUGINS = plugins.STOCK_SM_PLUGINS + " relvmoiscsi relvmohba"


def sm_directory(path, *executables):
    """Make a directory of drivers: links to these files under their own names. Gives its path."""
    os.makedirs(str(path), exist_ok=True)
    for executable in executables:
        os.symlink(os.path.abspath(str(executable)), os.path.join(str(path), os.path.basename(str(executable))))
    return path


class Pool:
    """A pool whose first host is the master; all hosts are this machine.

    sm_dir         the directory of drivers
    socket_path    where the unix socket will be; XAPI_SOCKET is the real place. None: TCP only
    hosts          names of the hosts
    sm_plugins     the white list, as the setting's text
    observer       a Python by which drivers run under the observer, or None
    drivers        what `storage.drivers` of an earlier pool was; the start of the toolstack then executes none
    runner         what answers driver calls in place of executables; it comes with `drivers`
    tls            the ssl.SSLContext with which it listens; None: plain HTTP
    release        the xapi that is played, one of datamodel.RELEASES
    """

    def __init__(self, sm_dir, socket_path=None, hosts=("xs1", "xs2"), sm_plugins=SM_PLUGINS, observer=None,
                 drivers=None, runner=None, tls=None, release=RELEASES[0]):  # fmt: skip
        self.sm_dir, self.sm_plugins = sm_dir, sm_plugins
        self.log = CallLog()
        self.db = Database(release)
        self.runner = runner or Runner(self.log, observer)
        self.storage = Storage(self.db, self.runner)
        self.api = Api(self.db, self.storage)
        self.hosts = [self._new_host(number, name) for number, name in enumerate(hosts, 1)]
        self.master = self.hosts[0]
        self.pool = self.db.create("pool", name_label="simulated", master=self.master)
        self.rejected = {}  #: names of files that are no drivers here: why
        self._known_drivers = drivers
        self.socket_path = socket_path
        self.tls = tls
        self._servers = []
        self.url = None

    def _new_host(self, number, name):
        other_config = {"iscsi_iqn": "iqn.2026-01.test:" + name, "multipathing": "false"}
        return self.db.create(
            "host", name_label=name, hostname=name, address=f"192.0.2.{number}", other_config=other_config,
            software_version={"product_brand": "simulated", "xapi": self.db.release}, chipset_info={"iommu": "true"},
            capabilities=["xen-3.0-x86_64", "hvm-3.0-x86_64"],
            metrics=self.db.create("host_metrics"),
        )  # fmt: skip

    def __enter__(self):
        with ExitStack() as failing:
            failing.callback(self.stop)
            tcp = TcpServer(self.api, tls=self.tls)
            self._servers.append(tcp)
            self.url = tcp.url
            if self.socket_path:
                self._servers.append(UnixServer(self.api, self.socket_path))
            self._start_toolstack()
            failing.pop_all()
        return self

    def __exit__(self, *_):
        self.stop()

    @property
    def environment(self):
        """What tells `relvmoiscsi pool` and the Ansible modules where this pool is, and as whom."""
        named = {"HOST": self.url, "USER": self.api.user, "PASSWORD": self.api.password}
        return {"XENSERVER_" + name: value for name, value in named.items()}

    def stop(self):
        """End what still runs. A mistake of the simulator itself that a client has met comes up here."""
        self.runner.kill_all()
        servers, self._servers = self._servers, []
        with ExitStack() as stopping:  # each of them, even if another one fails
            for server in servers:
                stopping.callback(server.stop)
        errors = [error for server in servers for error in server.errors]
        assert not errors, errors
        assert not self.api.mistakes, f"no real xapi knows what was asked for: {self.api.mistakes}"

    @property
    def is_at_rest(self):
        """Everything that clients, gone by now, have asked for is done."""
        is_idle = all(server.is_idle for server in self._servers)  # first: a call may start a task
        return is_idle and not self.db.refs("task", status="pending")

    def near(self):
        """A block in which clients in this process need no network."""
        return near(self._servers[0])

    def listen_on_member(self):
        """The URL of a host that is not the master; as on real ones, the port is the same."""
        port = self._servers[0].server_address[1]
        member = TcpServer(Member("127.0.0.1", self.api), "127.0.0.2", port, tls=self.tls)
        self._servers.append(member)
        return member.url

    def go_down(self, host):
        """A host goes away; xapi has noticed."""
        self.storage.offline.add(host)
        self.db.set("host_metrics", self.db.get("host", host, "metrics"), "live", False)

    def come_back(self, host):
        self.storage.offline.discard(host)
        self.db.set("host_metrics", self.db.get("host", host, "metrics"), "live", True)

    def _start_toolstack(self):
        """Look for drivers, as xapi does when it starts."""
        if self._known_drivers is not None:
            self.storage.drivers = dict(self._known_drivers)
        else:
            found = plugins.discover(self.sm_dir, self.sm_plugins, self.runner, self.master)
            self.storage.drivers, self.rejected = found
        plugins.register(self.db, self.storage.drivers)

    def sm_list(self):
        """The lines of `xe sm-list` that have the names of drivers: CloudStack looks for words of ours."""
        return "".join(f"name-label ( RO): {record['name_label']}\n" for record in self.db.records("SM").values())

    def secrets(self):
        """The values of all secrets there are."""
        return sorted(record["value"] for record in self.db.records("secret").values())
