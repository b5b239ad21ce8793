# SPDX-License-Identifier: LGPL-2.1-only
"""The roles, and the example of a fleet."""

import getpass
import json
import os
import re

import pytest

from conftest import COLLECTION, PATH
from kit.lun_world import FABRIC

FLEET = COLLECTION / "examples/fleet/dr_test.yml"


def everything(day):
    return day.lab.summary(), day.lab.disks_of(day.web), len(day.lab.pool.db.records("VM"))


@pytest.fixture
def alone(day):
    """No clone but that of Production is behind the target."""
    day.world.luns = [lun for lun in day.world.luns if lun.scsi_id != day.other]
    return day


def test_a_check_that_fails_leaves_nothing(alone, tmp_path):
    """Checks that pass are on the page: test_documented.py."""
    before = everything(alone)
    checks = tmp_path / "checks.yml"
    checks.write_text(json.dumps([{"ansible.builtin.fail": {"msg": "No good."}}]))
    played = alone.play(FLEET, "-e", f"dr_test_checks={checks}")
    assert played.status != 0 and "No good." in played.out, played.out
    assert everything(alone) == before


def environment(day, **variables):
    """A playbook with the role test_environment."""
    options = {"hostname": "{{ pool_url }}", "password": "{{ pool_password }}", "ca_path": "{{ pool_ca }}"}
    role = {"role": "relvmoiscsi.pool.test_environment", "vars": variables}
    play = {"hosts": "pools", "connection": "local", "gather_facts": False, "roles": [role]}
    path = day.directory / f"site-{day.runs}.json"
    path.write_text(json.dumps([{**play, "module_defaults": {"group/relvmoiscsi.pool.pool": options}}]))
    return path


def test_a_test_environment_is_made_once(alone):
    path = environment(alone, test_environment_of="Production")
    first, second = alone.play(path), alone.play(path)
    assert (first.status, first.changed) == (0, 2), first.out
    assert (second.status, second.changed) == (0, 0), second.out


def test_a_test_environment_goes_though_the_original_is_what_was_lost(alone):
    """Its LUN is not to be seen; and it is named by its UUID in capitals."""
    before = everything(alone)
    of = alone.world.sr_uuid(alone.lab.originals["Production"][0]).upper()
    mark = {"mark": "test_environment"}
    made = alone.now("lun", clones_of=[of], **mark)["luns"][0]
    assert not alone.now("vm_clone", sr=made["sr_name_label"], all=True, isolated="lab", state="started", **mark)[
        "failed"
    ]
    alone.world.luns = [lun for lun in alone.world.luns if lun.scsi_id != alone.lab.originals["Production"][0]]
    gone = alone.play(environment(alone, test_environment_of=of, test_environment_state="absent"))
    assert (gone.status, gone.changed) == (0, 1), gone.out
    assert everything(alone) == before


def of_others(day, **more):
    """A copy of Production that somebody else has attached, with a VM that runs."""
    copy = day.now("lun", clones_of=["Production"], name="dev copy", leave_others=True)
    made = day.now("vm_clone", sr="dev copy", all=True, name="dev {vm}", **(more or {"same_networks": True}))
    assert not copy["failed"] and not made["failed"]


def running(day):
    return sorted((vm["name_label"], vm["power_state"]) for vm in day.lab.pool.db.records("VM").values())


def test_the_fleet_tests_its_recovery_and_leaves_nothing_but_what_others_have(alone):
    of_others(alone, isolated="dev net", state="started")
    before, vms = everything(alone), running(alone)
    alone.lab.clone("Production")  # of tonight
    played = alone.play(FLEET)
    assert played.status == 0, played.out
    assert alone.lab.pool.api.calls.count("Async.VM.start") == 2
    assert (everything(alone), running(alone)) == (before, vms)


def test_one_that_is_refused_touches_nothing(day):
    """There is a clone of another SR behind the target; and somebody has a copy on the network of the original."""
    of_others(day)
    before, vms = everything(day), running(day)
    played = day.play(FLEET)
    assert played.status != 0 and "dev copy" in played.out
    assert "Async.VM.start" not in day.lab.pool.api.calls
    assert (everything(day), running(day)) == (before, vms)


