# SPDX-License-Identifier: LGPL-2.1-only
"""The [driver] section of /etc/relvmoiscsi.conf: what it sets, and that nothing in it stops a call."""

import pytest

from relvmoiscsi.deadline import DEFAULT_SECONDS
from relvmoiscsi.direct.direct_config import read_section
from relvmoiscsi.errors import Refused
from relvmoiscsi.host.config_file import settings_of
from relvmoiscsi.host.settings import MARK, deadline_seconds, one_vdi, settings_in, with_vdis

DIRECT = "[direct]\ndatabase-log = 36001405993c87c37fa84d02b7fa62c40\n"


@pytest.fixture
def config(tmp_path):
    def put(text):
        path = tmp_path / "relvmoiscsi.conf"
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        return str(path)

    return put


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("[driver]\ndeadline: 40.5  # of CloudStack's 60\n", 40.5),
        (DIRECT + "[driver]\ndeadline=300\n" + DIRECT, 300),
        ("[driver]\ndeadline = 30\ndeadline = 20\n", 20),
        ("", DEFAULT_SECONDS),
        ("[other]\ndeadline = 20\n", DEFAULT_SECONDS),
    ],
)
def test_the_deadline(config, caplog, text, seconds):
    assert deadline_seconds(config(text)) == seconds
    assert caplog.text == ""


@pytest.mark.parametrize("value", ["soon", "-1", "0", "4", "3601", "nan", "inf", "1e9", "\udcff"])
def test_one_that_cannot_be_meant_is_logged_and_the_default_counts(config, caplog, value):
    assert deadline_seconds(config(f"[driver]\ndeadline = {value}\n")) == DEFAULT_SECONDS
    assert "deadline" in caplog.text


def test_a_file_that_cannot_be_read_stops_no_call_and_no_file_is_the_usual_case(tmp_path, caplog):
    assert deadline_seconds(str(tmp_path / "none")) == DEFAULT_SECONDS
    assert one_vdi(None, str(tmp_path / "none")) is None, "every VDI is kept"
    assert caplog.text == ""
    assert deadline_seconds(str(tmp_path)) == DEFAULT_SECONDS
    assert "cannot be read" in caplog.text


def test_the_settings_of_the_driver_are_no_direct_luns():
    luns, problems = read_section("[driver]\ndeadline = 40\n" + DIRECT)

    assert (list(luns), problems) == (["database-log"], [])


# --- one VDI

GIB = 1 << 30
NOTE = "One VDI is wanted by `vdis = one` in section [driver] of {}; the call does not say."


@pytest.mark.parametrize(
    "text, asked, found",
    [
        ("", None, None),
        ("", "one", (GIB, "")),
        ("[driver]\nvdis: one  # CloudStack\n", None, (GIB, NOTE)),
        ("[driver]\nvdis = one\n", "all", None),
        ("[driver]\nvdis = all\n", "one", (GIB, "")),
        ("[driver]\nvdis = one\ncopy = 64\n", None, (64 << 20, NOTE)),
        ("[driver]\ncopy = plenty\n", None, None),
        ("[Other]\nVdis = one\n[driver]\nvdisk = one\n", None, None),
        ("[driver]\nvdis = two\n", "all", None),  # not in the way of a call that says it
    ],
)
def test_whether_one_vdi_is_wanted_and_how_much_may_be_copied(config, text, asked, found):
    path = config(text)
    wanted = one_vdi(asked, path)

    assert wanted == (found and (found[0], found[1].format(path)))


