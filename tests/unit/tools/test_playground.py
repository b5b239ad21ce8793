# SPDX-License-Identifier: LGPL-2.1-only
"""`make playground`: a pool to try the commands on, and a tour that types them."""

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from kit import xe
from kit.advised import XE
from kit.lun_world import World
from kit.own_source import own_modules
from kit.pool_lab import lab_of_three
from kit.shell import TOP

pytestmark = pytest.mark.processes
COPY = "Production changed 2026-11-21"  #: the first copy of the pool of the playground


PLAYGROUND = runpy.run_path(str(TOP / "tools/playground.py"))


def started(*options, typed=""):
    """The program, and what is typed in its shell."""
    return subprocess.run(
        [sys.executable, str(TOP / "tools/playground.py"), *options],
        input=typed,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        timeout=300,
        env={**os.environ, "SHELL": "/bin/sh"},
        check=False,
    )


@pytest.fixture(scope="module")
def greeting():
    return started().stdout


def played(typed, **environment):
    """A shell of the playground, whose pool is in this process, which has everything imported; without the greeting."""
    with PLAYGROUND["furnished"]() as (_lab, _words, here):
        path = f"{PLAYGROUND['PROGRAMS']}:{os.environ['PATH']}"
        return subprocess.run(
            ["sh"],
            input=typed,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            timeout=300,
            env={**os.environ, **here, "PATH": path, **environment},
            check=False,
        )


def test_the_tour_plays_a_night_and_the_day_after_and_leaves_the_pool_as_it_was():
    tour = started("--tour")

    assert tour.returncode == 0, tour.stderr
    commands = [line.split()[2:4] for line in tour.stdout.splitlines() if line.startswith("$ relvmoiscsi")]
    assert {name for _pool, name in commands} == {"luns", "attach", "map", "clone", "discard", "restore", "rescue"}
    for told in ("'web': cloned", "'web': restored", "'web': undone", ": lent, ", ": taken back, "):
        assert told in tour.stdout
    left = re.findall(r"^\d{4,}.*\n    not attached here\b", tour.stdout.rpartition("$ ")[2], re.MULTILINE)
    assert len(left) == 2, "both clones are LUNs of nobody"