def test_the_recovery_is_tested_again_with_the_same_snapshot_if_somebody_says_so(alone):
    before = everything(alone)
    for state in ("attached", "forgotten"):
        assert alone.now("lun", state=state, clones_of=["Production"])["changed"]
    by_name = {"dr_test_of": "", "dr_test_scsi_ids": [alone.clone]}
    played = alone.play(FLEET, "-e", json.dumps(by_name))
    assert played.status == 0, played.out
    assert alone.lab.pool.api.calls.count("Async.VM.start") == 1
    assert everything(alone) == before


def test_a_network_without_a_name_is_an_error(alone):
    played = alone.play(FLEET, "-e", "dr_test_network=")
    assert played.status != 0 and "are not empty" in played.out
    assert "Async.VM.start" not in alone.lab.pool.api.calls


def test_the_recovery_is_tested_behind_adapters(alone):
    lab = alone.lab
    lab.original("Fabric", target=FABRIC)
    lab.pool.api.host_plugins.functions["relvmoiscsi"] = alone.world.plugin
    lab.clone("Fabric")
    lab.vm("db", lab.vdi("Fabric", "data")[0])
    before = everything(alone)
    played = alone.play(FLEET, "-e", '{"dr_test_of": "Fabric", "dr_test_hba": true}')
    assert played.status == 0, played.out
    assert "Async.VM.start" in lab.pool.api.calls and everything(alone) == before


#: as strict as the real one: what is installed already, or is not there, fails the whole transaction
RPM = """case $1 in -qa) cat {there}; exit 0 ;; -Kv) echo "$2:"; cat {there}.signature; exit 0 ;; esac
shift
for file; do
    [ -e "$file" ] || exit 1
    ! grep -qx "$(basename "$file" .rpm)" {there} || exit 3
done
for file; do basename "$file" .rpm >>{there}; done
"""

DOCTOR = """case $2 in --json) ;; *) exit 0 ;; esac
if [ -e {restarted} ]; then status=ok; else status=problem; fi
printf '{{"findings": [{{"check_name": "restart", "check_status": "%s", "host": ""}}]}}\\n' $status
[ $status = ok ] || exit 4
"""

XE = 'case "$*" in "pool-list params=master --minimal") echo a-master ;; esac\n'


class Dom0:
    """Programs in the place of dom0's, which write down how they were called."""

    def __init__(self, stage, directory):
        self.stage, self.directory, self.log = stage, directory, directory / "log"
        self.there, self.restarted, self.programs = (directory / name for name in ("there", "restarted", "programs"))
        self.place = directory / "place"
        for made in (self.programs, self.place):
            made.mkdir()
        self.there.write_text("")
        self.program("rpm", RPM.format(there=self.there))
        self.program("relvmoiscsi", DOCTOR.format(restarted=self.restarted))
        self.program("xe-toolstack-restart", f"touch {self.restarted}")
        self.program("xe", XE)
        self.packages = [directory / f"{name}-0.1.0-1.noarch.rpm" for name in ("relvmoiscsi", "relvmoiscsi-pool")]
        for package in self.packages:
            package.write_bytes(b"\xed\xab\xee\xdb")

    def program(self, name, text):
        (self.programs / name).write_text(f'#!/bin/sh\necho {name} "$@" >>{self.log}\n{text}\n')
        (self.programs / name).chmod(0o755)

    def known(self, host):
        """The variables by which the programs, those of all hosts here, have the name of their host in HOST."""
        sudo = self.directory / f"sudo-{host}"
        sudo.write_text(f'#!/bin/sh\nfor last; do :; done\nHOST={host} exec /bin/sh -c "$last"\n')
        sudo.chmod(0o755)
        return {"ansible_become": True, "ansible_become_user": "nobody", "ansible_become_exe": str(sudo)}

    def play(self, *packages, hosts=("site1",), arguments=(), **variables):
        """What came of the role, and the programs that it has called beside those that ask."""
        wish = {"install_packages": list(map(str, packages)), "install_directory": str(self.place)}
        role = {"role": "relvmoiscsi.pool.install", "vars": {"install_retries": 0, **wish, **variables}}
        path, inventory = self.directory / "install.json", self.directory / "hosts.json"
        play = {"hosts": "pools", "connection": "local", "gather_facts": False, "roles": [role]}
        path.write_text(json.dumps([play]))
        inventory.write_text(
            json.dumps({"pools": {"hosts": hosts if isinstance(hosts, dict) else dict.fromkeys(hosts, {})}})
        )
        self.log.write_text("")
        played = self.stage.play(path, "-i", inventory, *arguments, PATH=f"{self.programs}:{PATH}")
        told = [line for line in self.log.read_text().splitlines() if line.startswith(("rpm -U", "xe-toolstack"))]
        return played, told


