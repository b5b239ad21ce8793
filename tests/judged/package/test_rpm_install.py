# SPDX-License-Identifier: LGPL-2.1-only
"""Installing, upgrading, removing the RPM on each kind of host: the whole file tree, before and after.

The real rpm runs the real scriptlets in a root directory of their own (dom0.py). xapi, sm and other drivers are
packages of stand-ins, with the files and the attributes that theirs have. What list of drivers xapi gets is a matter of
tests/unit/host/xapi/test_whitelist.py; here is which events the package follows, and that nothing is left.
"""

import json
import os
import re
import shlex
import xmlrpc.client

import pytest

from kit.dom0 import Dom0
from kit.examples import WHOLE
from kit.rpm_tools import CONF, CONF_D, STOCK, TOP, WAS, modes, pool_package
from relvmoiscsi import __version__
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.host.xapi import conf

XCP_NG = STOCK + " cephfs glusterfs xfs zfs largeblock"
PACKAGE = "relvmoiscsi"
OURS = "relvmoiscsi relvmohba"  #: SR types
CODE = "/usr/share/relvmoiscsi/relvmoiscsi/"
DROP_IN = CONF_D + "zz-relvmoiscsi.conf"
OURS_CONF = "/etc/relvmoiscsi.conf"
PYTHON36 = TOP / ".venv" / "py36" / "bin" / "python"


@pytest.fixture
def dom0(tmp_path, packages):
    with Dom0(tmp_path / "dom0") as made:
        made.rpm("-i", packages.base())
        yield made


def stock(dom0, packages, driver=None, files=None, **of_xapi):
    """A host with sm and xapi; with another driver, and with files that nobody packaged."""
    dom0.rpm("-i", packages.sm(), packages.xapi(**of_xapi))
    if driver:
        dom0.rpm("-i", packages.driver(*driver))
    for path, text in (files or {}).items():
        dom0.write(path, text)


XCP_NG_S = {"plugins": XCP_NG, "noreplace": False}
LINSTOR = ("xcp-ng-linstor", "99-enable-sm-driver-linstor.conf", XCP_NG + " linstor")
LATE = ("latecomer", "zzz-latecomer.conf", "ext latecomer")
BY_HAND = {CONF_D + "99-enable-relvmoiscsi.conf": "sm-plugins=ext ReLVMoISCSI relvmohba\n"}

#: host: (how `stock` makes it, what xapi accepts, what it accepts with us, name of our drop-in, what of us stays)
HOSTS = {
    "stock": ({}, STOCK, STOCK + " " + OURS, {DROP_IN}, set()),
    "linstor": ({"driver": LINSTOR, **XCP_NG_S}, LINSTOR[2], LINSTOR[2] + " " + OURS, {DROP_IN}, set()),
    "late": ({"driver": LATE}, LATE[2], LATE[2] + " " + OURS, {CONF_D + LATE[1] + "-zz-relvmoiscsi.conf"}, set()),
    "by hand": ({"files": BY_HAND}, "ext ReLVMoISCSI relvmohba", "ext ReLVMoISCSI relvmohba", set(), set()),
    "no directory": ({"conf_d": False}, STOCK, STOCK + " " + OURS, {DROP_IN}, {CONF_D.rstrip("/")}),
    "no list": ({"files": {CONF: "log=all\n"}}, None, None, set(), set()),
}


def xapi_list(dom0):
    """What xapi would accept if it started now."""
    found = conf.sm_plugins(Host(dom0.path("/")))
    return " ".join(found[-1].plugins) if found else None


def difference(before, after):
    """(paths that came, paths that went, paths that are not what they were)"""
    changed = {path for path in before.keys() & after.keys() if before[path] != after[path]}
    return set(after.keys() - before.keys()), set(before.keys() - after.keys()), changed


def compiled(dom0):
    """What the host's Python makes of every module of the package."""
    tag = dom0.run(["/usr/bin/python3", "-c", "import sys; print(sys.implementation.cache_tag)"]).stdout.strip()
    modules = [os.path.split(path) for path in dom0.tree() if path.startswith(CODE) and path.endswith(".py")]
    return {os.path.join(place, "__pycache__", f"{name[:-3]}.{tag}.pyc") for place, name in modules}


def compiled_there(dom0):
    return {path for path in dom0.tree() if path.endswith(".pyc")}


# -- install, reinstall, upgrade, go back, remove ---------------------------------------------------------------------


