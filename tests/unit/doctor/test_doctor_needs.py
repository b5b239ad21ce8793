# SPDX-License-Identifier: LGPL-2.1-only
"""The doctor on what the drivers need of a host besides xapi, and on what killed calls have left there."""

import os

import pytest

from kit.doctor_world import TOP, failed, unreadable
from relvmoiscsi.doctor import needs
from relvmoiscsi.doctor.needs import (
    OUR_RULES,
    examine_firewall,
    examine_room,
    examine_rules,
    stop_in,
)
from relvmoiscsi.doctor.stale_resources import examine_stale_resources
from relvmoiscsi.host.disk import cleanup_journal
from relvmoiscsi.host.locks.sm_locks import lun_lock

# --- the firewall

#: as `iptables -S` prints it on a host of XenServer: its own rules are about connections to this host
STOCK_RULES = """\
-P INPUT ACCEPT
-P FORWARD ACCEPT
-P OUTPUT ACCEPT
-N RH-Firewall-1-INPUT
-N xapi_nbd_output_chain
-A INPUT -j RH-Firewall-1-INPUT
-A OUTPUT -p tcp -m tcp --sport 10809 -j xapi_nbd_output_chain
-A RH-Firewall-1-INPUT -p tcp -m tcp --dport 443 -j ACCEPT
-A RH-Firewall-1-INPUT -j REJECT --reject-with icmp-host-prohibited
-A xapi_nbd_output_chain -j REJECT --reject-with icmp-port-unreachable
"""


def output(*rules, policy="ACCEPT", more=""):
    return f"-P OUTPUT {policy}\n" + "".join(f"-A OUTPUT {rule}\n" for rule in rules) + more


@pytest.mark.parametrize(
    "rules",
    [
        "",
        STOCK_RULES,
        output(
            "-p udp -j DROP", "-o lo -j DROP", "-p tcp -m tcp --dport 25 -j DROP", "-p tcp --dport 3000:3259 -j DROP"
        ),
        output("-m conntrack --ctstate INVALID -j DROP", "-p tcp -m multiport --dports 22,80 -j REJECT", "-j LOG"),
        output("-p tcp -m tcp ! --dport 25 -j ACCEPT", policy="DROP"),
        output("-d 10.1.0.0/16 -p tcp -m tcp --dport 3260 -j ACCEPT", "-j REJECT", policy="DROP"),
        output("-j storage", policy="DROP", more="-A storage -p tcp --dport 3260 -j ACCEPT\n-A storage -j RETURN\n"),
        output("-j empty", "-j empty", more="-N empty\n"),
        output("-j circle", more="-A circle -j circle\n"),
    ],
)
def test_rules_that_let_connections_to_targets_pass(rules):
    assert stop_in(rules) == ""


@pytest.mark.parametrize(
    "rules, stop",
    [
        (output(policy="DROP"), "-P OUTPUT DROP"),
        (output("-o lo -j ACCEPT", "-m state --state ESTABLISHED -j ACCEPT", policy="DROP"), "-P OUTPUT DROP"),
        (output("-p tcp -m tcp --dport 3260 -j REJECT"), "-A OUTPUT -p tcp -m tcp --dport 3260 -j REJECT"),
        (output("-p tcp --dport 3260:3261 -j DROP"), "-A OUTPUT -p tcp --dport 3260:3261 -j DROP"),
        (output("! -p udp -j DROP"), "-A OUTPUT ! -p udp -j DROP"),
        (output("-d 10.1.0.7/32 -j DROP"), "-A OUTPUT -d 10.1.0.7/32 -j DROP"),
        (output("-p tcp -j out", more="-A out -p tcp --dport 22 -j RETURN\n-A out -j DROP\n"), "-A out -j DROP"),
    ],
)
def test_a_rule_that_stops_connections_to_targets_is_found(rules, stop):
    assert stop_in(rules) == stop


