# SPDX-License-Identifier: LGPL-2.1-only
"""The doctor on the pool: a simulated one, asked by XenAPI on the host's own socket; its hosts by our host plugin."""

import os

import pytest

from kit.doctor_world import DRIVER, DRIVER_INFO, PLUGIN, UUID
from kit.pool.errors import XenError
from kit.pool.simulator import Pool, sm_directory
from relvmoiscsi import __version__
from relvmoiscsi.doctor import examine
from relvmoiscsi.doctor.driver import DriverInfo
from relvmoiscsi.doctor.finding import ok, problem, to_json
from relvmoiscsi.doctor.needs import CONFIG, KEEPS_ALL, MAKES_ONE
from relvmoiscsi.doctor.pool import (
    examine_hosts,
    examine_multipathing,
    examine_pool,
    examine_record,
    examine_registration,
    examine_vdis_of_pool,
    examine_volumes,
    no_pool,
    read_pool,
)
from relvmoiscsi.host.xapi.api import XapiFailure

pytestmark = [pytest.mark.processes, pytest.mark.states]  # the simulated xapi runs drivers and plugins

INFO = DriverInfo(DRIVER_INFO["name"], DRIVER_INFO["description"], DRIVER_INFO["driver_version"])
XS2 = 1


_known = {}  #: what the drivers say of themselves, asked once


@pytest.fixture
def pool(world):
    """Two hosts, this one the master; both have the package, and the other is ready."""
    drivers = [world.at("/usr/share/relvmoiscsi/drivers/" + name) for name in ("ReLVMoISCSISR", "ReLVMoHBASR")]
    directory = sm_directory(world.at("/opt/simulated"), *drivers)
    with Pool(directory, world.at("/var/lib/xcp/xapi"), drivers=_known or None) as started:
        _known.update(started.storage.drivers)
        started.db.set("host", started.master, "uuid", UUID)
        started.db.set("SM", started.db.refs("SM", type="relvmoiscsi")[0], "driver_filename", DRIVER)
        for host in started.hosts:
            os.makedirs(world.at("/plugins/" + host))
            started.api.host_plugins.directories[host] = world.at("/plugins/" + host)
        os.symlink(str(PLUGIN), world.at(f"/plugins/{started.master}/relvmoiscsi"))
        told = {started.master: __version__}

        def plugin(host, *_):
            if host not in told:
                raise XenError("XENAPI_MISSING_PLUGIN", "relvmoiscsi")
            return told[host]

        started.told, started.api.host_plugins.functions["relvmoiscsi"] = told, plugin
        answers(started, to_json(__version__, [ok("executable", "It is there.")]))
        yield started


def answers(pool, text, host=XS2):
    """Let the plugin of a host answer this, whatever it is asked."""
    pool.told[pool.hosts[host]] = text


def says(world, pool, document):
    """The plugins are processes; that of the other host says this."""
    del pool.api.host_plugins.functions["relvmoiscsi"]
    world.program(f"/plugins/{pool.hosts[XS2]}/relvmoiscsi", f"#!/bin/sh\ncat <<'END'\n{document}\nEND\n")


def forget(pool, host):
    """The host has no plugin, as without the package."""
    del pool.told[pool.hosts[host]]


def record(pool):
    return pool.db.refs("SM", type="relvmoiscsi")[0]


def hosts(world):
    return examine_hosts(read_pool(world.host()))


def the_one(findings):
    assert len(findings) == 1, findings
    return findings[0]


# --- asking


def test_a_pool_in_which_all_is_well(world, pool):
    found = examine_pool(world.host(), read_pool(world.host()), INFO)

    assert {finding.status for finding in found} == {"ok"}, found
    assert [finding.name for finding in found] == ["registration", "sm-record", "hosts", "initiator"]


def test_a_host_without_an_initiator_name_is_named(world, pool):
    pool.db.set("host", pool.hosts[XS2], "iscsi_iqn", "")

    finding = the_one([each for each in examine_pool(world.host(), read_pool(world.host()), INFO) if each.advice])

    assert (finding.name, finding.status) == ("initiator", "problem") and "xs2" in finding.sentence