@pytest.mark.states("host", few=3)
@pytest.mark.parametrize("host", HOSTS)
def test_a_host_accepts_us_while_we_are_there_and_is_as_it_was_when_we_are_gone(dom0, packages, host):
    how, without_us, with_us, drop_in, stays = HOSTS[host]
    stock(dom0, packages, **how)
    before = dom0.tree()
    assert xapi_list(dom0) == without_us

    dom0.rpm("-i", packages.ours())
    installed, files = dom0.tree(), modes(packages.ours())
    locks = {"/run/relvmoiscsi"}  # as after a start of the host: root's directory, which goes with the package
    assert difference(before, installed) == ({*files} | drop_in | stays | locks | compiled(dom0), set(), set())
    assert {path: installed[path].mode for path in files} == files
    assert {installed[path].owner for path in files} == {0}
    dom0.rpm("-i", "--replacepkgs", packages.ours())
    assert dom0.tree() == installed

    dom0.rpm("-U", "--oldpackage", packages.earlier())
    assert dom0.exists(CODE + "gone.py")
    assert xapi_list(dom0) == with_us
    dom0.rpm("-U", packages.ours())
    assert dom0.tree() == installed, "an upgrade leaves what a new installation would"
    assert xapi_list(dom0) == with_us

    dom0.rpm("-e", PACKAGE)
    assert difference(before, dom0.tree()) == (stays, set(), set())
    assert xapi_list(dom0) == without_us


def test_it_is_not_installed_where_sm_is_not_and_xapi_may_come_later(dom0, packages):
    refused = dom0.rpm("-i", packages.ours(), check=False)
    assert refused.status != 0 and "sm is needed by relvmoiscsi" in refused.stderr

    dom0.rpm("-i", packages.sm(), packages.ours())  # as in an installer
    assert not dom0.exists(CONF) and xapi_list(dom0) is None
    dom0.rpm("-i", packages.xapi())
    assert xapi_list(dom0) == STOCK + " " + OURS


def test_an_administrator_is_told_what_was_done_and_what_is_left_to_do(dom0, packages):
    stock(dom0, packages)

    installed = dom0.rpm("-i", packages.earlier()).stdout
    upgraded = dom0.rpm("-U", packages.ours()).stdout
    removed = dom0.rpm("-e", PACKAGE).stdout

    assert DROP_IN + " was written: the drivers of /etc/xapi.conf, relvmoiscsi and relvmohba." in installed
    assert "run xe-toolstack-restart on each of them" in installed
    assert DROP_IN + " is up to date" in upgraded and "restart" not in upgraded
    assert DROP_IN + " was removed." in removed and "run xe-toolstack-restart" in removed
    assert "lose their links" not in removed


@pytest.mark.parametrize("obstacle", ["conf", "directory", "python"])
def test_what_goes_wrong_is_said_and_does_not_fail_the_transaction(tmp_path, packages, obstacle):
    with Dom0(tmp_path / "dom0", python="/bin/false" if obstacle == "python" else None) as dom0:
        dom0.rpm("-i", packages.base(), packages.sm())
        reason = ""
        if obstacle == "conf":
            os.mkdir(dom0.path(CONF))
            reason = "/etc/xapi.conf cannot be read: Is a directory."
        elif obstacle == "directory":
            dom0.write(CONF, "sm-plugins=ext\n")
            dom0.write(CONF_D.rstrip("/"), "not a directory\n")
            reason = "/etc/xapi.conf.d is no directory."
        before = dom0.tree()

        assert reason in dom0.rpm("-i", packages.ours()).stderr
        dom0.rpm("-e", PACKAGE)

        assert dom0.tree() == before


# -- what was edited --------------------------------------------------------------------------------------------------


def test_an_edited_configuration_and_edited_rules_are_kept(dom0, packages):
    rules = "/etc/udev/rules.d/57-relvmoiscsi.rules"
    ours = (TOP / "supp-pack/relvmoiscsi.conf").read_text()
    stock(dom0, packages)
    dom0.rpm("-i", packages.earlier())
    edited = dom0.read(OURS_CONF) + "[direct]\ndatabase = 36001405a0b1c2d3e4f5061728394a5b6\n"
    dom0.write(OURS_CONF, edited)
    dom0.write(rules, "# edited\n")

    dom0.rpm("-U", packages.ours())

    assert (dom0.read(OURS_CONF), dom0.read(OURS_CONF + ".rpmnew")) == (edited, ours)
    assert dom0.read(rules) == (TOP / "udev/57-relvmoiscsi.rules").read_text()
    assert dom0.read(rules + ".rpmsave") == "# edited\n"

    said = dom0.rpm("-e", PACKAGE).stdout

    assert "the LUNs in /etc/relvmoiscsi.conf lose their links" in said
    assert dom0.read(OURS_CONF + ".rpmsave") == edited and not dom0.exists(OURS_CONF)

    dom0.rpm("-i", packages.earlier())
    assert WAS in dom0.read(OURS_CONF)
    dom0.rpm("-U", packages.ours())
    assert dom0.read(OURS_CONF) == ours, "nobody has edited it"