@pytest.mark.states("options", "end", "status", few=2)
@pytest.mark.parametrize(
    ("options", "end", "status"),
    [
        (["--tour"], None, 74),
        (["--tour"], signal.SIGINT, 130),
        (["--tour"], signal.SIGHUP, 130),
        ([], signal.SIGHUP, 130),
    ],
)
def test_an_early_end_is_no_traceback_and_leaves_no_file(tmp_path, options, end, status):
    """Ctrl-C, `| head -3`, a closed terminal."""
    there = subprocess.Popen(
        [sys.executable, str(TOP / "tools/playground.py"), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "SHELL": "/bin/sh", "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    for _line in range(3):
        there.stdout.readline()
    if end is None:
        there.stdout.close()
    else:
        os.killpg(there.pid, end)  # a terminal signals the commands of the tour as well
    with there.stderr as told:
        said = told.read()
    there.stdin.close()
    assert (there.wait(timeout=300), os.listdir(tmp_path)) == (status, []) and b"Traceback" not in said, said
    there.stdout.close()


def test_no_module_of_the_working_directory_runs(tmp_path):
    """In a directory such as /tmp, another user can make one."""
    (tmp_path / "argparse.py").write_text("print('of another user')\n", encoding="utf-8")

    words = "relvmoiscsi pool luns && xe vm-list && playground help && echo all"

    shell = played(f"cd {tmp_path}; {words}\n", PYTHONPATH="")

    assert shell.stdout.endswith("\nall\n") and "of another user" not in shell.stdout + shell.stderr


def test_the_printed_path_names_no_directory_that_another_user_can_make_when_the_playground_has_ended(greeting):
    (path,) = re.findall(r'^  export PATH=(.*):"\$PATH"$', greeting, re.MULTILINE)

    assert path == str(TOP / "tools/in_playground") and os.path.isdir(path)


def test_the_greeting_fits_a_terminal_and_none_of_its_lines_breaks_a_command(greeting):
    assert [line for line in greeting.splitlines() if line.count("`") % 2 or len(line) > 80] == []
    assert "doctor` and `relvmoiscsi direct` belong to a dom0" in greeting


def test_the_commands_of_the_greeting_work_as_they_are_printed(greeting):
    printed = re.findall(r"^  ((?:relvmoiscsi|xe) .*)$", greeting.partition("Try it, and type")[2], re.MULTILINE)

    typed = "".join(f"{line} && echo worked\n" for line in printed)
    shell = played(re.sub(r"( pool (?:attach|clone) .*) &&", r"\1 --yes &&", typed))

    assert printed and shell.stdout.splitlines().count("worked") == len(printed), shell.stderr


def test_a_failed_last_command_of_the_shell_is_no_failure_of_make():
    recipe = subprocess.check_output(
        ["make", "-n", "--no-print-directory", "playground"], cwd=str(TOP), encoding="utf-8"
    ).splitlines()[-1]
    words = ["sh", "-c", recipe.replace(".venv/current/bin/python", sys.executable)]

    ended = subprocess.run(words, input="false\nexit\n", stdout=subprocess.DEVNULL, cwd=str(TOP), encoding="utf-8",
                           timeout=300, check=False)  # fmt: skip

    assert "tools/playground.py" in recipe and ended.returncode == 0


def test_a_host_goes_and_comes_back_and_the_array_takes_another_snapshot():
    typed = """playground host-down xs2
xe host-list params=name-label,host-metrics-live
relvmoiscsi pool attach 360014050000000000000000000000002 --yes -q || echo status $?
playground host-up xs2
relvmoiscsi pool attach 360014050000000000000000000000002 --yes -q && echo attached
playground snapshot
relvmoiscsi pool luns
playground host-down nobody
"""
    shell = played(typed)
    said = shell.stdout
    live = "name-label: xs1  host-metrics-live: true\n"
    for told in (live, live.replace("xs1", "xs2").replace("true", "false"), live.replace("xs1", "xs3")):
        assert told in said
    for told in ("\nstatus 9\nxs2 is up.\nattached\n", "clone of 'Production'", "The hosts: xs1, xs2, xs3"):
        assert told in said
    assert "360014050000000000000000000000002: host 'xs2': down; repeat the command when the host is up" in shell.stderr


def test_a_clone_is_damaged_and_a_vm_gets_a_disk_on_a_second_sr():
    shell = played(
        """playground snapshot
playground damage 360014050000000000000000000000004
playground damage 360014050000000000000000000000001; echo status $?
relvmoiscsi pool attach --all --yes --name copy --leave-others; echo status $?
playground two-srs
relvmoiscsi pool clone copy mail --isolated night --yes; echo status $?
relvmoiscsi pool clone copy mail --isolated night --yes --omit-disks; echo status $?
"""
    )
    said = shell.stdout
    assert re.findall("^status .*", said, re.MULTILINE) == ["status 2", "status 9", "status 4", "status 0"]
    assert "360014050000000000000000000000004: failed\n  Its state is damaged" in said
    assert "--omit-disks clones the VM without these disks" in said and "without its disk 1, 'data' (" in said


def test_the_night_goes_on_when_a_damaged_clone_is_unmapped():
    shell = played(
        """playground snapshot
playground damage 360014050000000000000000000000004
relvmoiscsi pool attach 360014050000000000000000000000002 --yes -q; echo status $?
playground unmap 360014050000000000000000000000004
relvmoiscsi pool attach 360014050000000000000000000000002 --yes -q; echo status $?
playground unmap 360014050000000000000000000000002; echo status $?
relvmoiscsi pool discard 360014050000000000000000000000002 --yes -q
playground unmap 360014050000000000000000000000002; echo status $?
playground snapshot
relvmoiscsi pool luns
"""
    )
    said = shell.stdout
    assert re.findall("^status .*", said, re.MULTILINE) == ["status 4", "status 0", "status 2", "status 0"], (
        shell.stderr
    )
    assert "plugged. Run this first:\n  relvmoiscsi pool discard 360014050000000000000000000000002\n" in said
    there = re.findall(r"^(\d{33}) ", said.rpartition("is mapped: ")[2], re.MULTILINE)
    assert there == [f"36001405000000000000000000000000{number}" for number in (1, 3, 5)]


def test_no_disk_moves_home_from_a_damaged_copy():
    shell = played(
        f"""relvmoiscsi pool attach 360014050000000000000000000000002 --yes -q
relvmoiscsi pool restore "{COPY}" web --shutdown --yes -q
playground damage 360014050000000000000000000000002
relvmoiscsi pool restore --home web --yes -q; echo status $?
relvmoiscsi pool restore --undo web --yes -q; echo status $?
"""
    )
    assert re.findall("^status .*", shell.stdout, re.MULTILINE) == ["status 6", "status 0"], shell.stderr
    assert "The VDI is not available" in shell.stderr


REFUSED = {
    "damage 360014050000000000000000000000001": "is the original",
    "unmap 360014050000000000000000000000001": "is the original",
    "damage 360014050000000000000000000000009": "no LUN 360014050000000000000000000000009: see `relv",
    "unmap x": "no LUN x: see `relv",
    "host-down xs1": "xs1 is the pool master",
    "host-up nobody": "no host 'nobody'. The hosts: xs1, xs2, xs3",
    "two-srs": "has that disk already",
}


def test_a_word_that_the_playground_cannot_obey_is_2_and_one_sentence():
    shell = played("playground two-srs\n" + "".join(f"playground {words}; echo status $?\n" for words in REFUSED))
    lines = shell.stdout.splitlines()[-2 * len(REFUSED) :]
    assert lines[1::2] == ["status 2"] * len(REFUSED)
    assert [says for said, says in zip(lines[::2], REFUSED.values()) if says not in said or len(said) > 80] == []


CLONE, FOREIGN = "360014050000000000000000000000002", "360014050000000000000000000000003"
VERBS = ("snapshot", "host-down xs2", "host-up xs2", f"damage {CLONE}", f"unmap {CLONE}", f"damage {FOREIGN}",
         f"unmap {FOREIGN}", "two-srs", "help", "")  # fmt: skip


@pytest.mark.parametrize("first", VERBS)
def test_two_words_of_the_playground_end_in_sentences_in_every_order(first):
    for second in VERBS:
        with lab_of_three(World()) as lab:
            PLAYGROUND["_furnish"](lab)
            for verb in (first, second):
                status, said = PLAYGROUND["obey"](lab, verb.split())
                assert status in (0, 2) and re.match("(xs2 is|[A-Z]).*[.:]", said), (first, second)


def test_who_asks_for_help_gets_the_words_with_status_0():
    shell = played("playground help; echo status $?\nxe help; echo status $?\n")
    assert shell.stdout.count("status 0\n") == 2 and shell.stderr == ""
    assert "  playground two-srs " in shell.stdout and "  host-call-plugin, host-list," in shell.stdout


def test_a_copy_that_is_damaged_is_damaged_for_luns_and_attach_once_no_host_uses_it():
    lun = "360014050000000000000000000000002"
    shell = played(
        f"""relvmoiscsi pool attach {lun} --yes -q
playground damage {lun}
relvmoiscsi pool discard {lun} --yes
relvmoiscsi pool luns
relvmoiscsi pool attach {lun} --yes; echo status $?
"""
    )
    said = shell.stdout
    assert "reads no LUN that a host\nuses. After `relvmoiscsi pool discard`" in said
    assert re.search(rf"^{lun} .* damaged\n    Metadata text at byte ", said, re.MULTILINE)
    assert "status 5\n" in said and f"The LUN {lun} holds no SR to attach. Its state is damaged: " in shell.stderr


def test_a_second_terminal_finds_the_pool_and_the_programs_by_the_lines_that_are_printed():
    there = subprocess.Popen(
        [sys.executable, str(TOP / "tools/playground.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, "SHELL": "/bin/sh"},
    )
    lines = []
    while not lines or "`xe help`" not in lines[-1]:
        lines.append(there.stdout.readline())
        assert lines[-1], "it has ended"
    exports = "".join(line for line in lines if line.startswith("  export "))
    other = subprocess.run(
        ["sh"],
        input=exports + "relvmoiscsi pool luns && xe sr-list && playground snapshot\n",
        stdout=subprocess.PIPE,
        encoding="utf-8",
        timeout=300,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )
    there.communicate("exit\n", timeout=300)
    assert other.returncode == 0 and "original, 'Production'" in other.stdout and "is mapped: " in other.stdout


def test_words_that_the_playground_does_not_know_end_with_a_status():
    words = ("host-down xs9", "snapshott", "", "damage nothing", "snapshot")
    typed = "".join(f"playground {each}; echo status $?\n" for each in words)
    said = played(typed).stdout
    assert re.findall("^status .*", said, re.MULTILINE) == ["status 2"] * 4 + ["status 0"]
    assert said.count("The hosts: xs1, xs2, xs3\n") == 3 and said.count("Give one of these words") == 2
    of_help = said.partition("status 0")[0].rpartition("A clone of ")[0]
    assert [line for line in of_help.splitlines() if len(line) > 80] == [], "the playground fits a terminal"


def test_a_snapshot_has_the_change_of_its_moment_and_never_a_later_one():
    """All had one time, older than records that were just saved: nobody could play a choice among snapshots."""
    begin = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    shell = played(
        """relvmoiscsi pool save-vms Production --yes -q
playground snapshot
playground snapshot
relvmoiscsi pool luns
relvmoiscsi pool attach --all --yes --leave-others
"""
    )
    end = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    clones = re.findall(r"^\d{30,} .*clone of 'Production'\n    (.*)", shell.stdout, re.MULTILINE)
    (first,), *later = [re.findall(r"changed ([-\d]+ [:\d]+) UTC", told) for told in clones]
    assert first == "2026-11-21 00:11" and len(later) == 2
    assert all(begin <= time <= end for (time,) in later) and later == sorted(later)
    saved = {told.partition(" (")[2][:16].replace("T", " ") for told in clones[1:]}
    assert "VMs 'db', 'mail', 'web'" in clones[1] and all(time <= later[0][0] for time in saved)
    names = re.findall("attached '(Production.*?)' ", shell.stdout)
    assert len(set(names)) == 3 and all(name.startswith("Production changed 2026-1") for name in names)


def test_a_disk_that_was_moved_home_is_in_the_next_snapshot():
    copy, later = "360014050000000000000000000000002", "360014050000000000000000000000004"
    shell = played(
        f"""relvmoiscsi pool attach {copy} --yes -q
relvmoiscsi pool restore {copy} web --shutdown --yes -q
relvmoiscsi pool restore --home web --yes -q
playground snapshot
relvmoiscsi pool attach {later} --yes -q
relvmoiscsi pool map {later}
relvmoiscsi pool clone {later} web --isolated night --yes
"""
    )
    assert shell.returncode == 0, shell.stderr
    assert "  'root disk' [VM 'web']\n" in shell.stdout and "'web': cloned" in shell.stdout


def test_xe_knows_each_command_of_the_pages_that_a_person_follows_in_the_playground():
    for page in ("night", "administrator"):
        text = (TOP / f"docs/{page}.rst").read_text(encoding="utf-8")
        printed = set(re.findall(r"\bxe\s+([a-z]+(?:-[a-z]+)+)", text))
        assert len(printed) > 2 and printed <= set(xe.COMMANDS), page


def test_xe_knows_each_command_that_the_product_advises():
    """But for those of `doctor` and `direct`, which belong to a dom0: no simulated host has one."""
    advised = {
        command
        for name, source in own_modules()
        if not name.startswith(("doctor.", "direct."))
        for command in re.findall(r"\bxe ([a-z]+(?:-[a-z]+)+)", source)
    }
    assert {"vm-copy", "vdi-disable-cbt", "vm-start"} <= advised
    assert advised <= set(xe.COMMANDS) and advised <= set(XE)


def test_the_lines_of_xe_in_these_pages_run_as_they_are_printed():
    shell = played(
        """named() { sed -n "s/  $1\\$//p" | tail -1; }
sr=$(xe sr-list | named Production)
xe pool-list params=ha-enabled
xe pool-ha-enable heartbeat-sr-uuids=$sr && xe pool-list params=ha-enabled
xe pool-ha-disable && xe pool-list params=ha-enabled
xe task-list
relvmoiscsi pool attach 360014050000000000000000000000002 --yes -q
copy=$(xe sr-list | named "Production changed 2026-11-21")
pbd=$(xe pbd-list sr-uuid=$copy | sed -n 's/  attached  xs2 .*//p')
xe pbd-unplug uuid=$pbd && xe pbd-list sr-uuid=$copy && xe pbd-plug uuid=$pbd && xe pbd-list sr-uuid=$copy
vdi=$(xe vdi-list sr-uuid=$copy | named data)
xe vbd-create vm-uuid=$(xe vm-list name-label=helper --minimal) vdi-uuid=$vdi device=0 || echo failed
xe vbd-create vm-uuid=$vdi
xe vm-start vm=helper || echo failed
xe sr-create type=relvmoiscsi name-label=x device-config:target=10.0.0.5
"""
    )
    said = shell.stdout
    assert re.findall(r"^ha-enabled .*: (\w+)$", said, re.MULTILINE) == ["false", "true", "false"]
    assert re.findall(r"  (\w+)  xs2  Production changed", said) == ["detached", "attached"] and "failed" not in said
    assert re.search(r"^[-0-9a-f]{36}$", said, re.MULTILINE), "vbd-create prints the UUID"
    assert "SR_BACKEND_FAILURE_96" in shell.stderr + said, "the driver lists the targets"


def test_a_typo_in_a_call_of_xe_is_told_in_one_line():
    shell = played("xe vm-start vm=hepler\nxe vm-start\nxe vm-strat vm=helper\n")

    assert "0 VMs have the name hepler, and one is wanted." in shell.stderr
    assert "Required parameter not found: vm" in shell.stderr
    assert "It knows these commands:\n" in shell.stderr and "Traceback" not in shell.stderr
    said = [*shell.stdout.splitlines(), *shell.stderr.splitlines()]
    assert [line for line in said if len(line) > 80] == [], "the playground fits a terminal"


def test_the_three_vms_of_the_night_are_there_and_a_copy_makes_room_for_a_restore():
    """docs/night.rst, steps 3 to 5, as they are typed."""
    copy = f'"{COPY}"'
    web = f'"web on {COPY}"'
    shell = played(
        f"""relvmoiscsi pool attach 360014050000000000000000000000002 --yes
relvmoiscsi pool clone {copy} web db mail --isolated night --yes
relvmoiscsi pool restore {copy} web --shutdown --yes || echo refused
xe vm-destroy uuid=$(xe vm-list name-label={web} --minimal)
relvmoiscsi pool restore {copy} web --disk 0 --shutdown --yes
relvmoiscsi pool restore --undo web --yes
relvmoiscsi pool discard {copy} --with-vms --yes
"""
    )

    assert shell.returncode == 0, shell.stderr
    for told in (
        "'web': cloned",
        "'db': cloned",
        "'mail': cloned",
        "refused",
        "'web': restored",
        "'web': undone",
        "discarded",
    ):
        assert told in shell.stdout
    assert " down, and run `xe vm-destroy uuid=" in shell.stderr


def test_a_copy_moves_to_another_network_as_the_page_says():
    """docs/night.rst, step 4."""
    copy, web = f'"{COPY}"', f'"web on {COPY}"'
    shell = played(
        f"""relvmoiscsi pool attach 360014050000000000000000000000002 --yes
relvmoiscsi pool clone {copy} web --isolated night --yes
xe vif-list vm-name-label={web}
vif=$(xe vif-list vm-name-label={web} | cut -d' ' -f1)
xe vif-move uuid=$vif network-uuid=$(xe network-list | sed -n 's/  office$//p')
xe vif-list vm-name-label={web}
xe sr-list
"""
    )

    assert shell.returncode == 0, shell.stderr
    assert re.findall(r"^[0-9a-f-]{36}  device 0  (\w+)  web ", shell.stdout, re.MULTILINE) == ["night", "office"]
    assert "  Production\n" in shell.stdout


#: `leads WORDS` runs the words, which print next steps at their end; `goes on` runs each of these steps as it is
FOLLOW = r"""steps=$(mktemp)
leads() {
    "$@" > $steps.said; status=$?
    cat $steps.said
    sed -n '/^next: /,$ { s/^next: //p; s/^      \(xe\|relvmoiscsi\) /\1 /p }' $steps.said > $steps
}
goes() {
    sed 's/^relvmoiscsi.*/& --yes/' $steps > $steps.now
    leads sh -e $steps.now
    echo "went on $status"
}
"""


@pytest.mark.states("down", few=1)
@pytest.mark.parametrize("down", ["", "playground host-down xs3"])
def test_each_next_step_runs_as_it_is_printed_and_leads_to_the_end(down):
    lun, copy = "360014050000000000000000000000002", f'"{COPY}"'
    shell = played(
        f"""{FOLLOW}{down}
leads relvmoiscsi pool attach {lun} --yes
goes on  # clone
goes on  # start
for vm in web db mail; do xe vm-shutdown vm="$vm on {COPY}" force=true; done
relvmoiscsi pool discard {copy} --with-vms --yes
relvmoiscsi pool attach {lun} --yes
leads relvmoiscsi pool restore {copy} web --shutdown --yes
goes on  # start
leads relvmoiscsi pool restore --home web --yes
sed -n 's/^  disk before, once nobody needs it: `\\(.*\\)`/\\1/p' $steps.said > $steps.old
sh -e $steps.old && echo destroyed $(wc -l < $steps.old)
goes on  # discard
relvmoiscsi pool attach {lun} --yes
leads relvmoiscsi pool rescue {copy} data --vm helper --yes
sed -n 's/^  later: `\\(.*\\)`/\\1 --yes/p' $steps.said > $steps.later
goes on  # start
leads sh -e $steps.later
goes on  # discard
rm -f $steps*
"""
    )

    assert [line for line in shell.stdout.splitlines() if line.startswith("went on")] == ["went on 0"] * 6
    assert "\ndestroyed 1\n" in shell.stdout
    assert shell.stdout.count(": discarded") == 3 and "Traceback" not in shell.stderr


def test_the_shell_finds_the_pool_and_its_end_is_the_end_of_the_playground():
    shell = started(typed="relvmoiscsi pool luns\nxe vm-start vm=helper\nexit 7\n")

    assert shell.returncode == 7
    assert "clone of 'Production'" in shell.stdout
    assert "export XENSERVER_HOST=http://127.0.0.1:" in shell.stdout


@pytest.mark.parametrize(("shell", "prompt"), [("bash", "(playground) mine> "), ("sh", "(playground) $ ")])
def test_the_prompt_says_playground(shell, prompt, tmp_path):
    (tmp_path / ".bashrc").write_text("PS1='mine> '\n", encoding="utf-8")
    terminal, end = os.openpty()
    there = subprocess.Popen(
        [sys.executable, str(TOP / "tools/playground.py")],
        stdin=end,
        stdout=end,
        stderr=end,
        env={**os.environ, "SHELL": "/bin/" + shell, "HOME": str(tmp_path)},
    )
    os.close(end)
    os.write(terminal, b"exit 7\n")
    said = [b"?"]
    with suppress(OSError):  # Linux says EIO where the other end is closed
        while said[-1]:
            said.append(os.read(terminal, 4096))
    os.close(terminal)
    assert there.wait(timeout=300) == 7 and prompt.encode() in b"".join(said)


def test_a_probe_without_a_host_asks_the_master():
    shell = played("xe sr-probe type=relvmoiscsi device-config:target=nobody.invalid\nexit 7\n")

    assert "Required parameter not found" not in shell.stdout + shell.stderr
    assert "SR_BACKEND_FAILURE" in shell.stdout + shell.stderr


def test_an_integrator_calls_the_driver_and_the_plugin_by_xe_as_on_a_host():
    """docs/driver.rst: one VDI of several, the new name, and the steps behind a success."""
    shell = played(
        """named() { sed -n "s/  $1\\$//p" | tail -1; }
lun="device-config:target=10.0.0.5 device-config:targetIQN=iqn.2026-01.test:array"
lun="$lun device-config:SCSIid=360014050000000000000000000000002"
create="xe sr-create type=relvmoiscsi name-label=x $lun"
$create device-config:vdis=one; $create device-config:vdi=7d2d9e72-1839-4ea5-85bd-6cecf8841738
$create device-config:clear-metadata-vdi=ture; $create device-config:clear-metadata-vdi=True
host=$(xe host-list | named xs1)
xe host-call-plugin host-uuid=$host plugin=relvmoiscsi fn=version
sr=$(xe host-call-plugin host-uuid=$host plugin=relvmoiscsi fn=classify | sed 's/.*"new_sr": *"\\([^"]*\\)".*/\\1/')
xe sr-introduce uuid=$sr type=lvmoiscsi name-label=copy shared=true content-type=user
pbd=$(xe pbd-create sr-uuid=$sr host-uuid=$host $lun)
xe sr-param-set uuid=$sr name-label='the copy' && xe pbd-plug uuid=$pbd && xe pbd-list sr-uuid=$sr
xe sr-param-set uuid=$sr colour=red || echo refused
"""
    )
    said = [line for line in shell.stderr.splitlines() if line.startswith("Error code")]
    codes = [line.rpartition("_")[2] for line in said]
    assert codes == ["202", "202", "202", "1"], shell.stderr
    assert "  attached  xs1  the copy\n" in shell.stdout and shell.stdout.endswith("refused\n")


def test_the_plugin_of_the_playground_answers_as_that_of_a_host():
    """docs/scripting.rst: a client that is written on the playground reads the answers of a host."""
    answers_kit = pytest.importorskip("kit.answers", reason="the validator needs a current Python")
    lun = "360014050000000000000000000000002"
    calls = [
        f"resignature args:scsi_id={lun} args:dry_run=true",
        f"resignature args:scsi_id={lun}",
        f"resignature args:scsi_id={lun}",
        "classify",
        "map args:sr=$sr",
        "status",
        f"lun args:scsi_id={lun}",
        "resignature",
        "lun",
        "doctor",
    ]
    call = "xe host-call-plugin host-uuid=$(xe host-list name-label=xs1 --minimal) plugin=relvmoiscsi fn="
    shell = played(
        f"""{call}{calls[0]}
answer=$({call}{calls[1]}); echo "$answer"; sr=$(echo "$answer" | sed 's/.*"new_sr": *"\\([^"]*\\)".*/\\1/')
xe sr-introduce uuid=$sr type=lvmoiscsi name-label=copy
xe pbd-create sr-uuid=$sr host-uuid=$(xe host-list name-label=xs1 --minimal) device-config:SCSIid={lun}
"""
        + "".join(f"{call}{words}\n" for words in calls[2:])
    )
    answers = [json.loads(line) for line in shell.stdout.splitlines() if line.startswith("{")]
    assert [answer["command"].split()[1] for answer in answers] == [words.split()[0] for words in calls[:7]], (
        shell.stderr
    )
    assert [problem for problem in map(answers_kit.problem_of, answers) if problem] == []
    assert answers[0]["plan"] and answers[2]["already_done"] and len(answers[4]["vdi_pairs"]) > 1
    assert shell.stderr.count("The argument scsi_id is no SCSIid.") == 2 and "no simulated host has one" in shell.stderr


def test_the_recipe_of_the_page_attaches_a_resignatured_lun_on_each_host():
    """docs/driver.rst: xs2 and xs3 have sessions in which they do not see the LUN yet."""
    lun = "360014050000000000000000000000002"
    page = (TOP / "docs/driver.rst").read_text(encoding="utf-8")
    recipe = re.search(r"\n    xe sr-introduce .*?\n\n", page, re.DOTALL).group()
    target = "device-config:target=10.0.0.5 device-config:targetIQN=iqn.2026-01.test:array"
    for word, value in {"<new SR>": "$sr", "TARGET": target, "<SCSIid>": lun, "<name>": "copy"}.items():
        recipe = recipe.replace(word, value)
    shell = played(
        f"""xe sr-create type=relvmoiscsi name-label=x {target} device-config:SCSIid={lun}
host=$(xe host-list name-label=xs1 --minimal)
sr=$(xe host-call-plugin host-uuid=$host plugin=relvmoiscsi fn=classify | sed 's/.*"new_sr": *"\\([^"]*\\)".*/\\1/')
{recipe}
xe pbd-list sr-uuid=$sr
"""
    )
    assert re.findall("  (attached|detached)  (xs.)  copy\n", shell.stdout) == [
        ("attached", "xs1"),
        ("attached", "xs2"),
        ("attached", "xs3"),
    ], shell.stderr


def test_xe_prints_the_first_field_alone_and_refuses_an_option_that_it_does_not_have():
    shell = played(
        """xe host-list --minimal; xe host-list params=name-label --minimal; xe pool-list --minimal
xe host-list --frob; echo status $?
xe pbd-list frob=1; echo status $?
for list in vm sr network; do xe $list-list params=uuid,name-label >/dev/null || echo failed; done
"""
    )
    said = shell.stdout
    uuid = "[0-9a-f-]{36}"
    assert re.search(f"^{uuid},{uuid},{uuid}\nxs1,xs2,xs3\n{uuid}\n", said, re.MULTILINE), said
    assert said.endswith("status 1\nstatus 1\n")
    assert "no option --frob" in shell.stderr and "no filter frob" in shell.stderr


def test_a_client_of_https_is_told_that_the_pool_of_the_playground_has_none():
    shell = played("relvmoiscsi pool luns --pool https://${XENSERVER_HOST#http://} || echo status $?\n")
    assert "status 11\n" in shell.stdout and "No pool answers at https://" in shell.stderr
    assert shell.returncode == 0 and "Traceback" not in shell.stderr
