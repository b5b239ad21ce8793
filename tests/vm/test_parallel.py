# SPDX-License-Identifier: LGPL-2.1-only
"""Several calls at the same time on one host: one target or many, and SM beside them."""

import os
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
        file.write("[driver]\ndeadline = 600\n")
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


def is_at_work(lab, lun):
    """Has a call reached its LUN, to read or to write? SM's lock for LVM lets one write at a time."""
    return any(f" the LUN {lun.scsi_id} is sd" in line for line in lab.smlog())


def test_two_agents_at_the_same_time_on_one_target_and_sm_detaches_in_between(lab, pool, image, original):
    clones = [lab.lun(image.clone(f"clone{number}.img"), breakable=True) for number in range(4)]
    array = lab.target(original, *clones)
    digest = image.digest()
    for clone, milliseconds in zip(clones, (2000, 600, 2000, 600)):
        clone.slow(milliseconds)

    with lab.untouched():
        agents = [Agent(lab, pool, array, clones[:2]), Agent(lab, pool, array, clones[2:])]
        for clone in clones[::2]:
            until(lambda lun=clone: is_at_work(lab, lun), "two calls are at work on their LUNs", 120)
        clones[2].slow(5000)  # it reads for half a minute before it asks for SM's lock, and is there when SM detaches
        assert [agent.answers for agent in agents] == [[], []]
        with lab.attached(array, original, image.sr.uuid) as sr:
            clones[0].heal()
            until(lambda: agents[0].answers, "the first call has ended", 120)
            assert "MGT" in sr.active
        assert agents[1].answers == [] and initiator.references(), "SM has detached while calls are under way"
        for clone in clones[1:]:
            clone.heal()
        for agent in agents:
            agent.join(240)

    assert [agent.answers for agent in agents] == [[SUCCESS, SUCCESS], [SUCCESS, SUCCESS]]
    assert len(chosen(lab)) == 4
    assert image.digest() == digest


def test_ten_calls_at_the_same_time_on_ten_targets(lab, pool):
    luns = [lab.lun(lab.disk(builder.one_vhd().disk, f"lun{number}.img")) for number in range(10)]
    arrays = [lab.target(lun) for lun in luns]

    with lab.untouched():
        calls = [Call(lab, pool, array, lun) for array, lun in zip(arrays, luns)]
        answers = [call.end(300) for call in calls]

    assert answers == [SUCCESS] * 10
    assert len(chosen(lab)) == 10
