# SPDX-License-Identifier: LGPL-2.1-only
"""The doctor on the pool: a simulated one, asked by XenAPI on the host's own socket; its hosts by our host plugin."""

import os

import pytest

from kit.doctor_world import DRIVER, DRIVER_INFO, PLUGIN, UUID
from kit.pool.errors import XenError
from kit.pool.simulator import Pool, sm_directory
from relvmoiscsi import __version__
from relvmoiscsi.doctor import examine
from relvmoiscsi.doctor.finding import ok, problem, to_json
from relvmoiscsi.doctor.needs import CONFIG, KEEPS_ALL, MAKES_ONE
from relvmoiscsi.doctor.pool import (
    examine_hosts,
    examine_pool,
    examine_record,
    examine_vdis_of_pool,
    examine_volumes,
    no_pool,
    read_pool,
)
from relvmoiscsi.host.xapi.api import XapiFailure

pytestmark = [pytest.mark.processes, pytest.mark.states]  # the simulated xapi runs drivers and plugins

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
        started.db.set("SM", record(started), "driver_filename", DRIVER)
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


def record(pool):
    return pool.db.refs("SM", type="relvmoiscsi")[0]


def answers(pool, text, host=XS2):
    """Let the plugin of a host answer this, whatever it is asked."""
    pool.told[pool.hosts[host]] = text


def forget(pool, host):
    """The host has no plugin, as without the package."""
    del pool.told[pool.hosts[host]]


def hosts(world):
    return examine_hosts(read_pool(world.host()))


def said(world):
    """{name of a finding on the pool: the finding}."""
    found = examine_pool(world.host(), read_pool(world.host()), DRIVER_INFO)
    assert len({finding.name for finding in found}) == len(found), found
    return {finding.name: finding for finding in found}


def the_one(findings):
    (finding,) = findings
    return finding


# --- asking

WELL = ["registration", "sm-record", "hosts", "initiator"]


def test_a_pool_in_which_all_is_well_and_asking_leaves_no_session_and_changes_nothing(world, pool):
    tables = ("pool", "host", "SM", "SR", "PBD", "secret", "task", "session")
    before = [pool.db.records(table) for table in tables]
    assert [(name, finding.status) for name, finding in said(world).items()] == [(name, "ok") for name in WELL]
    assert {finding.status for finding in examine(world.host())} == {"ok"}
    assert [pool.db.records(table) for table in tables] == before


def test_without_xapi_the_pool_is_unknown(world):
    with pytest.raises(XapiFailure) as caught:
        read_pool(world.host())
    finding = no_pool(caught.value)
    assert finding.status == "unknown" and finding.sentence.endswith("which may be no dom0.")
    assert examine(world.host())[-1] == finding


def test_a_xapi_that_refuses_leaves_the_pool_unknown(world, pool):
    def refuse(name, _parameters):
        if name == "SR.get_supported_types":
            raise XenError("MESSAGE_METHOD_UNKNOWN", name)

    pool.api.before = refuse
    finding = examine(world.host())[-1]
    assert finding.name == "pool" and finding.status == "unknown"
    assert "MESSAGE_METHOD_UNKNOWN" in finding.sentence and pool.db.refs("session") == []


# --- what xapi has


def upgrading(_world, pool):
    pool.db.set("pool", pool.pool, "other_config", {"rolling_upgrade_in_progress": "true"})


def nameless(_world, pool):
    pool.db.set("host", pool.hosts[XS2], "iscsi_iqn", "")


def unregistered(_world, pool):
    del pool.storage.drivers["relvmoiscsi"]


def without_record(_world, pool):
    pool.db.destroy("SM", record(pool))
    assert "resigning of duplicates" not in pool.sm_list()


def multipathing(*switches, programs=True):
    def given(world, pool):
        for host, switch in zip(pool.hosts, switches):
            pool.db.set(
                "host", host, "other_config", {"multipathing": switch, "multipathhandle": "dmp", "iscsi_iqn": "i"}
            )
        if not programs:
            world.remove("/usr/sbin/multipathd")

    return given


UPGRADE = "A rolling pool upgrade is under way"