# -- what others do after us ------------------------------------------------------------------------------------------


def test_an_update_of_xapi_that_replaces_an_edited_file_is_followed_and_both_go_in_one_transaction(dom0, packages):
    dom0.rpm("-i", packages.sm())
    before = dom0.tree()
    dom0.rpm("-i", packages.earlier(), packages.xapi(plugins=XCP_NG, noreplace=False))
    dom0.write(CONF, dom0.read(CONF).replace(XCP_NG, XCP_NG + " moosefs"))
    dom0.rpm("-U", packages.ours())
    assert xapi_list(dom0) == XCP_NG + " moosefs " + OURS

    dom0.rpm("-U", packages.xapi(version=2, plugins=XCP_NG + " newfs", noreplace=False))
    assert dom0.exists(CONF + ".rpmsave")
    assert xapi_list(dom0) == XCP_NG + " newfs " + OURS

    dom0.rpm("-U", "--oldpackage", packages.earlier(), packages.xapi(plugins=XCP_NG, noreplace=False))
    dom0.rpm("-U", packages.ours(), packages.xapi(version=2, plugins="ext newfs", noreplace=False))
    assert xapi_list(dom0) == "ext newfs " + OURS, "in one transaction"

    os.unlink(dom0.path(CONF + ".rpmsave"))
    dom0.rpm("-e", PACKAGE, "xapi-core")
    assert dom0.tree() == before


@pytest.mark.parametrize("has_file_triggers", [True, False])
def test_a_driver_that_comes_changes_and_goes_after_us_is_followed(dom0, packages, has_file_triggers):
    """An rpm that knows no file triggers has a trigger for each known driver."""
    name, file = ("moosefs-driver", "zzz-driver.conf") if has_file_triggers else LINSTOR[:2]
    stock(dom0, packages, **XCP_NG_S)
    before = dom0.tree()
    dom0.rpm("-i", packages.ours() if has_file_triggers else packages.ours_without_file_triggers())

    dom0.rpm("-i", packages.driver(name, file, "ext one"))
    assert xapi_list(dom0) == "ext one " + OURS
    dom0.rpm("-U", packages.driver(name, file, "ext two", version=2))
    assert xapi_list(dom0) == "ext two " + OURS
    dom0.rpm("-e", name)
    assert xapi_list(dom0) == XCP_NG + " " + OURS
    assert dom0.names(CONF_D) == ["zz-relvmoiscsi.conf"]
    dom0.rpm("-U", packages.xapi(version=2, plugins=XCP_NG + " newfs", noreplace=False))
    assert xapi_list(dom0) == XCP_NG + " newfs " + OURS
    dom0.rpm("-U", "--oldpackage", packages.xapi(**XCP_NG_S))

    dom0.rpm("-e", PACKAGE)
    assert dom0.tree() == before


def test_what_nobody_told_us_of_is_followed_when_xapi_starts(dom0, packages):
    stock(dom0, packages)
    dom0.rpm("-i", packages.ours_without_file_triggers())
    dom0.rpm("-i", packages.driver("moosefs-driver", "99-driver.conf", "ext moosefs"))
    assert xapi_list(dom0) == STOCK + " " + OURS
    unit = dom0.read("/usr/lib/systemd/system/xapi.service.d/relvmoiscsi.conf")
    section, command = [line for line in unit.split("\n") if line and not line.startswith("#")]
    assert section == "[Service]" and command.startswith("ExecStartPre=-"), "a failure of it counts for nothing"

    dom0.run(shlex.split(command.partition("=-")[2]))

    assert xapi_list(dom0) == "ext moosefs " + OURS


# -- what was installed works -----------------------------------------------------------------------------------------


def discovered(dom0, directory):
    """SR type and path of the drivers that xapi finds: names that end in SR, accepted, executable."""
    whitelist = conf.sm_plugins(Host(dom0.path("/")))[-1]
    names = [name for name in dom0.names(directory) if name.endswith("SR") and whitelist.allows(name[:-2])]
    paths = {name[:-2].lower(): os.path.join(directory, name) for name in names}
    return {sr_type: path for sr_type, path in paths.items() if not dom0.run(["test", "-x", path], check=False).status}


def call(dom0, path, method, *parameters):
    """What xapi does with a driver or plugin: one argument, one document on stdout."""
    ((answer,), _) = xmlrpc.client.loads(dom0.run([path, xmlrpc.client.dumps(parameters, method)]).stdout)
    return answer


def links(dom0, packages):
    """XenServer 9, should one directory become a link to the other."""
    directories = ("/usr/libexec/sm", "/usr/libexec/sm/drivers")
    os.symlink("../../usr/libexec/sm/drivers", dom0.path("/opt/xensource/sm"))
    dom0.rpm("-i", packages.xapi(), packages.sm("/usr/libexec/sm/drivers/LVMoISCSISR", directories))