@pytest.mark.parametrize("number", [1, 2])
def test_an_sr_that_a_call_has_left_is_named_with_the_command_that_removes_it(world, pool, number):
    made = [pool.db.create("SR", type="relvmoiscsi", uuid=f"1c3f2ae0-{n}") for n in range(number)]
    pool.db.create("SR", type="lvmoiscsi", uuid="5b0c")
    for sr in made:
        pool.db.create("PBD", SR=sr, host=pool.master, device_config={})

    finding = the_one([each for each in examine_pool(world.host(), read_pool(world.host()), INFO) if each.advice])

    assert (finding.name, finding.status) == ("leftover-srs", "warning")
    assert "a Secret remains: `relvmoiscsi pool secrets --remove`" in finding.advice
    for n in range(number):
        assert f"`xe sr-forget uuid=1c3f2ae0-{n}`" in finding.advice
    assert "5b0c" not in finding.advice


def test_a_whole_host_and_its_pool_are_ready(world, pool):
    assert {finding.status for finding in examine(world.host())} == {"ok"}


def test_asking_leaves_no_session_and_changes_nothing(world, pool):
    tables = ("pool", "host", "SM", "SR", "PBD", "secret", "task", "session")
    before = [pool.db.records(table) for table in tables]

    examine(world.host())

    assert [pool.db.records(table) for table in tables] == before


def test_without_xapi_the_pool_is_unknown(world):
    with pytest.raises(XapiFailure) as caught:
        read_pool(world.host())

    finding = no_pool(caught.value)
    assert finding.status == "unknown" and "No such file" in finding.sentence
    assert examine(world.host())[-1] == finding


def test_a_xapi_that_refuses_leaves_the_pool_unknown(world, pool):
    def refuse(name, _parameters):
        if name == "SR.get_supported_types":
            raise XenError("MESSAGE_METHOD_UNKNOWN", name)

    pool.api.before = refuse
    finding = examine(world.host())[-1]

    assert finding.name == "pool" and finding.status == "unknown"
    assert "MESSAGE_METHOD_UNKNOWN" in finding.sentence
    assert pool.db.refs("session") == []


# --- what xapi has


def test_what_the_master_has_not_registered_is_a_problem(world, pool):
    pool.sm_plugins = "ext nfs"
    pool.restart_toolstack()

    found = read_pool(world.host())

    assert examine_registration(found).status == "problem"
    assert "xs1" in examine_registration(found).sentence


def test_the_record_is_what_cloudstack_finds(world, pool):
    finding = examine_record(world.host(), read_pool(world.host()), INFO)

    assert finding.status == "ok"
    words = finding.sentence.split('grep "')[1].split('"')[0]
    assert [line for line in pool.sm_list().splitlines() if words in line]


def test_without_a_record_cloudstack_finds_nothing(world, pool):
    pool.db.destroy("SM", record(pool))

    finding = examine_record(world.host(), read_pool(world.host()), INFO)

    assert finding.status == "problem" and "prints nothing" in finding.sentence
    assert "resigning of duplicates" not in pool.sm_list()


@pytest.mark.parametrize(
    "field, value, status",
    [
        ("name_label", "LVHD over iSCSI", "problem"),
        ("driver_filename", "/opt/xensource/sm/gone", "problem"),
        ("driver_filename", "", "problem"),
        ("version", "0.9", "warning"),
        ("type", "ReLVMoISCSI", "ok"),
        ("vendor", "another", "ok"),
    ],
)
def test_a_record_that_says_something_else(world, pool, field, value, status):
    pool.db.set("SM", record(pool), field, value)

    finding = examine_record(world.host(), read_pool(world.host()), INFO)

    assert finding.status == status and bool(finding.advice) == (status != "ok")


def test_a_record_is_not_compared_with_a_driver_that_does_not_answer(world, pool):
    pool.db.set("SM", record(pool), "version", "0.9")

    assert examine_record(world.host(), read_pool(world.host()), None).status == "ok"


