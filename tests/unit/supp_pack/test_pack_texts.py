# SPDX-License-Identifier: LGPL-2.1-only
"""What the files of a pack say, before any program makes a pack of them."""

import configparser
import re
import subprocess
import uuid
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kit.pack_tools import TOP, VERSION, build_pack

pack = build_pack()

UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"

#: attribute of <update>: what it must look like. xapi raises INVALID_UPDATE where one of the first three is missing
#: and takes the others for empty; xapi's precheck computes with installation-size; dnf of the host installer is told
#: to install what control names, and stops at an empty name; yum's section is called like name-label.
ATTRIBUTES = {
    "uuid": UUID,
    "name-label": r"[A-Za-z0-9_-]+",
    "version": r"\d+\.\d+\.\d+",
    "installation-size": r"[1-9]\d*",
    "after-apply-guidance": r"restart(XAPI|Host|PV|HVM)(,restart(XAPI|Host|PV|HVM))*",
    "control": r"control-relvmoiscsi",
}
#: only in a signed update: the name of a file in /etc/pki/rpm-gpg, without a directory
ATTRIBUTES_WHEN_SIGNED = dict(ATTRIBUTES, key=r"[A-Za-z0-9_-]+")


def package(version=VERSION, release="1", size=1000):
    return pack.Package(Path("a.rpm"), "relvmoiscsi", version, release, "noarch", size, 0, [])


@pytest.mark.parametrize("signed, attributes", [(False, ATTRIBUTES), (True, ATTRIBUTES_WHEN_SIGNED)])
def test_update_xml_has_the_documented_attributes_and_one_element_that_holds_text_alone(signed, attributes):
    text = pack.update_xml(package(version="3.2.1", size=4711), signed)
    update = ElementTree.fromstring(text)

    assert text.startswith("<update ") and text.endswith("</update>\n") and text.encode("ascii")
    assert set(update.keys()) == set(attributes)
    for name, pattern in attributes.items():
        assert re.fullmatch(pattern, update.get(name)), name
    said = [update.get(name) for name in ("version", "installation-size", "after-apply-guidance")]
    assert said == ["3.2.1", "4711", "restartXAPI"]
    (description,) = update
    assert description.tag == "name-description" and len(description) == 0
    assert description.text.strip() == description.text != ""


def test_a_version_keeps_its_uuid_for_ever():
    assert pack.update_uuid("0.1.0", "1") == "6ea4d818-1548-5e30-a57e-ff459e87b1d2"
    assert uuid.UUID(pack.update_uuid("0.1.0", "1")).version == 5


def test_uuids_keep_apart_what_xapi_keeps_of_them_for_its_older_records():
    """xapi makes the UUID of a pool_patch of it by putting zeros into bytes 4 to 7."""
    releases = [(f"{major}.{minor}.0", "1") for major in range(20) for minor in range(50)]

    kept = {uuid.UUID(pack.update_uuid(*release)).bytes for release in releases}
    assert len({name[:4] + name[8:] for name in kept}) == len(releases)


@pytest.mark.parametrize("signed", [False, True])
def test_the_repository_is_off_and_checked_only_if_it_is_signed(signed):
    repo = configparser.ConfigParser()
    repo.read_string(pack.repo_file(signed))

    section = repo["relvmoiscsi"]
    assert section["enabled"] == "0"
    assert section["gpgcheck"] == section["repo_gpgcheck"] == str(int(signed))
    assert section.get("gpgkey") == ("file:///etc/pki/rpm-gpg/" + pack.KEY_FILE if signed else None)


def test_the_one_package_of_this_version_is_found_and_of_several_none_is_guessed(tmp_path):
    (tmp_path / "relvmoiscsi-0.9.0-1.noarch.rpm").touch()
    with pytest.raises(pack.PackError, match=r"has no relvmoiscsi-1\.0\.0-\*\.noarch\.rpm\. Run `make rpm`\."):
        pack.find_rpm(tmp_path, "1.0.0")

    for name in ("relvmoiscsi-1.0.0-1.noarch.rpm", "relvmoiscsi-1.0.0-1.src.rpm"):
        (tmp_path / name).touch()
    assert pack.find_rpm(tmp_path, "1.0.0").name == "relvmoiscsi-1.0.0-1.noarch.rpm"
    (tmp_path / "relvmoiscsi-1.0.0-2.noarch.rpm").touch()
    with pytest.raises(pack.PackError, match="has 2 packages .* Name one with --rpm"):
        pack.find_rpm(tmp_path, "1.0.0")


def test_an_output_that_holds_something_else_is_refused(tmp_path):
    (tmp_path / "relvmoiscsi-0.0.9.iso").touch()
    (tmp_path / "repo").mkdir()
    (tmp_path / pack.KEY_FILE).touch()
    pack.check_output(tmp_path)

    (tmp_path / "thesis.tex").touch()
    with pytest.raises(pack.PackError, match=r"thesis\.tex\. Choose another directory"):
        pack.check_output(tmp_path)


@pytest.mark.processes
def test_make_pack_builds_the_package_first_and_signs_with_the_key_that_is_given():
    argv = ["make", "-C", str(TOP), "--dry-run", "--no-print-directory", "pack", "KEY=Updates of our pools"]
    said = subprocess.check_output(argv)

    lines = [line.strip() for line in said.decode().splitlines()]
    assert 'bash supp-pack/build-rpm.sh --key "Updates of our pools"' in lines[:-1], "`make rpm` signs as well"
    assert lines[-1] == 'python3 supp-pack/build_pack.py --key "Updates of our pools"'