@pytest.mark.parametrize(
    "text, line",
    [
        ("[Driver]\nVdis=ONE\n", "[Driver]"),
        ("[driver]\ndeadline = 40\nVDIS=One  # all of them\n", "VDIS=One  # all of them"),
        ('[driver]\n"vdis" = one\n', '"vdis" = one'),
        ("[driver]\nvdis one\n", "vdis one"),
    ],
)
def test_a_line_that_would_pass_for_one_that_is_not_there_is_refused(config, text, line):
    with pytest.raises(Refused) as caught:
        one_vdi(None, config(text))
    with pytest.raises(Refused) as shown:
        settings_in(text, "/etc/relvmoiscsi.conf")
    with pytest.raises(Refused) as changed:
        with_vdis(text, "one")

    assert f"The line {line!r} of " in caught.value.message and "is not read" in caught.value.message
    assert f"The line {line!r} of /etc/relvmoiscsi.conf" in shown.value.message
    assert repr(line) in changed.value.message


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("vdis = two", "vdis in section [driver] of {} is 'two', expected `one` or `all`."),
        ("copy = 1.5", "copy in section [driver] of {} is '1.5', expected a number of MiB."),
        ("copy = 10000000000", "expected a number of MiB"),
        ("vdis = \udcff", "expected `one` or `all`"),
    ],
)
def test_one_that_does_not_read_is_refused_before_anything_is_written(config, line, sentence):
    path = config(f"[driver]\n{line}\n")

    with pytest.raises(Refused) as caught:
        one_vdi("one" if "copy" in line else None, path)

    assert sentence.format(path) in caught.value.message
    assert caught.value.disk_state == "Nothing was written."


def facts(deadline, vdis, copy_mib):
    return {"deadline": deadline, "vdis_setting": vdis, "copy_mib": copy_mib}


def test_all_that_is_in_force():
    assert settings_in("", "conf") == facts(DEFAULT_SECONDS, "all", 1024)
    assert settings_in("[driver]\ndeadline = 40\nvdis = one\ncopy = 5\n", "conf") == facts(40, "one", 5)
    with pytest.raises(Refused, match="of conf is 'soon', expected seconds from 5 to 3600"):
        settings_in("[driver]\ndeadline = soon\n", "conf")
    with pytest.raises(Refused, match="of conf is 'x'"):
        settings_in("[driver]\ncopy = x\n", "conf")


# --- changing it

ADDED = f"{MARK}\n[driver]\nvdis = one\n"

CHANGES = {
    "no file": ("", ADDED),
    "no section": (DIRECT, DIRECT + "\n" + ADDED),
    "a file without its last newline": (DIRECT.rstrip("\n"), DIRECT + "\n" + ADDED.rstrip("\n")),
    "a section without it": ("[driver]\ncopy = 1\n\n" + DIRECT, "[driver]\ncopy = 1\nvdis = one\n\n" + DIRECT),
    "comments below": (
        "[driver]\n# those\ncopy=4\n# of LUNs\n[direct]\n",
        "[driver]\n# those\ncopy=4\nvdis = one\n# of LUNs\n[direct]\n",
    ),
    "a comment behind it": ("[driver]\n  vdis: all   ; for now\n", "[driver]\n  vdis: one   ; for now\n"),
    "two lines": ("[driver]\nvdis = all\nvdis = all\n", "[driver]\nvdis = all\nvdis = one\n"),
    "two sections": (
        "[driver]\nvdis = all\n[x]\n[driver]\ncopy = 1\n",
        "[driver]\nvdis = one\n[x]\n[driver]\ncopy = 1\n",
    ),
    "carriage returns": ("[driver]\r\ncopy = 1\r\n", "[driver]\r\ncopy = 1\r\nvdis = one\r\n"),
    "bytes that are no text": ("# \udcff\n[driver]\nvdis = all\n", "# \udcff\n[driver]\nvdis = one\n"),
    "its own comment": ("#[driver]\n#vdis = all\n", "#[driver]\n#vdis = all\n\n" + ADDED),
}


@pytest.mark.parametrize("name", CHANGES)
def test_one_line_changes_and_every_other_stays(name):
    text, expected = CHANGES[name]

    assert with_vdis(text, "one") == expected
    assert settings_of(expected, "driver") == dict(settings_of(text, "driver"), vdis="one")
    assert read_section(expected) == read_section(text) or "[direct]" in text


def test_changing_it_back_is_a_change_of_one_word():
    assert with_vdis(ADDED, "all") == ADDED.replace("vdis = one", "vdis = all")
