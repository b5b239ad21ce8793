# SPDX-License-Identifier: LGPL-2.1-only
"""The commands on a LUN, given the URL of one: in this process, against the scripted target on loopback."""

import logging
import os
import re
import signal
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from kit import shell
from kit.builder import AREA_DEFAULT, SMALL_BAT, build_sr, many_vdis, vhd
from kit.examples import WHOLE
from kit.iscsi.hostile import HostileTarget
from kit.iscsi.lun import Lun
from kit.iscsi.options import Chap
from kit.shell import OTHER_SCSI_ID, SR, compare
from kit.sparse import SparseDisk
from relvmoiscsi import engine
from relvmoiscsi.cli import listing, on_lun, output, resignature
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.device import Fence
from relvmoiscsi.errors import Busy, Refused, UsageError
from relvmoiscsi.host.locks.lun_lock import lun_lock, user_lock
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.iscsi import link, looking, open_lun, target_sessions
from relvmoiscsi.lun import named_device, opened, run, url_source
from relvmoiscsi.lun import url_login as login
from relvmoiscsi.lun.gate import GatedDevice
from relvmoiscsi.lun.url_login import SECRET, TARGET_SECRET, TARGET_USER, USER
from relvmoiscsi.threads import Workers
from relvmoiscsi.wording import CHANGED_MEANS, shown_time, utc_time

CHANGED = utc_time(engine.inspect(shell.tree().disk).lun.vg.changed)