def test_a_rule_that_stops_connections_is_a_warning_that_shows_it(world):
    world.program("/usr/sbin/iptables", "")
    world.program("/usr/sbin/ip6tables", "")

    finding = examine_firewall(
        world.host(([world.at("/usr/sbin/iptables"), "-S"], STOCK_RULES), (["-S"], output(policy="DROP")))
    )

    assert (
        finding.status == "warning"
        and "ip6tables blocks" in finding.sentence
        and "`-P OUTPUT DROP`" in finding.sentence
    )
    assert "`ip6tables -I OUTPUT -p tcp --dport 3260 -j ACCEPT`" in finding.advice


def test_a_host_without_a_firewall_is_well_and_one_that_does_not_tell_is_unknown(world):
    assert examine_firewall(world.host()).status == "ok"
    world.program("/usr/sbin/iptables", "")
    assert examine_firewall(world.host(([], failed(4, "Permission denied")))).status == "unknown"


# --- udev rules, and room


@pytest.mark.parametrize("name", OUR_RULES)
@pytest.mark.parametrize("broken", ["absent", "empty", "masked"])
def test_rules_that_are_not_in_force_are_a_problem(world, name, broken):
    world.remove("/etc/udev/rules.d/" + name)
    world.copy(TOP / "udev" / name, "/usr/lib/udev/rules.d/" + name)
    assert examine_rules(world.host()).status == "ok"
    if broken == "absent":
        world.remove("/usr/lib/udev/rules.d/" + name)
    elif broken == "empty":
        world.put("/etc/udev/rules.d/" + name, "\n")
    else:
        world.link("/etc/udev/rules.d/" + name, "/dev/null")

    finding = examine_rules(world.host())

    assert finding.status == "problem" and name in finding.sentence


def test_rules_that_cannot_be_read_are_unknown(world):
    with unreadable(world.at("/etc/udev/rules.d/" + OUR_RULES[0])):
        assert examine_rules(world.host()).status == "unknown"


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"f_bavail": 0}, "The file system of /run is full."),
        ({"f_files": 9, "f_favail": 0}, "The file system of /run is full."),
        ({"f_flag": os.ST_RDONLY}, "/run cannot be written to."),
    ],
)
def test_a_file_system_without_room_is_a_problem(world, monkeypatch, changes, said):
    world.directory("/run")
    real = os.statvfs(world.root)
    fields = {name: getattr(real, name) for name in ("f_flag", "f_bavail", "f_frsize", "f_files", "f_favail")}
    monkeypatch.setattr(needs.os, "statvfs", lambda path: type("Room", (), {**fields, **changes}))

    finding = examine_room(world.host())

    assert (finding.status, finding.sentence) == ("problem", said)


def test_there_is_room(world):
    assert examine_room(world.host()).status == "ok"


# --- what killed calls have left

SCSI_ID = "36001405993c87c37fa84d02b7fa62c40"


def test_a_host_where_no_call_was_killed_is_well(world):
    assert examine_stale_resources(world.host()).status == "ok"


def test_a_lun_that_a_killed_call_may_have_brought_is_a_warning(world):
    cleanup_journal.note(SCSI_ID, ["1:0:0:0"], world.host())

    finding = examine_stale_resources(world.host())

    assert (finding.name, finding.status) == ("left-overs", "warning")
    assert SCSI_ID in finding.sentence
    assert "sr-probe" in finding.advice


def test_a_lun_that_a_call_works_on_is_no_left_over(world):
    cleanup_journal.note(SCSI_ID, ["1:0:0:0"], world.host())

    with lun_lock(SCSI_ID, world.host()):
        assert examine_stale_resources(world.host()).status == "ok"


def test_a_disk_that_stays_hidden_is_a_warning_with_the_command_that_shows_it(world):
    world.put("/sys/block/sdc/dev", "8:32\n")
    world.put("/run/udev/data/b8:32", "E:RELVMOISCSI_HIDDEN=all\n")

    finding = examine_stale_resources(world.host())

    assert finding.status == "warning" and "has left sdc hidden from udev" in finding.sentence
    assert "`echo change > /sys/block/sdc/uevent`" in finding.advice
