# SPDX-License-Identifier: LGPL-2.1-only
"""The [driver] section of /etc/relvmoiscsi.conf: what it sets, and that nothing in it stops a call."""

import pytest

from relvmoiscsi.direct.config import read_section
from relvmoiscsi.host.deadline import DEFAULT_SECONDS
from relvmoiscsi.host.settings import deadline_seconds

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
        ("[driver]\ndeadline = 40\n", 40),
        ("[driver]\ndeadline: 40.5  # of CloudStack's 60\n", 40.5),
        (DIRECT + "[driver]\ndeadline=300\n" + DIRECT, 300),
        ("[driver]\r\ndeadline = 30\r\n", 30),
        ("[driver]\ndeadline = 30\ndeadline = 20\n", 20),
        ("[driver]\n\n# deadline = 20\n", DEFAULT_SECONDS),
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


def test_a_file_that_cannot_be_read_stops_no_call(tmp_path, caplog):
    assert deadline_seconds(str(tmp_path)) == DEFAULT_SECONDS
    assert "cannot be read" in caplog.text


def test_no_file_is_the_usual_case(tmp_path, caplog):
    assert deadline_seconds(str(tmp_path / "none")) == DEFAULT_SECONDS
    assert caplog.text == ""


def test_the_settings_of_the_driver_are_no_direct_luns():
    section = read_section("[driver]\ndeadline = 40\n" + DIRECT)

    assert [entry.name for entry in section.entries] == ["database-log"]
    assert section.problems == ()
