# SPDX-License-Identifier: LGPL-2.1-only
"""Real targets on loopback, as ordinary processes: tgt and istgt of the distribution. No VM, no kernel target.

    with Tgt(tmp_path, [Export(1, path), Export(300, other, block_size=4096, read_only=True)],
             chap=Chap("user", "secret"), mutual=Chap("target", "secret"), HeaderDigest="CRC32C") as tgt:
        tgt.portal, tgt.iqn         LUN 0 of tgt is a controller of its own; its exports begin at 1
        tgt.freeze(), tgt.thaw()    SIGSTOP, SIGCONT
        tgt.kill(), tgt.start()     SIGKILL; the same target again, at the same port

They die with the tests: the kernel kills them when this process ends, whatever ends it. A test asks for them by
`require("tgtd")`, which skips where a program is missing and fails in CI.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from typing import NamedTuple

#: a busy machine takes its time
START_SECONDS = 60.0
#: programs are in sbin, which the PATH of a user need not have
_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
_ESTABLISHED = "01"  #: in /proc/net/tcp


class Export(NamedTuple):
    """A file as a LUN."""

    number: int
    path: str
    block_size: int = 512
    read_only: bool = False


def missing(*programs):
    """Those of the programs that are not installed."""
    return [program for program in programs if shutil.which(program, path=_PATH) is None]


def require(*programs):
    """Skip, in CI fail, a test for which one of the programs is missing."""
    import pytest  # noqa: PLC0415 - Cinder's tests are unittest's

    absent = missing(*programs)
    if absent:
        reason = f"{', '.join(absent)} is not installed; tools/need-packages.sh installs it"
        if os.environ.get("CI") == "true":
            pytest.fail(reason + "; in CI this may not be skipped", pytrace=False)
        pytest.skip(reason)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Program:
    """A process that serves `port`, from `start` to the end of `with`."""

    def __init__(self, directory):
        self.directory = directory
        self.port = free_port()
        self.portal = f"127.0.0.1:{self.port}"
        self._process = None

    def argv(self):
        raise NotImplementedError

    def environment(self):
        return dict(os.environ, PATH=_PATH)

    def prepare(self):
        """What makes the process a target, once it runs."""

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_):
        self.kill()

    @property
    def log(self):
        with open(self._log_path(), errors="replace") as log:
            return log.read()

    def start(self):
        with open(self._log_path(), "ab") as log:
            argv = ["setpriv", "--pdeathsig", "KILL", *self.argv()]
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment(), cwd=str(self.directory)
            )
        self._until(self._listens, "listens at its port")
        self.prepare()

    def freeze(self):
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self._process.send_signal(signal.SIGCONT)

    def wait_for_initiator(self):
        """Until an initiator has a connection to this port; a frozen target has one as well, and does not answer."""
        self._until(self._has_initiator, "has an initiator")

    def _has_initiator(self):
        with open("/proc/net/tcp", encoding="ascii") as table:
            rows = [line.split() for line in table]
        return any(row[2].endswith(f":{self.port:04X}") and row[3] == _ESTABLISHED for row in rows)

    def kill(self):
        """As a power cut of the target's machine is for the initiator, but what it wrote is in the file."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def run(self, *argv):
        """A helper program, which has to succeed; what it prints."""
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=START_SECONDS, env=self.environment(),
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(argv)}: {done.stdout.decode()}\n{self.log}"
        return done.stdout.decode()

    def _log_path(self):
        return os.path.join(str(self.directory), f"{type(self).__name__.lower()}-{self.port}.log")

    def _listens(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def _until(self, holds, what):
        end = time.monotonic() + START_SECONDS
        while not holds():
            assert self._process.poll() is None, f"{self.argv()[0]} has ended: {self.log}"
            assert time.monotonic() < end, f"{self.argv()[0]}: not after {START_SECONDS} s that it {what}: {self.log}"
            time.sleep(0.01)


class Tgt(Program):
    """tgt (tgtd, tgtadm): any LUN numbers, 4Kn, CHAP of both sides. Further arguments are its parameters of a target:
    HeaderDigest, DataDigest, MaxRecvDataSegmentLength, ImmediateData, MaxBurstLength, FirstBurstLength ...
    """

    iqn = "iqn.2026-01.test.tgt:array"

    def __init__(self, directory, exports, chap=None, mutual=None, **parameters):
        super().__init__(directory)
        self._exports, self._chap, self._mutual, self._parameters = exports, chap, mutual, parameters

    def argv(self):
        return ["tgtd", "-f", "-D", "--iscsi", f"portal={self.portal}", "-C", "0"]

    def environment(self):
        # a path of at most 107 bytes, which is what a socket may have
        return dict(super().environment(), TGT_IPC_SOCKET=os.path.join(self._sockets(), "tgt"))

    def _sockets(self):
        path = f"/tmp/tgt-{os.getpid()}-{self.port}"
        os.makedirs(path, mode=0o700, exist_ok=True)
        return path

    def kill(self):
        super().kill()
        shutil.rmtree(self._sockets())

    def admin(self, *argv):
        return self.run("tgtadm", "-C", "0", "--lld", "iscsi", *argv)

    def prepare(self):
        target = ("-t", "1")
        self.admin("--op", "new", "-m", "target", *target, "-T", self.iqn)
        for export in self._exports:
            unit = ("-m", "logicalunit", *target, "-l", str(export.number))
            self.admin("--op", "new", *unit, "-b", str(export.path), "-y", str(export.block_size))
            if export.read_only:
                self.admin("--op", "update", *unit, "--params", "readonly=1")
        for name, value in self._parameters.items():
            self.admin("--op", "update", "-m", "target", *target, "-n", name, "-v", str(value))
        for chap, direction in ((self._chap, ()), (self._mutual, ("--outgoing",))):
            if chap is not None:
                self.admin("--op", "new", "-m", "account", "--user", chap.user, "--password", chap.secret)
                self.admin("--op", "bind", "-m", "account", *target, "--user", chap.user, *direction)
        self.admin("--op", "bind", "-m", "target", *target, "-I", "ALL")


class Istgt(Program):
    """istgt: sends NOP-Ins, may want CHAP for the discovery and digests. Its LUNs are numbered from 0."""

    iqn = "iqn.2026-01.test.istgt:array"

    def __init__(self, directory, paths, chap=None, mutual=None, **more):
        super().__init__(directory)
        self._paths, self._chap, self._mutual = paths, chap, mutual
        self._digest = more.get("digest", "Auto")  #: "Header Data": insists on both
        self._discovery_chap = more.get("discovery_chap", False)

    def argv(self):
        return ["istgt", "-D", "-c", self._configured(), "-p", os.path.join(str(self.directory), "istgt.pid")]

    def _configured(self):
        method = "CHAP Mutual" if self._mutual else "CHAP" if self._chap else "None"
        luns = "\n".join(f"  LUN{number} Storage {path} Auto" for number, path in enumerate(self._paths))
        auth, conf = (os.path.join(str(self.directory), name) for name in ("auth.conf", "istgt.conf"))
        user = [f'"{chap.user}" "{chap.secret}"' for chap in (self._chap, self._mutual) if chap]
        with open(auth, "w") as file:
            file.write("[AuthGroup1]\n" + (f"  Auth {' '.join(user)}\n" if user else ""))
        os.chmod(auth, 0o600)
        with open(conf, "w") as file:
            file.write(_ISTGT.format(
                base=self.iqn.split(":", 1)[0], name=self.iqn.split(":", 1)[1], directory=self.directory, auth=auth,
                discovery=method if self._discovery_chap else "Auto", portal=self.portal,
                method=method, digest=self._digest, luns=luns,
            ))  # fmt: skip
        return conf


_ISTGT = """[Global]
  NodeBase "{base}"
  PidFile {directory}/istgt.pid
  AuthFile {auth}
  MediaDirectory {directory}
  LogFacility "local7"
  Timeout 30
  NopInInterval 2
  DiscoveryAuthMethod {discovery}
  DiscoveryAuthGroup AuthGroup1
  MaxSessions 16
  MaxConnections 4
  MaxR2T 32
  MaxOutstandingR2T 16
  DefaultTime2Wait 2
  DefaultTime2Retain 60
  FirstBurstLength 262144
  MaxBurstLength 1048576
  MaxRecvDataSegmentLength 262144
  InitialR2T Yes
  ImmediateData Yes
  DataPDUInOrder Yes
  DataSequenceInOrder Yes
  ErrorRecoveryLevel 0
[UnitControl]
  AuthMethod CHAP
  AuthGroup AuthGroup1
  Netmask 127.0.0.1
[PortalGroup1]
  Portal DA1 {portal}
[InitiatorGroup1]
  InitiatorName "ALL"
  Netmask 127.0.0.0/8
[LogicalUnit1]
  TargetName {name}
  Mapping PortalGroup1 InitiatorGroup1
  AuthMethod {method}
  AuthGroup AuthGroup1
  UseDigest {digest}
  UnitType Disk
{luns}
"""