@pytest.mark.parametrize("given, name, status, words", [
    (nameless, "initiator", "problem", "xs2"),
    (upgrading, "upgrade", "problem", UPGRADE),
    (unregistered, "registration", "problem", "'xs1', has not registered relvmoiscsi:"),
    (without_record, "sm-record", "problem", "prints nothing"),
    (multipathing("true", "false"), "multipathing", "warning", "Multipathing is on for 'xs1', and off for 'xs2'."),
    (multipathing("true", "true"), "multipathing", "ok", "Multipathing is on."),
    (multipathing("true", "true", programs=False), "multipathing", "problem", "lacks multipath or multipathd"),
])  # fmt: skip
def test_what_keeps_calls_or_cloudstack_from_working(world, pool, given, name, status, words):
    given(world, pool)
    found = said(world)
    finding = found.pop(name)
    assert finding.status == status and words in finding.sentence and bool(finding.advice) == (status != "ok")
    assert set(found) == set(WELL) - {name} and {each.status for each in found.values()} == {"ok"}


def test_what_newer_hosts_say_and_a_host_that_is_not_known(world, pool):
    """No release that is simulated says whether SSH is on; and the multipathing of an unknown host is not judged."""
    multipathing("true", "true")(world, pool)
    found = read_pool(world.host())
    ssh = {ref: dict(host, ssh_enabled=ref != found.own_ref) for ref, host in found.hosts.items()}
    names = {each.name: each for each in examine_pool(world.host(), found._replace(hosts=ssh, own_ref=""), DRIVER_INFO)}
    assert names["ssh"].status == "warning" and "SSH is disabled on 'xs1';" in names["ssh"].sentence
    assert "multipathing" not in names


def test_srs_that_calls_have_left_are_named_with_the_command_that_removes_each(world, pool):
    for n in range(2):
        sr = pool.db.create("SR", type="relvmoiscsi", uuid=f"1c3f2ae0-{n}")
        pool.db.create("PBD", SR=sr, host=pool.master, device_config={})
    pool.db.create("SR", type="lvmoiscsi", uuid="5b0c")
    finding = said(world)["leftover-srs"]
    assert finding.status == "warning" and "5b0c" not in finding.advice
    assert "a Secret remains: `relvmoiscsi pool secrets --remove`" in finding.advice
    assert all(f"`xe sr-forget uuid=1c3f2ae0-{n}`" in finding.advice for n in range(2))


def test_the_record_is_what_cloudstack_finds(world, pool):
    """A driver that does not answer is compared with nothing."""
    words = said(world)["sm-record"].sentence.split("grep '")[1].split("'")[0]
    assert words in pool.sm_list()
    pool.db.set("SM", record(pool), "version", "0.9")
    assert examine_record(world.host(), read_pool(world.host()), None).status == "ok"


@pytest.mark.parametrize("field, value, status", [
    ("name_label", "LVHD over iSCSI", "problem"),
    ("driver_filename", "/opt/xensource/sm/gone", "problem"),
    ("version", "0.9", "warning"),
    ("type", "ReLVMoISCSI", "ok"),
])  # fmt: skip
def test_a_record_that_says_something_else(world, pool, field, value, status):
    pool.db.set("SM", record(pool), field, value)
    finding = said(world)["sm-record"]
    assert finding.status == status and bool(finding.advice) == (status != "ok")


# --- the hosts


def test_every_host_has_the_same_version_or_the_only_one_and_many_are_asked_at_once(world, pool):
    sentence = f"All hosts of the pool have relvmoiscsi {__version__}, and no host finds a problem."
    assert hosts(world) == [ok("hosts", sentence)]
    for number in range(3, 19):
        pool.told[pool._new_host(number, f"xs{number}")] = pool.told[pool.hosts[XS2]]
    assert hosts(world) == [ok("hosts", sentence)]
    for host in set(pool.db.refs("host")) - {pool.master}:
        pool.db.destroy("host", host)
    assert the_one(hosts(world)).sentence.startswith("The pool's only host has relvmoiscsi")


BROKEN = problem("whitelist", "It is not in the list.", "Add it.")
NO_PACKAGE = "{} has no complete installation of relvmoiscsi"
OLD = f"'xs2' has relvmoiscsi 0.0.9, and this command is {__version__}."