@pytest.fixture
def dom0(stage, tmp_path):
    return Dom0(stage, tmp_path)


def installed(told):
    """The names of the packages of a call of rpm, and the directory that they were in."""
    program, option, *paths = told[0].split()
    assert (program, option) == ("rpm", "-U"), told
    (directory,) = {os.path.dirname(path) for path in paths}
    return [os.path.basename(path) for path in paths], directory


def test_the_package_is_installed_once_and_another_one_later(dom0):
    one, other = dom0.packages
    check, nothing = dom0.play(one, arguments=["--check"])
    assert (check.status, check.changed, nothing) == (0, 1, []), check.out
    first, told = dom0.play(one)
    names, place = installed(told)
    assert (first.status, names, told[1:]) == (0, [one.name], ["xe-toolstack-restart"]), first.out
    second, told = dom0.play(one)
    assert (second.status, second.changed, told) == (0, 0, []), second.out
    third, told = dom0.play(one, other)
    names, later = installed(told)
    assert (third.status, names, told[1:]) == (0, [other.name], []), third.out
    assert place != later
    assert {os.path.dirname(place), os.path.dirname(later)} == {str(dom0.place)}
    assert not list(dom0.place.iterdir())


def test_with_a_key_only_packages_that_it_has_signed_are_installed(dom0):
    """rpm -Kv ends with 0 for a package without a signature, too."""
    signature = dom0.there.with_name(dom0.there.name + ".signature")
    for answer, is_signed in (("NOKEY", False), ("", False), ("OK", True)):
        line = f"    Header V4 RSA/SHA256 Signature, key ID 1a2b3c4d: {answer}\n" if answer else ""
        signature.write_text(line + "    Header SHA1 digest: OK\n    MD5 digest: OK\n")
        options = {"install_key": "0123456789ABCDEF1A2B3C4D", "install_restart_toolstack": False}
        played, told = dom0.play(*dom0.packages, **options)
        assert (played.status == 0, len(told)) == (is_signed, int(is_signed)), played.out
        assert not list(dom0.place.iterdir())


@pytest.mark.parametrize("before", ["", "\n    Header V4 RSA SHA256 "])
def test_the_name_of_a_package_is_no_signature(dom0, before):
    """rpm prints the name of the file before what it has found in the file."""
    package = dom0.directory / f"relvmoiscsi{before} Signature, key ID 1a2b3c4d: OK\n.rpm"
    package.write_bytes(dom0.packages[0].read_bytes())
    dom0.there.with_name(dom0.there.name + ".signature").write_text("    Header SHA1 digest: OK\n    MD5 digest: OK\n")
    played, told = dom0.play(package, install_key="1A2B3C4D", install_restart_toolstack=False)
    assert (played.status != 0, told) == (True, []), played.out
    assert "See that each is signed with the key" in played.out
    assert not list(dom0.place.iterdir())


def test_packages_are_in_a_directory_that_only_this_run_has_made(dom0):
    """Another user has made what an earlier version of the role would have used."""
    (dom0.place / "relvmoiscsi-packages").mkdir(mode=0o777)
    dom0.program("rpm", f'[ "$1" = -U ] && stat -c "rpm -U: %U %a %h" "$(dirname "$2")" >>{dom0.log}; exit 0')
    played, told = dom0.play(dom0.packages[0], install_restart_toolstack=False)
    assert played.status == 0, played.out
    assert told[1:] == [f"rpm -U: {getpass.getuser()} 700 2"]
    assert [path.name for path in dom0.place.iterdir()] == ["relvmoiscsi-packages"]


def test_a_failed_installation_leaves_no_packages(dom0):
    dom0.program("rpm", '[ "$1" != -U ]')
    played, _told = dom0.play(dom0.packages[0])
    assert played.status != 0
    assert not list(dom0.place.iterdir())


