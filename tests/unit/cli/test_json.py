# SPDX-License-Identifier: LGPL-2.1-only
"""The command as programs meet it: a process, its exit status, one JSON object on stdout, talk on stderr, any locale.

Keys and values of each command's object are in the files of the commands; `shell.verify` looks at every run here, too.
"""

import json
import os
import re
import sys

import pytest

from kit import shell
from kit.shell import SR, flipped, start, tree
from relvmoiscsi import json_answer

pytestmark = pytest.mark.processes


def whole(_path):
    """The LUN stays as it is."""


@pytest.mark.parametrize(
    "change, argv, status",
    [
        (whole, ["check", "--identities-only"], 2),
        (lambda path: path.unlink(), ["resignature", "--yes"], 3),
        (lambda path: path.write_bytes(b"#!/bin/sh\n" * 8192), ["resignature", "--yes"], 4),
        (whole, ["undo", "--yes"], 4),
        (lambda path: flipped(path, 512 + 40), ["recover"], 5),
    ],
    ids=["usage", "missing", "foreign", "nothing to undo", "damaged"],
)
def test_a_failure_is_one_object_on_stdout_a_sentence_on_stderr_and_its_status(
    request, image, command, change, argv, status
):
    change(image)
    run = shell.run if "foreign" in request.node.name else command
    ran = run(argv[0], image, "--json", *argv[1:])

    assert ran.status == ran.json["error"]["exit_status"] == status
    assert ran.err.startswith("relvmoiscsi: ") and ran.err.count("\n") == 1
    assert ran.json["error"]["message"] in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize("argv", [["check"], ["resignature", "--dry-run"]])
def test_an_unfinished_run_is_8_for_check_and_dry_run(unfinished, unwritten, argv):
    ran = unwritten(8, argv[0], unfinished, "--json", *argv[1:])
    assert (ran.json["state"], ran.json["error"]["class"]) == ("unfinished", "Unfinished")


# --- locales


@pytest.mark.parametrize("locale, argv", [("C", ["show"]), ("nowhere.ISO-8859-7", ["resignature", "--yes"])])
def test_labels_of_any_language_are_printed_in_any_locale(image, locale, argv):
    plain = shell.environment(LC_ALL=locale, PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    del plain["PYTHONIOENCODING"]
    path = image.parent / "Größe.img"
    image.rename(path)
    ran = shell.run(argv[0], path, "-v", *argv[1:], env=plain)

    assert ran.status == 0
    escaped = "Gr\\xc3\\xb6\\xc3\\x9fe"  # as the command gets the path: no way of its own for labels
    assert "Größe <é>" in ran.out or f"{escaped} <\\xc3\\xa9>" in ran.out
    assert re.findall(r"Gr\S+e\b", ran.out + ran.err), "the log has the path, too"
    assert len(set(re.findall(r"Gr\S+e\b", ran.out + ran.err))) == 1
    if argv == ["show"]:
        assert ("├─ " if "ö" in ran.out else "|- ") + tree().truth.uuids["disk"] in ran.out


# --- streams that are not there


def test_with_stdin_closed_nobody_can_be_asked(image):
    before = shell.content(image)
    ran = shell.run("resignature", image, stdin=None, preexec_fn=lambda: os.close(0))
    assert ran.status == 2 and shell.content(image) == before


def test_a_result_that_nobody_reads_is_74_and_the_run_is_whole_and_talk_goes_to_stderr(image, command):
    reader, writer = os.pipe()
    os.close(reader)
    process = start("resignature", image, "--yes", "--json", "--sr-uuid", SR, "-vv", stdout=writer)
    os.close(writer)
    err = process.communicate(timeout=600)[1].decode("utf-8")

    assert process.returncode == 74 and f"opened {image} for writing" in err
    assert f"relvmoiscsi: step 4 of 6: label: switched, 1 writes to {image}\n" in err
    found = command("resignature", image, "--yes", "--json").json
    assert (found["already_done"], found["new_sr"]) == (True, SR)


def test_a_result_that_finds_no_room_is_74_and_said(image):
    with open("/dev/full", "wb") as full:
        process = start("show", image, stdout=full)
        err = process.communicate(timeout=600)[1].decode("utf-8")
    assert process.returncode == 74
    assert err == "relvmoiscsi: The result cannot be printed: No space left on device.\n"


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_run_whose_result_finds_no_room_says_what_it_did_and_where_the_ids_are(image, words):
    with open("/dev/full", "wb") as full:
        for did in (
            f"{image} was resignatured.",
            f"{image} was already resignatured, as SR {SR}. Nothing was written.",
        ):
            process = start("resignature", image, "--yes", "--sr-uuid", SR, *words, stdout=full)
            err = " ".join(process.communicate(timeout=600)[1].decode("utf-8").split())
            assert process.returncode == 74
            assert f"cannot be printed: No space left on device. {did} `relvmoiscsi map --device {image}` prints" in err
        process = start("undo", image, "--yes", stdout=full)
        err = " ".join(process.communicate(timeout=600)[1].decode("utf-8").split())
    assert f"{image} has its old identities back. `relvmoiscsi show {image}` shows the state." in err


def test_talk_that_nobody_hears_does_not_stop_a_run(image):
    process = start("resignature", image, "--yes", "--json", stderr=None, preexec_fn=lambda: os.close(2))
    out = process.communicate(timeout=600)[0].decode("utf-8")
    assert process.returncode == 0 and shell.Ran(0, out, "").json["state"] == "resignatured"


@pytest.mark.skipif(sys.version_info < (3, 8), reason="the validator needs a current Python; one is enough")
def test_a_run_that_was_not_done_already_has_its_map(image, command):
    from kit import answers  # noqa: PLC0415

    answer = json.loads(command("resignature", image, "--dry-run", "--json").out)
    assert not answers.problem_of(answer)
    for key in ("new_sr", "vdi_pairs", "lv_pairs", "notes"):
        without = {name: value for name, value in answer.items() if name != key}
        assert answers.problem_of(without) and not answers.problem_of({**without, "already_done": True})


def test_a_byte_that_is_no_text_has_the_form_of_messages_and_other_texts_stay():
    given = '\udcff \ud800 \\udcff \\\\ \U0001f600 \udce9\n"'

    found = json.loads(json_answer.answer_text("version", {"version": given}))["version"]

    assert found == '\\xff \ufffd \\udcff \\\\ \U0001f600 \\xe9\n"' and found.encode("utf-8")


def test_the_device_of_an_answer_is_valid_text(command):
    ran = command("show", "/no\udcffsuch.img", "--json")

    assert ran.json["device"] == r"/no\xffsuch.img" and ran.json["device"] in ran.json["error"]["message"]
