# SPDX-License-Identifier: LGPL-2.1-only
"""`settings`: what holds for calls of the SR driver on this host, and turning `vdis` on and off."""

import os

import pytest

from kit.shell import TOP
from relvmoiscsi.cli import settings_command
from relvmoiscsi.host.this_host import Host

CONF = (TOP / "supp-pack/relvmoiscsi.conf").read_text(encoding="utf-8")


@pytest.fixture
def config(tmp_path, monkeypatch):
    """The file of a host that has none yet."""
    (tmp_path / "etc").mkdir()
    monkeypatch.setattr(settings_command, "HOST", Host(str(tmp_path)))
    return tmp_path / "etc/relvmoiscsi.conf"


def test_what_is_in_force_is_printed_and_nothing_changed(config, command):
    assert command("settings").out.splitlines()[1] == "vdis      all: every VDI is kept"
    assert not config.exists()
    text = "[driver]\ndeadline = 40\nvdis = one\ncopy = 64\n"
    config.write_text(text)
    ran, facts = command("settings"), command("settings", "--json").json

    assert (ran.status, ran.err) == (0, "") and ran.out.splitlines() == [
        "deadline  40 seconds until a call begins to write",
        "vdis      one: each LUN becomes one with a single VDI",
        "copy      64 MiB that a call may copy to make one VDI",
    ]
    assert facts == {"deadline": 40, "vdis_setting": "one", "copy_mib": 64, "file": str(config), "changed": False}
    assert config.read_text() == text


@pytest.mark.parametrize("text", [None, "", CONF, "[driver]\nvdis = all\n"], ids=["none", "empty", "ours", "all"])
def test_it_is_turned_on_and_off_again(config, command, text):
    if text is not None:
        config.write_text(text)
        config.chmod(0o640)
    on, written = command("settings", "--vdis", "one"), os.stat(str(config))
    on_again = command("settings", "--vdis", "one", "--json").json
    assert on.status == 0 and on.out.startswith(f"{config} was changed.\n")
    assert "vdis      one: each LUN becomes one with a single VDI" in on.out
    assert (on_again["changed"], command("settings", "--json").json["vdis_setting"]) == (False, "one")
    assert os.stat(str(config)).st_ino == written.st_ino, "a file that says it already is not written"

    off = command("settings", "--vdis", "all", "--json").json
    assert (off["changed"], off["vdis_setting"]) == (True, "all")
    assert set(text or "") <= set(config.read_text())
    assert config.read_text().startswith((text or "").split("vdis = all")[0])
    assert text is None or config.stat().st_mode & 0o777 == 0o640


def test_a_setting_that_does_not_read_is_told_and_put_right_by_setting_it(config, command):
    config.write_text("[driver]\nvdis = two\n")
    ran = command("settings")
    assert ran.status == 4 and f"of {config} is 'two', expected `one` or `all`." in ran.err
    assert command("settings", "--vdis", "one").status == 0
    assert config.read_text() == "[driver]\nvdis = one\n"


def test_where_another_line_does_not_read_nothing_is_changed(config, command):
    config.write_text("[driver]\nvdis = all\ncopy = lots\n")
    ran = command("settings", "--vdis", "one", "--json")
    assert (ran.status, ran.json["error"]["disk_state"]) == (4, "Nothing was written.")
    assert config.read_text() == "[driver]\nvdis = all\ncopy = lots\n"