def test_a_restart_that_failed_is_made_up_for(dom0):
    dom0.program("xe-toolstack-restart", "exit 1")
    first, _ = dom0.play(dom0.packages[0])
    assert first.status != 0
    dom0.program("xe", "case $1 in task-list) echo a-task ;; esac")
    second, told = dom0.play(dom0.packages[0])
    assert second.status != 0 and told == []
    dom0.program("xe", "case $1 in pool-list) echo true ;; esac")  # HA
    third, told = dom0.play(dom0.packages[0])
    assert third.status != 0 and told == [] and "HA is on" in third.out
    dom0.program("xe", XE)
    dom0.program("xe-toolstack-restart", f"touch {dom0.restarted}")
    fourth, told = dom0.play(dom0.packages[0])
    assert (fourth.status, told) == (0, ["xe-toolstack-restart"]), fourth.out


_TASK = r"""uuid ( RO)          : 7
    name-label ( RO): never ends\033]0;owned\007\302\233\342\200\256"""


@pytest.mark.parametrize("looks, variables, status", [
    (1, {}, 0),
    (99, {}, 2),
    (99, {"install_retries": 0}, 2),
    (99, {"install_restart_with_tasks": True}, 0),
])  # fmt: skip
def test_a_task_that_never_ends_is_named_and_somebody_decides(dom0, looks, variables, status):
    """Each user of the pool can make one, also a user who may only read."""
    xe = f"[ $1 != task-list ] || [ $(grep -c task-list {dom0.log}) -gt {looks} ] || printf '{_TASK}\\n'"
    dom0.program("xe", XE + xe)
    played, told = dom0.play(dom0.packages[0], **{"install_retries": 2, "install_delay": 0, **variables})
    assert played.status == status, played.out
    assert told[1:] == ([] if status else ["xe-toolstack-restart"])
    assert ("never ends" in played.out and "install_restart_with_tasks" in played.out) == bool(status)
    assert not re.search("owned[^ -~]|\x1b]|[\x07\x9b\u202e]", played.out)


def test_no_toolstack_is_restarted_before_all_hosts_have_the_package(dom0):
    missing = {
        "install_directory": f"{{{{ '/dev/null' if inventory_hostname == 'site2' else '{dom0.directory}/place' }}}}"
    }
    played, told = dom0.play(dom0.packages[0], hosts=("site1", "site2"), **missing)
    assert played.status != 0 and "has not come as far on site2" in played.out, played.out
    assert [line.split()[0] for line in told] == ["rpm"]


@pytest.mark.parametrize(
    ("failing", "restarted"),
    [("site2 xe pool-list", ["site3"]), ("site1 xe task-list", ["site3"]), ("site1 restart", ["site1", "site3"])],
)
def test_a_host_that_fails_keeps_its_pool_from_a_restart_and_no_other_pool(dom0, failing, restarted):
    """All hosts of the play ended without a word, also those of other pools."""
    fails = f'[ "$HOST ${{0##*/}} $1" != "{failing}" ] || exit 1\n'
    dom0.program("xe", fails + XE)
    dom0.program("grep", '[ "$HOST" != site2 ]')  # the others are masters
    fails = f'[ "$HOST restart" != "{failing}" ]'
    dom0.program("xe-toolstack-restart", f'echo "xe-toolstack of $HOST" >>{dom0.log}\n{fails}')
    pool = {"install_pool": "{{ ['site3'] if inventory_hostname == 'site3' else ['site1', 'site2'] }}"}
    played, told = dom0.play(hosts={host: dom0.known(host) for host in ("site1", "site2", "site3")}, **pool)
    assert played.status != 0
    assert sorted(line.split()[-1] for line in told if " of " in line) == restarted, played.out
    name = failing.split()[0]
    assert f"Not restarted: this run has failed on {name}. " in " ".join(played.out.split()), played.out


@pytest.mark.parametrize("answer", ["mkdir {} 2>/dev/null && echo a-master", "exit 1", ":"])
def test_no_toolstack_is_restarted_where_a_host_does_not_know_the_master(dom0, answer):
    """Both hosts have one `xe` here: no call gets an answer, or the first one alone."""
    dom0.program("rpm", "")
    dom0.program("xe", f'case "$*" in *params=master*) {answer.format(dom0.directory / "asked")} ;; esac')
    played, told = dom0.play(dom0.packages[0], hosts=("site1", "site2"))
    assert played.status != 0 and "Ask which host is the master" in played.out, played.out
    assert "xe-toolstack-restart" not in told