# --- the hosts


def test_every_host_has_the_same_version_or_the_only_one(world, pool):
    finding = the_one(hosts(world))
    assert finding == ok("hosts", f"All hosts of the pool have relvmoiscsi {__version__}, and no host finds a problem.")

    pool.db.destroy("host", pool.hosts[XS2])
    assert the_one(hosts(world)).sentence.startswith("The pool's only host has relvmoiscsi")


BROKEN = problem("whitelist", "It is not in the list.", "Add it.")


@pytest.mark.parametrize(
    ("given", "status", "host", "words"),
    [
        (lambda pool: forget(pool, 0), "problem", "", "xs1 has no complete installation of relvmoiscsi"),
        (lambda pool: forget(pool, XS2), "problem", "xs2", "xs2 has no complete installation of relvmoiscsi"),
        (
            lambda pool: answers(pool, to_json("0.0.9", [])),
            "problem",
            "xs2",
            f"xs2 has relvmoiscsi 0.0.9, and this command is {__version__}.",
        ),
        (
            lambda pool: answers(pool, to_json(__version__, [ok("executable", "It is there."), BROKEN])),
            "problem",
            "xs2",
            BROKEN.sentence,
        ),
        (lambda pool: pool.storage.offline.add(pool.hosts[XS2]), "unknown", "xs2", "offline"),
        (lambda pool: answers(pool, "no JSON"), "unknown", "xs2", ""),
        (lambda pool: answers(pool, '{"version": "1", "findings": [1]}'), "unknown", "xs2", ""),
        (lambda pool: answers(pool, "[" * 100000), "unknown", "xs2", ""),
    ],
)
def test_what_is_said_of_another_host(world, pool, given, status, host, words):
    given(pool)
    finding = the_one(hosts(world))
    assert (finding.status, finding.host) == (status, host) and words in finding.sentence
    assert len(finding.sentence) < 400


@pytest.mark.parametrize("document", ["no XML", "x" * 100000])
def test_a_plugin_that_fails_is_unknown(world, pool, document):
    says(world, pool, document)

    finding = the_one(hosts(world))

    assert finding.status == "unknown" and "XENAPI_PLUGIN_FAILURE" in finding.sentence and len(finding.sentence) < 500


def test_a_host_that_xapi_does_not_know_is_unknown(world, pool):
    world.remove("/etc/xensource-inventory")
    answers(pool, to_json(__version__, []), host=0)

    finding = the_one(hosts(world))

    assert finding.status == "unknown" and "INSTALLATION_UUID" in finding.sentence


def test_the_real_plugin_tells_what_it_finds_of_its_host(world, pool):
    del pool.api.host_plugins.functions["relvmoiscsi"]
    os.symlink(str(PLUGIN), world.at(f"/plugins/{pool.hosts[XS2]}/relvmoiscsi"))

    found = hosts(world)

    # This machine, which is no XenServer host.
    assert {finding.host for finding in found} == {"xs2"}
    assert any(finding.status == "problem" for finding in found)
    assert not any(finding.name == "pool" for finding in found)


def test_many_hosts_are_asked_at_once(world, pool):
    for number in range(3, 19):
        pool.told[pool._new_host(number, f"xs{number}")] = pool.told[pool.hosts[XS2]]

    assert the_one(hosts(world)).sentence.startswith("All hosts of the pool have")


# --- and what else keeps SR.create or CloudStack from working


def names(world, name):
    found = examine_pool(world.host(), read_pool(world.host()), INFO)
    return [finding for finding in found if finding.name == name]


def test_a_rolling_upgrade_is_a_problem(world, pool):
    assert names(world, "upgrade") == []
    pool.db.set("pool", pool.pool, "other_config", {"rolling_upgrade_in_progress": "true"})

    assert the_one(names(world, "upgrade")).status == "problem"


