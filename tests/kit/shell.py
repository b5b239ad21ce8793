# SPDX-License-Identifier: LGPL-2.1-only
"""What the tests of the command share: small LUNs as image files, runs of the command, and what holds for every run.

    ran = command("resignature", image, "--yes", "--json")      # in process: cli.main
    ran.status, ran.json["state"], ran.err

Every run is checked. The words that CloudStack waits for do not appear. No control character reaches the terminal.
--json prints one object and nothing else. A failure says what state the disk is in. What a person does next is the
`advice` of an error, and in no other field.
"""

import functools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from kit.advised import commands_in, problem_of
from kit.builder import (
    AREA_DEFAULT,
    SMALL_BAT,
    build_sr,
    cbtlog,
    raw,
    vhd,
)
from kit.examples import IS_36
from kit.sparse import SparseDisk
from relvmoiscsi.cli import output
from relvmoiscsi.host.disk.block_device import HostDevice

TOP = Path(__file__).resolve().parent.parent.parent

SR = "11111111-2222-4333-8444-555555555555"
SCSI_ID = "3600a098038303053743f4a4f4e4b6d41"
OTHER_SCSI_ID = "3600a098038303053743f4a4f4e4b6d42"

#: what a person does about a damaged LUN: no command names the original
CHECK_ORIGINAL = "Check the original: if it is whole, take the copy again from the array."
STATES = ("empty", "foreign", "clean", "unfinished", "resignatured", "damaged")

#: commands that write, when all goes well
WRITERS = ("resignature", "recover", "undo")

#: the last line of a message of those says what state the disk is in, or how to find out, and then what to do
DISK_STATE = re.compile(
    r"(Nothing was written"
    r"|A write that failed may still land"
    r"|The (resignature|undo) was (finished|rolled back)"
    r"|The resignature that was cut was rolled back; nothing else was written"
    r"|(\S+ is as it was|The resignature was finished); beyond that only free space of the metadata area was written"
    r"|The (resignature|undo) of \S+ was begun and may be unfinished"
    r"|Something else has changed the label since"
    r"|This is a bug\. `relvmoiscsi show \S+` shows the state of \S+"
    r"|\S+ was resignatured\. `relvmoiscsi map --device \S+` prints the ids)\."
    r"( [^\n]*)?\Z"
)

#: a word that a person would have to replace before the command of a next step is right
PLACEHOLDER = re.compile("(.*=)?[A-Z][A-Z-]*[A-Z]")
#: what a person does is advice, and no state of a disk
ACTION = re.compile(r"`|\b([Dd]etach|[Rr]un|[Rr]epeat|[Tt]ake|[Uu]se|once the device|again finishes)\b")
#: the starts of a sentence, or of its second half, that say what a person does: they are advice, and no message
ADVICE = re.compile(
    r"(?:^|[.:;] )(?:(?:To|If|For|Then|First|Or)\b[^.:;]*[,:] )?"
    r"(?:[Aa]dd|[Aa]sk|[Aa]ttach|[Cc]heck|[Cc]hoose|[Cc]orrect|[Dd]elete|[Dd]estroy|[Dd]etach|[Ee]nd|[Ff]irst|[Ff]orget"
    r"|[Gg]ive|[Ii]nstall|[Ii]ntroduce|[Ll]eave|[Ll]og out|[Ll]ook|[Mm]ake|[Mm]ap|[Mm]ove|[Nn]ame|[Oo]mit|[Pp]lug"
    r"|[Rr]emove|[Rr]epeat|[Rr]un|[Ss]elect|[Ss]et|[Ss]hut|[Ss]tart|[Tt]ake|[Tt]ry|[Tt]urn|[Uu]ndo|[Uu]se|[Ww]ait)"
    r" (?!is\b|was\b|has\b|or service)|\. `[^`]+` (?:lists|shows|names|may show)\b"
)

#: xapi answers these words for a success, so nothing else may say them (docs/host.rst, "CloudStack's contract")
CONTRACT = "successfully resigned"

CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")


class Ran(NamedTuple):
    """What a run of the command gave."""

    status: int
    out: str
    err: str

    @property
    def json(self):
        """The answer, without the two keys that every answer has."""
        found = json.loads(self.out)
        return {key: value for key, value in found.items() if key not in ("command", "json_version")}


USAGE = re.compile(r"\Ausage: .*\n(?: .*\n)*")
OF_PARSER = re.compile(r"relvmoiscsi[a-z ]*: error: ")


def verify(argv, ran):
    """What holds for every run of the command."""
    assert CONTRACT not in (ran.out + ran.err).lower()
    assert not CONTROL.search(ran.out + ran.err), repr(ran)
    said = USAGE.sub("", ran.err)
    is_parsed = not OF_PARSER.match(said)  # the parser knows neither the device nor its state
    if "--json" not in argv and is_parsed:
        wrong = {advice: problem_of(advice) for advice in commands_in(ran.out + said) if problem_of(advice)}
        assert not wrong, wrong
    _head, is_next, steps = f"\n{ran.out}".partition(f"\n{output.NEXT}")
    if is_next:  # it is the last of the answer, and the only one: one step, or one a line
        lines = steps.splitlines()
        assert all(line.startswith("      ") for line in lines[1:]), ran.out
        assert all(re.match(" *(relvmoiscsi|xe|qemu-img|wipefs|[plv][vg][a-z]+) ", line) for line in lines), ran.out
        words = shlex.split(" ".join(commands_in(output.NEXT + steps)))
        assert [word for word in words if PLACEHOLDER.fullmatch(word)] == []
    assert ran.status in (*range(12), output.EXIT_BUG, output.EXIT_NOT_PRINTED, output.EXIT_INTERRUPTED)
    if ran.status and {"--json", "--quiet", "-q"} & set(argv):
        assert ran.err, "a failure has its reason on stderr where stdout has no text for people"
    if ran.status and argv and argv[0] in WRITERS and is_parsed:
        answer = ran.out.partition(f"\n{output.NEXT}")[0].rstrip("\n")  # of recover; a sentence may stand last
        said = [ran.err.rstrip("\n"), answer, answer.rpartition("\n")[0]]
        assert any(map(DISK_STATE.search, said)), ran.err
    if "--json" in argv and ran.status not in (output.EXIT_BUG, output.EXIT_INTERRUPTED):
        verify_object(
            ran, on_device=not {*argv} & {"direct", "doctor", "map", "settings", "pool", "version", "--version"}
        )


