# SPDX-License-Identifier: LGPL-2.1-only
"""SR.create of type relvmoiscsi, by a real XenAPI client, at a simulated pool that executes the driver as xapi does."""

import contextlib
import os
import re
import shutil
import signal
import threading
import time
from pathlib import Path

import XenAPI

from kit.lab.command import HANGS, reload_rules
from kit.pool import client

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir, os.pardir))
CONFIG = Path("/etc/relvmoiscsi.conf")
RULES = "/etc/udev/rules.d"
DRIVER = os.path.join(TOP, "drivers/ReLVMoISCSISR")

#: the answer of a call that has done its work (docs/host.rst, "CloudStack's contract")
SUCCESS = [
    "SR_BACKEND_FAILURE_1",
    "",
    "Error reporting error, unknown key The SR has been successfully resigned. Use the lvmoiscsi type to attach it",
    "",
]
#: what stays on a host once SM and the driver have run there: locks that would be unsafe to remove
STAYING = ["/run/lock/sm/iscsiadm/running", "/run/lock/sm/iscsiadm/isciadm_running", "/run/lock/sm/.nil/lvm"]


def configure(deadline=1200, **more):
    """The [driver] section of this host. By this deadline a call ends its work, however slow the machine is."""
    settings = dict(more, deadline=deadline)
    CONFIG.write_text("[driver]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items()))


def set_up_host():
    """Locks of SM and of ours are there, and so are our udev rules."""
    os.makedirs("/run/relvmoiscsi", 0o700, exist_ok=True)
    install_rules()
    for path in STAYING:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a", encoding="ascii"):
            pass


def install_rules(pattern="*-relvmoiscsi.rules"):
    """Of the package; gives those that were not there."""
    came = [rules for rules in Path(TOP, "udev").glob(pattern) if not Path(RULES, rules.name).exists()]
    for rules in came:
        shutil.copy(str(rules), RULES)
    reload_rules()
    return [Path(RULES, rules.name) for rules in came]


def remove_rules(rules):
    for path in rules:
        path.unlink()
    reload_rules()


def config_of(array, lun, **more):
    """A device-config for a LUN behind the target `array`; None in `more` leaves a key out."""
    config = {"target": array.portal.rpartition(":")[0].strip("[]"), "targetIQN": array.iqn, "SCSIid": lun.scsi_id}
    config.update({"resign": "true"}, **more)
    return {key: value for key, value in config.items() if value is not None}


def introduce(pool, target, lun, uuid, name):
    """The original, as the pool has it: a PBD that says where its LUN is, and its VDIs."""
    with client.connected(pool) as session:
        api = session.xenapi
        sr = api.SR.introduce(uuid, name, "", "lvmoiscsi", "user", True, {})
        config = {"target": "127.0.0.1", "targetIQN": target.iqn, "SCSIid": lun.scsi_id}
        for host in api.host.get_all():
            api.PBD.plug(api.PBD.create({"host": host, "SR": sr, "device_config": config}))
        api.SR.scan(sr)
    return sr


def created(pool, array, lun, **more):
    """What XenAPI says to SR.create: the four strings of its failure."""
    with client.connected(pool) as session:
        api, config = session.xenapi, config_of(array, lun, **more)
        try:
            api.SR.create(api.host.get_all()[0], config, "0", "name", "", "relvmoiscsi", "user", True, {})
        except XenAPI.Failure as failure:
            return failure.details
    raise AssertionError("SR.create has made an SR, and must never do so")


def chosen(lab):
    """The SRs that the calls of this test have made of LUNs, by what the driver logged."""
    return set(re.findall(r"the LUN is SR (\S+) now", "\n".join(lab.smlog())))


class Call(threading.Thread):
    """A call of XenAPI under way, such as `created`; `answer` is None until it has ended."""

    def __init__(self, lab, call, pool, *words, **more):
        super().__init__(daemon=True)
        self.lab, self.answer = lab, None
        self._call, self._mark = lambda: call(pool, *words, **more), len(lab.syslog.lines)
        lab.begin(self)

    def run(self):
        self.answer = self._call()

    @contextlib.contextmanager
    def stopped(self, text):
        """Context: the driver has logged `text` and stands still."""
        group = os.getpgid(self.reach(text))
        os.killpg(group, signal.SIGSTOP)
        try:
            assert self.answer is None, f"the call had ended: {self.answer}"
            yield
        finally:
            os.killpg(group, signal.SIGCONT)

    def kill(self, text):
        """SIGKILL for the driver when it has logged `text`; the answer."""
        os.kill(self.reach(text), signal.SIGKILL)
        return self.end()

    def reach(self, text, seconds=HANGS):
        """Wait until the driver has logged `text`; the process that did. Fails when the call ends before."""
        syslog, seen, deadline = self.lab.syslog, self._mark, time.monotonic() + seconds
        while time.monotonic() < deadline:
            had, seen = seen, syslog.wait(seen, 0.5)
            for line in syslog.lines[had:seen]:
                if text in line.text:
                    return int(line.text.partition("[")[2].partition("]")[0])
            ended = f"the call ended before {text!r}: {self.answer}"
            assert seen > had or self.answer is None, "\n".join([ended, *self.lab.smlog()])
        raise AssertionError(f"{text!r} was not logged within {seconds} seconds")

    def end(self, seconds=HANGS):
        """The answer, once it is there."""
        self.join(seconds)
        assert self.answer is not None, f"no answer after {seconds} seconds"
        return self.answer