ALICE, ARRAY = Chap("alice", "sesamesesame"), Chap("array", "emasesemases")
NAME = "iqn.2026-01.test:me"


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine without xapi, whose user may write to its lock directory."""
    root = tmp_path / "machine"
    (root / "etc").mkdir(parents=True)
    (root / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    monkeypatch.setattr(on_lun, "HOST", Host(str(root)))
    monkeypatch.setattr(opened, "LOCK_SECONDS", 0)
    monkeypatch.setattr(run, "LOOK_SECONDS", 0)
    for name in (USER, SECRET, TARGET_USER, TARGET_SECRET):
        monkeypatch.delenv(name, raising=False)
    return root


def serving(*disks, **options):
    """A target with these disks as LUNs 0, 1, ..; two calls have two names of sessions."""
    luns = [Lun(number, disk=disk) for number, disk in enumerate(disks)]
    return HostileTarget(luns, ignore=("isid kept",), **options)


def url(target, number=None, user=""):
    return f"iscsi://{user + '@' if user else ''}{target.portal}/{target.iqn}" + (
        "" if number is None else f"/{number}"
    )


@pytest.fixture
def clone():
    return shell.tree().disk.copy()


@pytest.fixture
def one_lun(clone):
    """A target with the clone as its LUN 0; `where` is its URL."""
    with serving(clone) as target:
        target.where = url(target, 0)
        yield target


ANYHOW = ("--yes", "--not-in-use")


# --- what a run does


def test_a_resignature_writes_what_it_writes_to_a_disk(command, clone, one_lun, lun, has_scsi_id, monkeypatch, machine):
    words = ("--yes", "--sr-uuid", SR, "--scsi-id", one_lun.lun(0).scsi_id)
    has_scsi_id(one_lun.lun(0).scsi_id)
    monkeypatch.setattr(resignature, "os", SimpleNamespace(urandom=bytes))  # of which the number of the run is made
    clone.to_file(str(lun))
    assert command("resignature", lun, *words).status == 0
    monkeypatch.setattr(on_lun, "HOST", Host(str(machine)))
    ran = command("resignature", one_lun.where, *words, "--json")

    assert ran.status == 0, ran.err
    assert ran.json["lun"]["device_kind"] == "iSCSI LUN" and ran.json["lun"]["vendor"] == "HOSTILE"
    assert clone == SparseDisk.from_file(str(lun)) and not one_lun.lun(0).unflushed


def test_the_result_is_shown_checked_mapped_compared_and_undone(command, clone):
    with serving(clone, clone.copy()) as target:
        where, other = url(target, 0), url(target, 1)
        words = (where, "--yes", "--scsi-id", target.lun(0).scsi_id)
        assert command("resignature", *words, "--sr-uuid", SR).status == 0
        assert command("show", where, "--json").json["state"] == "resignatured"
        assert command("check", where).status == 0
        ran = command("check", where, "--original", other)
        assert ran.status == 0 and "shares no identity" in ran.out
        assert command("check", where, "--original", where).status == 2
        assert SR in command("map", "--device", where).out
        assert command("undo", *words).status == 0
        assert command("show", where, "--json").json["sr"] == shell.tree().truth.sr_uuid


def cut_run(command, monkeypatch, target):
    """A resignature that Ctrl-C ends at its fifth write."""
    real, left = GatedDevice.write, [4]

    def write(device, chunks):
        for chunk in chunks:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            real(device, [chunk])

    with monkeypatch.context() as patch:
        patch.setattr(GatedDevice, "write", write)
        ran = command("resignature", target.where, *ANYHOW)
    target.new_call()
    return ran


# --- whom it asks


@contextmanager
def other_lun_for_readers(*where, **more):
    """A session that only reads finds a LUN that is no longer there when the session that writes begins."""
    with open_lun(*where, **more) as device:
        if not where[4]:
            device.info = device.info._replace(scsi_id=OTHER_SCSI_ID)
        yield device


@pytest.mark.parametrize("name", shell.WRITERS)
def test_yes_alone_is_not_enough_and_nothing_is_written(command, clone, one_lun, name, monkeypatch):
    if name == "undo":
        command("resignature", one_lun.where, *ANYHOW)
    elif name == "recover":
        ran = cut_run(command, monkeypatch, one_lun)
        assert ran.status == 130 and f"`relvmoiscsi recover {one_lun.where}` finishes" in ran.err
    before = clone.copy()
    ran = command(name, one_lun.where, "--yes")
    assert ran.status == 4 and "No pool was asked whether" in ran.err and "--scsi-id" in ran.err

    ran = command(name, one_lun.where, "--yes", "--scsi-id", OTHER_SCSI_ID)
    assert ran.status == 4 and OTHER_SCSI_ID in ran.err and one_lun.lun(0).scsi_id in ran.err
    with monkeypatch.context() as patch:
        patch.setattr(url_source, "open_lun", other_lun_for_readers)  # another LUN is put there before the session
        ran = command(name, one_lun.where, *ANYHOW)
    told, why = ran.err, ", expected "
    if name == "recover":  # it first looks whether a run was interrupted
        told, why = ran.out, "the array has mapped another LUN in its place"
    assert ran.status == 4 and "The LUN " in told and why in told and "Nothing was written." in told
    assert clone == before
    assert command(name, one_lun.where, *ANYHOW).status == 0


def test_a_person_types_the_scsi_id(command, one_lun, type_in):
    type_in("y\n")
    ran = command("resignature", one_lun.where)
    assert ran.status == 4 and "No xapi on this machine: no pool was asked" in ran.err
    type_in(one_lun.lun(0).scsi_id + "\n")
    ran = command("resignature", one_lun.where, "--sr-uuid", SR)
    assert ran.status == 0
    _after, introduce, protect, probe, plug, check = ran.out.splitlines()[-6:]
    assert check == f"next: relvmoiscsi check {one_lun.where}"
    name = f"name-label='test SR changed {shown_time(CHANGED)}' "  # as `pool attach` names the copies of several days
    assert name in introduce and "chap" not in ran.out
    assert output.wrapped(plug, 60) == plug  # a command stays whole
    target = re.search("device-config:target=127.0.0.1 .*?(?= device-config:SCSIid=)", plug)
    page = (shell.TOP / "docs/driver.rst").read_text(encoding="utf-8")
    recipe = re.search(r"\n    xe sr-introduce .*?\n\n", page, re.DOTALL).group().replace("\\\n        ", "")
    values = {"<new SR>": SR, "TARGET": target.group(), "<SCSIid>": one_lun.lun(0).scsi_id, "name-label=<name> ": name}
    for word, value in values.items():
        recipe = recipe.replace(word, value)
    assert recipe.rstrip().split("\n    ")[1:] == [line.strip() for line in (introduce, protect, probe, plug)], (
        "the page's"
    )


def test_the_next_steps_after_a_login_with_chap_have_its_user_and_a_place_for_its_secret(command, clone, chap_file):
    with serving(clone, chap=ALICE) as target:
        where = url(target, 0)
        ran = command("resignature", where, *ANYHOW, "--chap-file", chap_file)
        assert ran.status == 0, ran.err
        assert f"next: relvmoiscsi check --chap-file {chap_file} {where}" in ran.out.splitlines()
        (create,) = [line for line in ran.out.splitlines() if "xe pbd-create" in line]
        assert f" device-config:chapuser={ALICE.user} device-config:chappassword_secret=SECRET" in create
        assert "SECRET is the UUID that `xe secret-create" in ran.out
        checked = command("check", where, "--chap-file", chap_file).out
        assert compare(f"--chap-file {chap_file} {where}") in checked


def test_a_session_that_ends_while_a_person_thinks_is_made_again(command, one_lun, monkeypatch):
    def typed(_question):
        one_lun.drop()
        return one_lun.lun(0).scsi_id

    monkeypatch.setattr(output, "_typed", typed)
    monkeypatch.setattr(output, "must_be_able_to_ask", lambda *_arguments: None)
    monkeypatch.setattr(on_lun, "must_be_able_to_ask", lambda *_arguments: None)
    assert command("resignature", one_lun.where).status == 0
    assert command("show", one_lun.where, "--json").json["state"] == "resignatured"


def test_a_silent_portal_is_told_after_two_logins_with_the_time_and_what_to_check(command, clone, monkeypatch):
    monkeypatch.setattr(link, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(target_sessions, "_TRY_SECONDS", 0.0)
    with serving(clone, quirks=["silent_at_once"]) as target:
        ran = command("show", url(target, 0))

        assert len([event for event in target.events if event.name == "connected"]) == 2
        portal = command("show", f"iscsi://{target.portal}")
    assert portal.status == ran.status == 11
    assert "has said nothing for 0.5 seconds. Check the port, and whether the target works." in portal.err
    assert ran.err.count("Check the port, and whether the target works.") == 1
    assert "has said nothing for 0.5 seconds in each of 2 logins. It takes connections. Check the port" in ran.err


# --- others at work on it


def refuses(command, target, says, *words):
    ran = command("resignature", target.where, *(words or ANYHOW))
    assert ran.status == 4 and says in ran.err and "Nothing was written." in ran.err
    assert not target.lun(0).writes
    assert command("show", target.where).status == 0


def test_a_lun_that_is_mapped_read_only_is_refused_and_the_dry_run_says_so(command, one_lun):
    one_lun.lun(0).read_only = True
    refuses(command, one_lun, "is read-only: the array maps the LUN read-only")
    ran = command("resignature", one_lun.where, "--dry-run", "--json")
    assert ran.status == 4 and "would be refused: " in ran.err
    assert "the array maps the LUN read-only" in ran.json["would_be_refused"]


def test_a_python_program_opens_a_url_as_it_opens_a_file(one_lun, clone, machine, monkeypatch, tmp_path):
    monkeypatch.setattr(named_device, "THIS_HOST", Host(str(machine)))
    where, scsi_id = url(one_lun, 0), one_lun.lun(0).scsi_id
    with named_device.open_device(where, writable=False) as device:
        assert engine.inspect(device).state == "clean" and not one_lun.written()
    with named_device.open_device(where, writable=True, initiator_name=NAME, scsi_id=scsi_id) as device:
        prepared = engine.prepare(device, os.urandom, engine.ResignatureRequest(scsi_id=scsi_id))
        assert engine.resignature(device, prepared).state == "resignatured"
    with pytest.raises(UsageError, match="is closed: the argument device of undo"):  # its lock is gone
        engine.undo(device, os.urandom)
    with named_device.open_device(where, writable=False) as device:
        assert engine.inspect(device).state == "resignatured"
    lock = lun_lock if os.geteuid() == 0 else user_lock
    with lock(scsi_id, Host(str(machine)), 0), pytest.raises(Busy):
        named_device.open_device(where, writable=True).__enter__()
    with pytest.raises(UsageError, match="names no LUN"):
        named_device.open_device(url(one_lun), writable=False).__enter__()
    with pytest.raises(UsageError, match="is no URL"):
        named_device.open_device(str(tmp_path / "x.img"), False, scsi_id=scsi_id).__enter__()


def test_a_python_program_that_has_opened_a_url_for_writing_is_refused_at_once(one_lun, machine, monkeypatch):
    """A wait for its own lock would never end."""
    monkeypatch.setattr(named_device, "THIS_HOST", Host(str(machine)))
    monkeypatch.setattr(opened, "LOCK_SECONDS", 0.0)
    where = url(one_lun, 0)
    for _ in range(2):  # the lock is free again after the block
        with named_device.open_device(where, writable=True) as device:
            with pytest.raises(Busy, match="is in use by this very process. Use that device, or close it first."):
                named_device.open_device(where, writable=True).__enter__()
            assert engine.inspect(device).state == "clean"


def test_a_lun_that_changes_between_two_looks_is_in_use(command, clone, one_lun, monkeypatch):
    monkeypatch.setattr(run.time, "sleep", lambda _seconds: clone.poke(4096 + 100, b"x"))
    refuses(command, one_lun, "changed at byte 4196", "--yes", "--scsi-id", one_lun.lun(0).scsi_id)


def test_a_lun_that_this_machine_sees_as_a_disk_is_not_written_to(command, one_lun, machine):
    device = machine / "sys/block/sdq/device"
    device.mkdir(parents=True)
    (device / "vendor").write_text("HOSTILE \n")
    (device / "model").write_text("SCRIPTED        \n")
    (device / "vpd_pg83").write_bytes(one_lun.lun(0).page(0x83))
    refuses(command, one_lun, "as /dev/sdq already. Nothing was written. Give the command that device instead")


def test_a_disk_that_comes_meanwhile_is_told(command, one_lun, monkeypatch):
    seen = iter([[], ["sdq"]])
    monkeypatch.setattr(url_source, "disks_with", lambda _scsi_id, _host: next(seen))
    ran = command("resignature", one_lun.where, *ANYHOW)
    assert ran.status == 0 and "found the LUN as /dev/sdq" in ran.err


LOCKS = {0: (lun_lock, "is held by this very process"), 1000: (user_lock, "Another relvmoiscsi is at work on the LUN")}


@pytest.mark.parametrize("uid", LOCKS)
def test_two_commands_of_root_or_of_users_do_not_work_on_one_lun(command, one_lun, uid, monkeypatch):
    lock, says = LOCKS[uid]
    os.symlink("/proc", on_lun.HOST.at("proc"))
    with lock(one_lun.lun(0).scsi_id, on_lun.HOST, 0):
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        refuses(command, one_lun, says)
        for name in ("resignature", "recover", "undo"):  # a dry run calls no run that is alive interrupted
            ran = command(name, one_lun.where, "-n")
            assert (ran.status, ran.out) == (4, "") and says in ran.err


def test_no_user_keeps_root_off(command, one_lun, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with user_lock(one_lun.lun(0).scsi_id, on_lun.HOST, 0):
        assert command("resignature", one_lun.where, *ANYHOW).status == 0


# --- who logs in


@pytest.mark.parametrize("kind", [str, Path])
def test_a_python_program_gives_the_chap_file_as_a_text_or_a_path(clone, machine, monkeypatch, chap_file, kind):
    monkeypatch.setattr(named_device, "THIS_HOST", Host(str(machine)))
    with ExitStack() as held:
        where = url(held.enter_context(serving(clone, chap=ALICE)), 0)
        device = held.enter_context(named_device.open_device(where, writable=False, chap_file=kind(chap_file)))
        assert engine.inspect(device).state == "clean"


NOBODY = "iscsi://127.0.0.1:1/iqn.a/0"  #: at which nothing listens


def test_chap_comes_from_the_environment(command, clone, monkeypatch):
    with serving(clone, chap=ALICE, mutual=ARRAY) as target:
        for values, status, says in (
            ({}, 11, ""),
            ({USER: "alice"}, 2, "'alice' has no password, or an empty password"),
            ({SECRET: ALICE.secret}, 0, ""),
            ({TARGET_USER: ARRAY.user, TARGET_SECRET: ARRAY.secret}, 0, ""),
            ({TARGET_SECRET: "wrongwrongwrong"}, 11, "could not prove itself"),
        ):
            for name, value in values.items():
                monkeypatch.setenv(name, value)
            ran = command("show", url(target, 0))
            assert ran.status == status and says in ran.err
    with serving(clone, chap=ALICE) as target:
        for name in (TARGET_USER, TARGET_SECRET):
            monkeypatch.delenv(name)
        monkeypatch.setenv(USER, "bob")
        assert command("show", url(target, 0)).status == 11
        assert command("show", url(target, 0, "alice")).status == 0, "the user of the URL comes first"


@pytest.fixture
def chap_file(tmp_path):
    path = tmp_path / "chap"
    path.write_text(f"# of the lab\n{USER}=alice\n\n{SECRET} = {ALICE.secret}\n")
    path.chmod(0o600)
    return path


def test_chap_comes_from_a_file_that_its_owner_alone_may_read(command, clone, chap_file):
    with serving(clone, chap=ALICE) as target:
        assert command("show", url(target, 0), "--chap-file", chap_file).status == 0
        chap_file.chmod(0o640)
        ran = command("show", url(target, 0), "--chap-file", chap_file)
    assert ran.status == 2 and f"{chap_file} is accessible to other users." in ran.err
    assert "Put the password into a file of your own with mode 0600, and name that file." in ran.err
    assert "`" not in ran.err, "a file that was named by mistake must not be changed"


@pytest.mark.parametrize(
    "text, says",
    [
        (f"{USER}=\n", "holds no CHAP user and no password"),
        *[(text, "Line 1 of") for text in ("sesamesesame\n", "PASSWORD=sesamesesame\n")],
    ],
)
def test_a_chap_file_that_means_nothing_is_an_error_of_usage_and_not_repeated(command, chap_file, text, says):
    """Its owner takes the login for one with CHAP."""
    chap_file.write_text(text)
    ran = command("show", NOBODY, "--chap-file", chap_file)
    assert ran.status == 2 and says in ran.err and "sesame" not in ran.out + ran.err


def test_who_logs_in_is_not_said_for_a_path(command, one_lun, clone, tmp_path, chap_file):
    clone.to_file(str(tmp_path / "lun"))
    for option in (("--chap-file", chap_file), ("--initiator-name", NAME)):
        for argv in (("show", tmp_path / "lun"), ("map", "--device", tmp_path / "lun"), ("map", "--sr", SR, SR)):
            ran = command(*argv, *option)
            assert ran.status == 2 and f"{option[0]} needs the URL of a LUN" in ran.err
    assert command("check", tmp_path / "lun", "--original", one_lun.where, "--initiator-name", NAME).status != 2


def test_a_caller_who_may_use_block_devices_alone_opens_neither_a_file_nor_a_url(command, one_lun, clone, tmp_path):
    """By rootwrap such a caller names a link below /dev, which may lead anywhere."""
    clone.to_file(str(tmp_path / "lun"))
    before = (tmp_path / "lun").read_bytes()
    (tmp_path / "link").symlink_to(tmp_path / "lun")
    for where in (tmp_path / "lun", tmp_path / "link"):
        for action in ("show", "check", "recover", "undo", "resignature"):
            ran = command(action, where, "--block-device", *(ANYHOW if action not in ("show", "check") else ()))
            assert ran.status == 2 and "is no block device" in ran.err, action
        assert "is no block device" in command("map", "--device", where, "--block-device").err
    assert (tmp_path / "lun").read_bytes() == before
    ran = command("show", one_lun.where, "--block-device")
    assert ran.status == 2 and "--block-device needs the path of a block device" in ran.err


def test_a_url_that_is_refused_says_what_to_do(command):
    ran = command("show", "iscsi://192.0.2.1/iqn.2026-01.test:a/0?header_digest=crc32c")

    assert ran.status == 2 and "has options behind a `?`, which are not taken. Leave them away." in ran.err


@pytest.mark.parametrize(
    "values, words",
    [
        ({SECRET: "sesamesesame"}, "The CHAP password has no user"),
        ({TARGET_USER: "array"}, "The incoming CHAP user 'array' has no password"),
        ({TARGET_SECRET: "emasesemases"}, "The incoming CHAP password has no user"),
        ({TARGET_USER: "array", TARGET_SECRET: "emasesemases"}, "proves itself only to a CHAP user"),
        (
            {USER: "alice", SECRET: "emasesemases", TARGET_USER: "array", TARGET_SECRET: "emasesemases!"},
            "is equal to the other or begins with it",
        ),
    ],
)
def test_half_of_chap_is_an_error_of_usage(command, monkeypatch, values, words):
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    ran = command("show", NOBODY)
    assert ran.status == 2 and words in ran.err and "emas" not in ran.err
    assert SECRET in ran.err, "where the missing half belongs"


def test_no_secret_is_said_or_logged(command, clone, monkeypatch, smlines, caplog):
    caplog.set_level(0)
    monkeypatch.setenv(USER, ALICE.user)
    said = []
    with serving(clone, chap=ALICE) as target:
        for secret in ("wrongwrongwrong", ALICE.secret):
            monkeypatch.setenv(SECRET, secret)
            said += command("resignature", url(target, 0), *ANYHOW, "-vv")
    text = "".join(map(str, said)) + "".join(smlines) + caplog.text

    assert "was resignatured" in text and "sesame" not in text and "wrongwrong" not in text


@pytest.mark.parametrize("name", ["me", "iqn.a", "iqn.2026-01.test:a b", "eui.12"])
def test_what_is_no_initiator_name_is_an_error_of_usage(command, name):
    ran = command("show", "iscsi://127.0.0.1:1", "--initiator-name", name)
    assert ran.status == 2 and "is not an initiator name" in ran.err


@pytest.mark.parametrize("length, is_taken", [(13, True), (222, True), (223, True), (224, False), (300, False)])
def test_an_initiator_name_has_at_most_223_bytes_and_a_longer_one_is_told_as_that(length, is_taken):
    name = "iqn.2026-11.".ljust(length, "a")
    if is_taken:
        assert login.initiator_name(name) == name
    else:
        with pytest.raises(UsageError, match="it has more than 223 bytes"):
            login.initiator_name(name)


def test_a_lun_that_does_not_answer_is_opened_once_for_json(command, monkeypatch):
    monkeypatch.setattr(url_source, "REPLACEMENT_TIMEOUT_SECONDS", 0.2)
    with HostileTarget(quirks=["busy_for_ever"], ignore=("isid kept",)) as target:
        ran = command("show", url(target, 0), "--json")

        assert target.count("session") == 2  # one lists the LUNs, and asks a busy LUN once
    assert ran.json["state"] is None and "status 08 (busy)" in ran.json["error"]["message"]


def test_a_list_asks_a_busy_lun_once_and_says_that_it_is_busy(command, monkeypatch):
    monkeypatch.setattr(url_source, "REPLACEMENT_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(looking, "PAUSE_SECONDS", 3600.0)
    with HostileTarget(quirks=["busy_for_ever"], ignore=("isid kept",)) as target:
        (row,) = command("show", url(target), "--json").json["target_luns"]

    assert row["state"] is None and "status 08 (busy)" in row["problem"]


def test_a_list_has_a_time_limit_for_each_lun_and_for_all_and_names_what_was_not_read(command, clone, monkeypatch):
    """Each batch takes 10 seconds, of a LUN and of its session."""
    now, real, limits = [0.0], Deadline, []

    def of_list(seconds):
        limits.append(real(seconds, clock=lambda: now[0]))
        return limits[0]

    class Slow(url_source.GatedDevice):
        def read(self, ranges):
            now[0] += 10
            with self._gate(False):
                return super().read(ranges)

    monkeypatch.setattr(listing, "Deadline", of_list)
    monkeypatch.setattr(listing, "TARGET_SECONDS", 50)
    monkeypatch.setattr(listing, "LISTED_AT_ONCE", 1)
    monkeypatch.setattr(url_source, "GatedDevice", Slow)
    with serving(*[clone.copy() for _ in range(6)]) as target:
        rows = command("show", url(target), "--json").json["target_luns"]
        now[0] = 0.0
        limits.clear()
        text = command("show", url(target))

    late = [row["problem"] for row in rows if row["state"] is None]
    assert rows[0]["state"] is None and "The 20 seconds" in rows[0]["problem"]
    assert late[-1].startswith("The 50 seconds for the LUNs of a target were over before this LUN was read.")
    assert text.status == 0 and "LUN 5: The 50 seconds for the LUNs of a target were over" in " ".join(text.out.split())


@pytest.mark.parametrize("output_as", [[], ["--json"]])
@pytest.mark.parametrize("reader", ["show", "check"])
def test_a_reader_that_has_waited_too_long_says_what_the_lun_answered_and_nothing_of_earlier_calls(
    command, reader, output_as, monkeypatch
):
    monkeypatch.setattr(url_source, "REPLACEMENT_TIMEOUT_SECONDS", 0.2)
    with HostileTarget(quirks=["busy_for_ever"], ignore=("isid kept",)) as target:
        ran = command(reader, url(target, 0), *output_as)

    told = " ".join((ran.out + ran.err).split())
    assert "status 08 (busy)" in told and "The 0.2 seconds for this step were over" in told
    assert "earlier call" not in told and "the call" not in told


def test_the_initiator_is_named_by_the_option_the_host_or_the_machine(machine, monkeypatch):
    own = login.initiator_name(None, on_lun.HOST)
    assert re.match(r"iqn\.2026-11\.invalid\.relvmoiscsi:[0-9a-f]{16}\Z", own)
    assert login.initiator_name(None, on_lun.HOST) == own
    (machine / "etc/machine-id").write_text("f" * 32)
    assert login.initiator_name(None, on_lun.HOST) != own
    (machine / "etc/iscsi").mkdir()
    (machine / "etc/iscsi/initiatorname.iscsi").write_text("# of xapi\nInitiatorName=iqn.2026-01.test:host\n")
    assert login.initiator_name(None, on_lun.HOST) == "iqn.2026-01.test:host"
    assert login.initiator_name(NAME) == NAME


def test_the_host_is_told_apart_by_the_id_of_its_installation_or_machine(machine):
    assert login.host_uuid(on_lun.HOST) == "0123456789abcdef" * 2
    (machine / "etc/xensource-inventory").write_text("INSTALLATION_UUID='5d2d9e72-1839-4ea5-85bd-6cecf8841738'\n")
    assert login.host_uuid(on_lun.HOST) == "5d2d9e72-1839-4ea5-85bd-6cecf8841738"
    for name in ("machine-id", "xensource-inventory"):
        (machine / "etc" / name).unlink()
    (machine / "proc/sys/kernel/random").mkdir(parents=True)
    (machine / "proc/sys/kernel/random/boot_id").write_text("of this boot\n")
    assert login.host_uuid(on_lun.HOST) == "of this boot"


# --- what is there


def test_a_url_without_an_iqn_lists_targets(command, one_lun):
    where, row = f"iscsi://{one_lun.portal}", {"iqn": one_lun.iqn, "portals": [one_lun.portal]}
    assert command("show", where, "--json").json == {"device": where, "targets": [row]}
    assert one_lun.iqn in command("show", where).out


def test_a_url_without_a_lun_lists_luns_with_their_srs_and_one_that_cannot_be_read_hides_no_other(
    command, clone, monkeypatch
):
    real = url_source.open_lun

    def open_lun(*where, **more):
        if where[3] == 2:
            raise Refused("It is reserved by another host.")
        return real(*where, **more) if where[3] != 3 else {}["flowers"]

    monkeypatch.setattr(url_source, "open_lun", open_lun)
    with serving(clone, SparseDisk(1 << 20), clone, clone) as target:
        first, second, third, buggy = command("show", url(target), "--json").json["target_luns"]
        text = command("show", url(target))
    assert first == {
        "number": 0,
        "scsi_id": target.lun(0).scsi_id,
        "vendor": "HOSTILE",
        "model": "SCRIPTED",
        "serial": "HOSTILE000000",
        "size_bytes": clone.size_bytes,
        "state": "clean",
        "sr": shell.tree().truth.sr_uuid,
        "sr_name_label": "test SR",
        "vdi_count": 4,
        "changed_at": CHANGED,
        "problem": None,
    }
    assert (second["number"], second["state"], second["sr"]) == (1, "empty", None)
    assert third["state"] is None and text.status == 0 and "LUN 2: It is reserved by another host." in text.out
    assert f"{url(target)}/3 was not read, because of a bug in relvmoiscsi " in buggy["problem"]
    row = rf"^  0 +{first['scsi_id']} .* 'HOSTILE SCRIPTED' +clean +{shown_time(CHANGED)} +{first['sr']} 'test SR'"
    assert re.search(row, text.out, re.MULTILINE)
    assert text.out.splitlines()[-1] == f"note: changed is {CHANGED_MEANS}."


def test_luns_with_one_sr_are_marked(command, clone):
    sr = shell.tree().truth.sr_uuid
    with serving(clone, SparseDisk(1 << 20), clone.copy(), shell.tree(1).disk.copy()) as target:
        luns = command("show", url(target), "--json").json["target_luns"]
        lines = command("show", url(target)).out.splitlines()
    assert [lun["sr"] for lun in luns] == [sr, None, sr, shell.tree(1).truth.sr_uuid]
    # a row does not grow with the number of LUNs that hold its SR
    assert not any(isinstance(value, (list, dict)) for lun in luns for value in lun.values())
    assert [line for line in lines if line.startswith("note: ")] == [
        f"note: the LUNs 0, 2 hold one SR, {sr}: an original and its copies, or copies alone.",
        f"note: changed is {CHANGED_MEANS}.",
    ]


def test_luns_with_one_scsi_id_are_told_of_and_not_written_to(command, clone):
    luns = [Lun(number, disk=clone.copy(), naa="6001405000000001") for number in (3, 5)]
    with HostileTarget([*luns, Lun(7)], ignore=("isid kept",)) as target:
        for where in (url(target), url(target, 5)):
            assert "the LUNs 3, 5 have one SCSIid, 36001405000000001" in command("show", where).err
        assert "one SCSIid" not in command("show", url(target, 7)).err
        for more in ("--not-in-use",), ("--scsi-id", luns[1].scsi_id):
            ran = command("resignature", url(target, 5), "--yes", *more)
            assert ran.status == 4 and "the SCSIid does not tell the clone from its original" in ran.err
        checked = command("check", url(target, 5), "--original", url(target, 3))
        assert checked.out.splitlines()[-3:] == [
            f"note: {url(target, 5)} and {url(target, 3)} have one SCSIid, {luns[1].scsi_id}: these are two paths of "
            "one LUN, or the array must give the clone a SCSIid of its own.",
            "First do what the note says.",
            f"next: relvmoiscsi resignature {url(target, 5)}",
        ]
        assert not target.written()


def test_ctrl_c_waits_for_no_lun_that_is_being_read():
    heard, never, ended = threading.Event(), threading.Event(), []

    def hear(*_):
        if not heard.is_set():
            heard.set()
            raise KeyboardInterrupt

    def interrupted():
        while not heard.wait(0.1):  # Python misses a signal that comes in the moment before its main thread waits
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        read()

    def read():
        never.wait(300)
        ended.append(1)

    before = signal.signal(signal.SIGINT, hear)
    try:
        with pytest.raises(KeyboardInterrupt):
            Workers(4).run([interrupted] + [read] * 8)
        assert not ended
    finally:
        signal.signal(signal.SIGINT, before)
        never.set()


@pytest.mark.parametrize("name", ["check", *shell.WRITERS])
def test_a_writer_wants_a_whole_url(command, name):
    ran = command(name, "iscsi://127.0.0.1:1/iqn.a", *(["--yes"] if name != "check" else []))
    assert ran.status == 2 and "names no LUN, expected iscsi://" in ran.err


# --- what refuses


@pytest.mark.parametrize(
    "quirk, status, words",
    [
        ("status_0202", 11, "Allow the initiator name"),
        ("status_0206", 11, "Allow one more session.*iscsiadm"),
        ("reserved", 4, "reserved by another host"),
        ("alua_standby", 4, "No portal of the target has a path"),
    ],
)
def test_what_refuses_us_says_what_to_do_and_that_nothing_was_written(command, quirk, status, words, monkeypatch):
    monkeypatch.setattr("relvmoiscsi.iscsi.target_sessions._TRY_SECONDS", 0.01)
    with HostileTarget(quirks=[quirk], ignore=("isid kept",)) as target:
        ran = command("resignature", url(target, 0), *ANYHOW, "--initiator-name", NAME)

        assert ran.status == status and re.search(words, ran.err), ran.err
        assert "Nothing was written." in ran.err
        assert quirk != "status_0202" or f"The initiator name of this machine is {NAME}." in ran.err
        assert not target.luns[0].writes


def test_a_portal_that_is_not_there_is_told_once(command):
    ran = command("show", NOBODY, "--json")

    assert ran.status == 11 and ran.json["state"] is None
    assert "Nothing listens at the portal 127.0.0.1:1" in ran.json["error"]["message"]


# --- a run that was cut, and a run that was overtaken


@pytest.mark.parametrize(
    "count, others", [(1, 0), (6, 0), (6, 1), (50, 0), *([(1, 1), (50, 1), (500, 0), (500, 1)] if WHOLE else [])]
)
def test_the_round_trips_of_a_run_and_of_one_that_settles_a_run_before(
    command, count, others, round_trips, monkeypatch
):
    """A read of 500 VDIs has one more. The command waits for no lease of its own machine."""
    monkeypatch.setattr(Fence, "OUTLAST_SECONDS", 3600.0)
    with serving(many_vdis(count).disk, *[SparseDisk(1 << 20)] * others) as target:
        target.where = url(target, 0)
        before, words = target.lun(0).disk.copy(), ("--yes", "--scsi-id", target.lun(0).scsi_id)
        assert command("resignature", target.where, *words).status == 0
        of_a_run = len(round_trips)

        target.lun(0).disk.poke(0, before.peek(0, before.size_bytes))
        cut_run(command, monkeypatch, target)
        del round_trips[:]
        ran = command("resignature", target.where, *words)
        assert ran.status == 0 and "Another host" not in ran.err

    assert (of_a_run - others, len(round_trips) - others) == {50: (40, 64), 500: (41, 67)}.get(count, (40, 66))


def test_the_round_trips_of_a_run_to_one_vdi(command, round_trips):
    """A new image costs a batch of writes and two batches that read it back; the LUN is reset once."""
    volumes = [vhd("base", hidden=True, bat_entries=SMALL_BAT), vhd("disk", "base", bat_entries=SMALL_BAT)]
    with serving(build_sr(volumes, area=AREA_DEFAULT, free_extents=20).disk) as target:
        words = ("--yes", "--scsi-id", target.lun(0).scsi_id, "--vdis", "one")
        ran = command("resignature", url(target, 0), *words)
        assert ran.status == 0, ran.err
    assert sum(what.startswith("the reset") for what in round_trips) == 1
    assert len(round_trips) == 60, round_trips


@pytest.mark.parametrize("output_as", [(), ("--json",)])
def test_a_command_that_was_overtaken_says_so_and_which_run_holds_the_lun(command, one_lun, monkeypatch, output_as):
    """Another host has taken the run back: the label is as it was before."""
    before, real, writes = one_lun.lun(0).disk.peek(512, 512), GatedDevice.write, []

    def write(device, chunks):
        writes.append(None)
        if len(writes) == 3:  # the mark is written
            one_lun.lun(0).disk.poke(512, before)
            held.append(one_lun.lun(0).disk.copy())
        real(device, chunks)

    held = []
    monkeypatch.setattr(GatedDevice, "write", write)
    where = one_lun.where.replace("127.0.0.1", "localhost")
    ran = command("resignature", where, *ANYHOW, *output_as)

    assert ran.status == 10 and one_lun.lun(0).disk == held[0]
    assert f"{where} changed at byte 512 during this run: another run or another host works on the LUN" in ran.err
    told = f"Something else has changed the label since. `relvmoiscsi show {where}` shows the state of {where}."
    assert told in ran.err
    assert "successfully" not in ran.out and "new SR" not in ran.out


def test_a_command_says_for_what_it_waits_where_another_host_may_have_begun_the_run(command, one_lun, monkeypatch):
    cut_run(command, monkeypatch, one_lun)
    monkeypatch.setattr(logging.root, "handlers", [])  # without those of pytest the command adds its own
    ran = command("recover", one_lun.where, *ANYHOW, "--initiator-name", "iqn.2026-01.test:another")
    waited = f"Another host may have begun the run on {one_lun.where}, or this host by another way to the LUN: waiting"
    assert ran.status == 0 and f"relvmoiscsi: {waited} 0 seconds for its last write.\n" in ran.err


# --- what is given once


@pytest.mark.parametrize("name", ["resignature", "undo"])
def test_passwords_from_a_pipe_are_read_once_and_the_map_is_written(command, clone, tmp_path, name):
    """As `--chap-file <(pass show array)`: after the write there is nothing left to read."""
    with serving(clone, chap=ALICE) as target:
        where = url(target, 0)

        def run(*words):
            hear, tell = os.pipe()
            os.write(tell, f"{USER}={ALICE.user}\n{SECRET}={ALICE.secret}\n".encode("ascii"))
            os.close(tell)
            try:
                return command(*words, where, *ANYHOW, "--chap-file", f"/dev/fd/{hear}")
            finally:
                os.close(hear)

        ran = run("resignature")
        if name == "undo":
            ran = run("undo", "--map-out", tmp_path / "map.json")
    assert ran.status == 0, ran.err
    assert name == "resignature" or (tmp_path / "map.json").exists()
