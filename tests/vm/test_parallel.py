# SPDX-License-Identifier: LGPL-2.1-only
"""Several calls at the same time on one host: one target or many, and SM beside them."""

import os
import signal
import threading

import pytest

from kit import builder
from kit.lab import initiator
from kit.lab.command import until
from kit.lab.xapi import SUCCESS, Call, chosen, created

CONFIG = "/etc/relvmoiscsi.conf"


@pytest.fixture(autouse=True)
def patience():
    """One emulated processor for all calls; their deadlines have a file of tests of their own."""
    with open(CONFIG, "w", encoding="utf-8") as file:
        file.write("[driver]\ndeadline = 1200\n")
    yield
    os.unlink(CONFIG)


class Agent(threading.Thread):
    """What an agent of CloudStack does: one call after the other."""

    def __init__(self, lab, pool, array, luns):
        super().__init__(daemon=True)
        self._lab = lab
        self._calls = [(pool, array, lun) for lun in luns]
        self.answers = []
        lab.begin(self)

    def run(self):
        for call in self._calls:
            if not self._lab.is_over.is_set():
                self.answers.append(created(*call))


def at_work(lab, lun):
    """The process group of the call that has reached this LUN and has no lock of LVM yet, once there is one."""
    for line in lab.smlog():
        if f" the LUN {lun.scsi_id} is sd" in line:
            return os.getpgid(int(line.partition("[")[2].partition("]")[0]))
    return None


def test_two_agents_at_the_same_time_on_one_target_and_sm_detaches_in_between(lab, pool, image, original):
    clones = [lab.lun(image.clone(f"clone{number}.img"), breakable=True) for number in range(4)]
    array = lab.target(original, *clones)
    digest = image.digest()
    for clone, milliseconds in zip(clones, (2000, 600, 2000, 600)):
        clone.slow(milliseconds)

    with lab.untouched():
        agents = [Agent(lab, pool, array, clones[:2]), Agent(lab, pool, array, clones[2:])]
        second = until(lambda: at_work(lab, clones[2]), "the second agent's call is at work", 300)
        os.killpg(second, signal.SIGSTOP)  # it is there when SM detaches
        until(lambda: at_work(lab, clones[0]), "the first agent's call is at work", 300)
        assert [agent.answers for agent in agents] == [[], []]
        with lab.attached(array, original, image.sr.uuid) as sr:
            clones[0].heal()
            until(lambda: agents[0].answers, "the first call has ended", 300)
            assert "MGT" in sr.active
        assert agents[1].answers == [] and initiator.references(), "SM has detached while calls are under way"
        os.killpg(second, signal.SIGCONT)
        lab.mend_luns()
        for agent in agents:
            agent.join(600)

    assert [agent.answers for agent in agents] == [[SUCCESS, SUCCESS], [SUCCESS, SUCCESS]]
    assert len(chosen(lab)) == 4
    assert image.digest() == digest


def test_ten_calls_at_the_same_time_on_ten_targets(lab, pool):
    luns = [lab.lun(lab.disk(builder.one_vhd().disk, f"lun{number}.img")) for number in range(10)]
    arrays = [lab.target(lun) for lun in luns]

    with lab.untouched():
        calls = [Call(lab, pool, array, lun) for array, lun in zip(arrays, luns)]
        answers = [call.end(600) for call in calls]

    assert answers == [SUCCESS] * 10
    assert len(chosen(lab)) == 10