def prints(document):
    """The plugins are processes; that of the other host says this."""

    def given(world, pool):
        del pool.api.host_plugins.functions["relvmoiscsi"]
        world.program(f"/plugins/{pool.hosts[XS2]}/relvmoiscsi", f"#!/bin/sh\ncat <<'END'\n{document}\nEND\n")

    return given


def unknown_here(world, pool):
    world.remove("/etc/xensource-inventory")
    answers(pool, to_json(__version__, []), host=0)


@pytest.mark.parametrize("given, status, host, words", [
    (lambda _, pool: forget(pool, 0), "problem", "", NO_PACKAGE.format("'xs1'")),
    (lambda _, pool: forget(pool, XS2), "problem", "xs2", NO_PACKAGE.format("'xs2'")),
    (lambda _, pool: answers(pool, to_json("0.0.9", [])), "problem", "xs2", OLD),
    (lambda _, pool: answers(pool, to_json(__version__, [ok("a", "A."), BROKEN])), "problem", "xs2", BROKEN.sentence),
    (lambda _, pool: pool.storage.offline.add(pool.hosts[XS2]), "unknown", "xs2", "offline"),
    (lambda _, pool: answers(pool, "[" * 100000), "unknown", "xs2", "cannot be read"),
    (prints("x" * 100000), "unknown", "xs2", "XENAPI_PLUGIN_FAILURE"),
    (unknown_here, "unknown", "", "INSTALLATION_UUID"),
])  # fmt: skip
def test_what_is_said_of_another_host(world, pool, given, status, host, words):
    given(world, pool)
    finding = the_one(hosts(world))
    assert (finding.status, finding.host) == (status, host) and words in finding.sentence
    assert len(finding.sentence) < 500


# --- one VDI


@pytest.mark.parametrize("here, there, names", [
    ("", KEEPS_ALL, None),
    ("one", "", None),  # it does not say
    ("one", None, None),  # it cannot be asked
    ("", MAKES_ONE, ("'xs2'", "'xs1'")),
    ("one", KEEPS_ALL, ("'xs1'", "'xs2'")),
])  # fmt: skip
def test_hosts_that_differ_are_a_warning_that_names_them(world, pool, here, there, names):
    if here:
        world.put(CONFIG, f"[driver]\nvdis = {here}\n")
    answers(pool, to_json(__version__, [ok("settings", there)] if there else []))
    if there is None:
        forget(pool, XS2)
    found = examine_vdis_of_pool(world.host(), read_pool(world.host()))
    if names is None:
        assert found == []
        return
    finding = the_one(found)
    assert (finding.name, finding.status) == ("settings", "warning")
    assert "a single VDI on {}, and keeps every VDI on {}".format(*names) in finding.sentence
    assert "relvmoiscsi settings --vdis one" in finding.advice


# --- volumes of SRs that are not attached


def test_volumes_of_an_sr_that_is_not_attached_here_are_told_with_the_command(world, pool):
    """The storage manager leaves them on a clone when it fails to plug the original."""
    original = "5d0d2b3a-7777-4a4a-9b9b-0123456789ab"
    sr = pool.db.create("SR", original, name_label="Production", type="lvmoiscsi")
    for host in pool.hosts:
        pool.db.create("PBD", SR=sr, host=host, currently_attached=host != pool.master)
    world.put("/sys/block/dm-4/dm/name", "VG_XenStorage--{}-MGT\n".format(original.replace("-", "--")))
    world.put("/sys/block/sdc/holders/dm-4/x", "")
    world.put("/sys/block/sda/holders/x", "")
    finding = the_one(examine_volumes(world.host(), read_pool(world.host())))
    assert finding.status == "warning" and f"the SR {original} are active on the disk sdc" in finding.sentence
    assert f"`vgchange -an VG_XenStorage-{original}`" in finding.advice
    pool.db.set("PBD", pool.db.refs("PBD", SR=sr, host=pool.master)[0], "currently_attached", True)
    assert examine_volumes(world.host(), read_pool(world.host())) == []