def test_disabled_ssh_is_a_warning(world, pool):
    found = read_pool(world.host())
    ssh = {ref: dict(host, ssh_enabled=ref != found.own_ref) for ref, host in found.hosts.items()}

    findings = examine_pool(world.host(), found._replace(hosts=ssh), INFO)

    finding = the_one([finding for finding in findings if finding.name == "ssh"])
    assert finding.status == "warning" and "SSH is disabled on xs1;" in finding.sentence


def multipathing(pool, *switches):
    for host, switch in zip(pool.hosts, switches):
        pool.db.set("host", host, "other_config", {"multipathing": switch, "multipathhandle": "dmp"})


def test_multipathing_on_some_hosts_is_a_warning(world, pool):
    multipathing(pool, "true", "false")

    finding = the_one(examine_multipathing(world.host(), read_pool(world.host())))

    assert finding.status == "warning" and finding.sentence == "Multipathing is on for xs1, and off for xs2."


def test_multipathing_needs_its_programs(world, pool):
    multipathing(pool, "true", "true")
    found = read_pool(world.host())
    assert the_one(examine_multipathing(world.host(), found)).sentence == "Multipathing is on."
    world.remove("/usr/sbin/multipathd")

    assert the_one(examine_multipathing(world.host(), found)).status == "problem"


def test_multipathing_of_an_unknown_host_is_not_judged(world, pool):
    assert examine_multipathing(world.host(), read_pool(world.host())._replace(own_ref="")) == []


# --- one VDI


def vdis(world, pool, here, there):
    """What is said of a pool whose hosts have these settings."""
    if here:
        world.put(CONFIG, f"[driver]\nvdis = {here}\n")
    answers(pool, to_json(__version__, [ok("settings", there)] if there else []))
    return examine_vdis_of_pool(world.host(), read_pool(world.host()))


@pytest.mark.parametrize("here, there", [("", KEEPS_ALL), ("all", KEEPS_ALL), ("one", MAKES_ONE)])
def test_hosts_that_have_it_alike_are_no_finding(world, pool, here, there):
    assert vdis(world, pool, here, there) == []


@pytest.mark.parametrize("here, there", [("", MAKES_ONE), ("one", KEEPS_ALL)])
def test_hosts_that_differ_are_a_warning_that_names_them(world, pool, here, there):
    finding = the_one(vdis(world, pool, here, there))

    one, every = ("xs1", "xs2") if here else ("xs2", "xs1")
    assert (finding.name, finding.status) == ("settings", "warning")
    assert f"a single VDI on {one}, and keeps every VDI on {every}" in finding.sentence
    assert "relvmoiscsi settings --vdis one" in finding.advice


def test_a_host_that_does_not_say_is_not_guessed_at(world, pool):
    assert vdis(world, pool, "one", "") == []
    forget(pool, XS2)
    assert examine_vdis_of_pool(world.host(), read_pool(world.host())) == []


# --- volumes of SRs that are not attached


@pytest.mark.parametrize("is_attached", [False, True])
def test_volumes_of_an_sr_that_is_not_attached_here_are_told_with_the_command(world, pool, is_attached):
    """The storage manager leaves them on a clone when it fails to plug the original."""
    original = "5d0d2b3a-7777-4a4a-9b9b-0123456789ab"
    sr = pool.db.create("SR", original, name_label="Production", type="lvmoiscsi")
    for host in pool.hosts:
        pool.db.create("PBD", SR=sr, host=host, currently_attached=is_attached or host != pool.master)
    world.put("/sys/block/dm-4/dm/name", "VG_XenStorage--{}-MGT\n".format(original.replace("-", "--")))
    world.put("/sys/block/sdc/holders/dm-4/x", "")
    world.put("/sys/block/sda/holders/x", "")

    found = examine_volumes(world.host(), read_pool(world.host()))

    assert is_attached or the_one(found).status == "warning"
    assert is_attached or f"the SR {original} are active on the disk sdc" in the_one(found).sentence
    assert is_attached or f"`vgchange -an VG_XenStorage-{original}`" in the_one(found).advice
    assert not is_attached or found == []
