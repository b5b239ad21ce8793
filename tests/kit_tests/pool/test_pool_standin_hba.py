# SPDX-License-Identifier: LGPL-2.1-only
"""The stand-in for lvmohba answers as the real one was measured to, on a host that is played."""

from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from kit.pool import standin_hba
from kit.pool.standin_hba import MULTIPATHING, Refused

SCSI_ID = "36001405aaaaaaaaaaaaaaaaaaaaaaaaa"
SR = "16aa2e14-529b-493f-a2ad-42a9cb946cc2"
VG = "VG_XenStorage-" + SR
LINK = "/dev/disk/by-id/scsi-" + SCSI_ID
MAP = "/dev/mapper/" + SCSI_ID


class Host:
    """What is there, and what LVM says of a device; `done` are the programs that ran, and scans."""

    def __init__(self):
        self.there, self.seen, self.done, self.mapped, self.appears = set(), {}, [], "", ()
        self.declines = False  #: multipath makes no map

    def scan(self):
        self.done.append("scan")
        self.there.update(self.appears)

    def run(self, *argv):
        self.done.append(" ".join(argv))
        if argv[:2] == ("multipath", "-r") and not self.declines:
            self.mapped = "mpath-" + SCSI_ID
            self.there.add(MAP)
        if argv[:2] == ("multipath", "-f"):
            self.mapped = ""
        if argv[0] == "lvm" and argv[1] in ("pvs", "vgs"):
            return self.seen.get(argv[-1] if argv[1] == "pvs" else "all", "")
        return ""


@pytest.fixture
def host(monkeypatch):
    made = Host()
    monkeypatch.setattr(standin_hba, "os", SimpleNamespace(path=SimpleNamespace(exists=lambda it: it in made.there)))
    monkeypatch.setattr(standin_hba, "run", made.run)
    monkeypatch.setattr(standin_hba, "scan", made.scan)
    monkeypatch.setattr(standin_hba, "map_of", lambda _: made.mapped)
    monkeypatch.setattr(standin_hba, "until", lambda condition: condition())
    return made


def ask(command, scsi_id=SCSI_ID):
    return standin_hba.answer({"command": command, "device_config": {"SCSIid": scsi_id}, "sr_uuid": SR})


def refused(command, scsi_id=SCSI_ID):
    with pytest.raises(Refused) as caught:
        ask(command, scsi_id)
    return caught.value.code


def srs(answer):
    return [element.text for element in ElementTree.fromstring(answer).iter("UUID")]


@pytest.mark.parametrize("command", ["sr_probe", "sr_attach", "sr_detach", "sr_create"])
def test_without_an_id_every_command_ends_with_a_list(host, capsys, command):
    assert refused(command, "") == 107
    assert ElementTree.fromstring(capsys.readouterr().err).tag == "Devlist"
    assert host.done == []


def test_a_probe_without_multipathing_asks_lvm_of_the_link_and_never_scans(host):
    host.seen = {LINK: f"  {VG}\n"}
    assert srs(ask("sr_probe")) == [SR]

    host.seen = {}  # no LUN, no link or no LVM
    assert srs(ask("sr_probe")) == []
    assert "scan" not in host.done


def test_a_probe_with_multipathing_scans_for_a_link_that_is_missing_and_its_map_goes_again(host):
    host.there = {MULTIPATHING}
    host.appears, host.seen = {LINK}, {MAP: f"  {VG}\n"}

    assert srs(ask("sr_probe")) == [SR]

    assert host.done[0] == "scan" and host.done[-1] == "multipath -W"
    assert host.mapped == ""
    host.done.clear()
    ask("sr_probe")
    assert "scan" not in host.done


def test_a_map_that_was_left_behind_makes_it_in_use_and_one_that_cannot_be_made_is_told(host):
    host.there, host.mapped = {MULTIPATHING, LINK}, "mpath-" + SCSI_ID
    assert refused("sr_probe") == 16

    host.mapped, host.declines = "", True
    assert refused("sr_probe") == 432


@pytest.mark.parametrize("is_there", [True, False])
def test_a_plug_scans_for_a_link_that_is_missing_and_activates_whatever_disk_lvm_takes(host, is_there):
    host.there, host.appears = {LINK} if is_there else set(), {LINK}
    host.seen = {"all": f"  {VG}\n"}

    ask("sr_attach")

    assert ("scan" in host.done) == (not is_there)
    assert host.done[-1] == f"lvm lvchange -ay {VG}/MGT"
    ask("sr_detach")
    assert host.done[-1] == f"lvm lvchange -an {VG}/MGT"


def test_a_plug_without_the_group_says_so(host):
    assert refused("sr_attach") == 47


def test_other_calls_do_nothing_or_are_not_implemented(host):
    assert ask("sr_scan") is None and ask("sr_update") is None
    assert refused("sr_create") == 38
    assert standin_hba.answer({"command": "sr_get_driver_info", "device_config": {}})["name"]
    assert host.done == []