def verify_object(ran, on_device):
    found = json.loads(ran.out)
    assert list(found)[:2] == ["command", "json_version"]
    assert ran.out == json.dumps(found, indent=2) + "\n"
    if on_device and not {"targets", "target_luns", "devices"} & set(
        found
    ):  # a list of what is behind a URL has no state
        assert found["state"] in STATES or (found["state"] is None and "error" in found)
        assert "device" in found
    if "error" in found:
        assert set(found["error"]) == {"class", "exit_status", "message", "disk_state", "advice"}
        assert found["error"]["exit_status"] == ran.status
        assert found["error"]["message"]
        assert not ADVICE.search(found["error"]["message"]), found["error"]
        assert not ACTION.search(found["error"]["disk_state"]), found["error"]


def environment(**more):
    """The environment of a real run: ours without what would choose a locale or an encoding, and `more`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))}
    ours = {"PYTHONPATH": str(TOP), "LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8", "COLUMNS": "1000"}
    return dict(dict(kept, **ours), **more)


def start(*argv, **options):
    """Start the command as a process of its own."""
    options.setdefault("env", environment())
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    whole = [sys.executable, "-m", "relvmoiscsi"] + [str(part) for part in argv]
    return subprocess.Popen(whole, **dict(pipes, **options))


def run(*argv, **options):
    """Run the command as a process of its own."""
    process = start(*argv, **options)
    out, err = process.communicate(timeout=600)
    ran = Ran(process.returncode, (out or b"").decode("utf-8"), (err or b"").decode("utf-8"))
    verify(argv, ran)
    if "--json" in argv and ran.out and not IS_36 and not os.environ.get("RELVMOISCSI_VM"):
        from kit import answers  # noqa: PLC0415 - the validator is not on Python 3.6

        assert answers.problem_of(json.loads(ran.out)) is None
    return ran


def if_clone(command):
    """The last sentence about a LUN of which nobody has said that it is the clone: `next:` resignatures no original."""
    return f"If this is the clone, `{command}` gives it new identities. If this is the original, do nothing."


def compare(lun):
    """The next step after a check of a resignatured LUN: nobody but the person knows where the original is."""
    check = f"relvmoiscsi check {lun}"
    return f"Compare the clone with its original: add --original, and the device of the original, to `{check}`."


# --- LUNs


@functools.lru_cache(maxsize=None)
def pair():
    """A disk over its base copy: a LUN for tests that try every write of a run, which are few here."""
    volumes = [vhd("base", hidden=True, bat_entries=SMALL_BAT), vhd("disk", "base", bat_entries=SMALL_BAT)]
    return build_sr(volumes, area=AREA_DEFAULT, free_extents=1)


@functools.lru_cache(maxsize=None)
def tree(seed=0):
    """A base copy with a disk and its snapshot, a raw VDI, a CBT log; labels that are not ASCII."""
    return build_sr(
        [
            vhd("base", hidden=True, bat_entries=SMALL_BAT),
            vhd("disk", "base", bat_entries=SMALL_BAT, label="Größe <é>"),
            vhd("snapshot", "base", bat_entries=SMALL_BAT, snapshot_of="disk", label="at noon"),
            raw("data"),
            cbtlog("disk", parent="snapshot"),
        ],
        area=AREA_DEFAULT,
        seed=seed,
    )


@functools.lru_cache(maxsize=None)
def hostile():
    """Labels that would take over a terminal."""
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e red"
    return build_sr(
        [vhd("disk", bat_entries=SMALL_BAT, label=evil, description=evil)],
        area=AREA_DEFAULT,
        sr_label=evil,
        sr_description=evil,
    )


def content(path):
    """What is in an image file, and when it was changed last."""
    status = os.stat(str(path))
    return SparseDisk.from_file(str(path)) if status.st_size else None, status.st_mtime_ns


def patched(path, offset, data):
    """Change bytes of an image file; gives what was there."""
    with open(str(path), "r+b") as image:
        image.seek(offset)
        before = image.read(len(data))
        image.seek(offset)
        image.write(data)
    return before


def flipped(path, offset):
    """Flip a bit of the byte at `offset`."""
    with open(str(path), "rb") as image:
        image.seek(offset)
        patched_byte = image.read(1)[0] ^ 1
    patched(path, offset, bytes([patched_byte]))


def cut(monkeypatch, writes, then=KeyboardInterrupt):
    """From now on, the command does not live to see a write after the first `writes` ones."""
    left = [writes]
    real = HostDevice.write

    def write(device, chunks):
        for chunk in chunks:
            if not left[0]:
                raise then()
            left[0] -= 1
            real(device, [chunk])

    monkeypatch.setattr(HostDevice, "write", write)