#: what is compiled is a matter of the Python, and where drivers are found one of the directories
PYTHONS_AND_HOSTS = [(False, stock), (True, links)] + ([(False, links), (True, stock)] if WHOLE else [])


@pytest.mark.parametrize("is_36, prepare", PYTHONS_AND_HOSTS)
def test_what_was_installed_works_is_compiled_already_and_leaves_nothing(tmp_path, packages, is_36, prepare):
    if is_36 and not PYTHON36.exists():
        pytest.skip("there is no Python 3.6 on this machine")
    with Dom0(tmp_path / "dom0", python=str(PYTHON36) if is_36 else None) as dom0:
        version = dom0.run(["/usr/bin/python3", "-c", "import sys; print(sys.version_info[:2])"]).stdout
        assert (version == "(3, 6)\n") is is_36
        dom0.rpm("-i", packages.base())
        prepare(dom0, packages)
        before = dom0.tree()
        dom0.rpm("-i", packages.whole())
        installed = dom0.tree()

        assert dom0.rpm("-V", PACKAGE).stdout == ""
        for directory in ("/opt/xensource/sm", "/usr/libexec/sm/drivers"):
            assert_drivers_answer(dom0, directory)
        answer = call(dom0, "/etc/xapi.d/plugins/relvmoiscsi", "version", "OpaqueRef:session", {})
        assert answer == {"Status": "Success", "Value": __version__}
        assert dom0.run(["relvmoiscsi", "--version"]).stdout == f"relvmoiscsi {__version__}\n"
        show = "head -c 1048576 /dev/zero >/tmp/lun; relvmoiscsi show --json /tmp/lun; rm /tmp/lun"
        assert json.loads(dom0.run(["sh", "-c", show]).stdout)["state"] == "empty"
        assert used(dom0) <= compiled(dom0) <= set(installed)

        assert dom0.tree() == installed, "a program left files behind"
        dom0.rpm("-e", PACKAGE)
        assert dom0.tree() == before


def assert_drivers_answer(dom0, directory):
    names = {"relvmoiscsi": "LVHD over iSCSI with resigning of duplicates"}
    names["relvmohba"] = "LVM over HBA with new identities for clones"
    for sr_type, name in names.items():
        driver = discovered(dom0, directory)[sr_type]
        assert call(dom0, driver, "sr_get_driver_info", {})["name"] == name
        with pytest.raises(xmlrpc.client.Fault) as fault:
            call(dom0, driver, "sr_scan", {"command": "sr_scan", "device_config": {}})
        assert fault.value.faultCode == 38, "the driver has not found the rest of the package"
        assert sr_type in fault.value.faultString


def used(dom0):
    """The files that modules of a command came from, as Python says."""
    program = "import sys; sys.path.insert(0, '/usr/share/relvmoiscsi'); import relvmoiscsi.engine"
    said = dom0.run(["/usr/bin/python3", "-IBvc", program]).stderr
    found = set(re.findall(rf"code object from '?({CODE}\S+?\.pyc?)'?$", said, re.MULTILINE))
    assert found
    return found


def test_compiled_files_follow_the_code_and_the_python(dom0, packages):
    stock(dom0, packages)
    before = dom0.tree()
    dom0.rpm("-i", packages.earlier())
    dom0.write(CODE + "__pycache__/left.cpython-27.pyc", "somebody's")
    dom0.rpm("-U", packages.ours())
    assert compiled_there(dom0) == compiled(dom0)

    dom0.write(CODE + "__pycache__/errors.cpython-27.pyc", "of the release before")
    os.unlink(dom0.path(min(compiled(dom0))))
    dom0.rpm("-i", packages.python())
    assert compiled_there(dom0) == compiled(dom0)

    dom0.rpm("-e", PACKAGE, "python3")
    assert dom0.tree() == before


def test_the_pool_client_comes_and_goes_by_itself(dom0, packages):
    command = "/usr/sbin/relvmoiscsi"
    stock(dom0, packages)
    dom0.rpm("-i", packages.whole())
    alone = dom0.tree()
    for words in (["pool", "luns", "--target", "10.0.0.5"], ["pool", "--help"]):
        ran = dom0.run([command, *words], check=False)
        assert ran.status == 6 and "Install its package" in ran.stderr and "Traceback" not in ran.stderr

    dom0.rpm("-i", pool_package(packages.whole()))
    ran = dom0.run([command, "pool", "luns", "--pool", "xs1"], check=False)
    assert ran.status == 2 and "The password is missing" in ran.stderr
    assert compiled_there(dom0) == compiled(dom0)

    dom0.rpm("-e", "relvmoiscsi-pool")
    assert dom0.tree() == alone
