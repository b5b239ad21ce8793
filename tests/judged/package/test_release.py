# SPDX-License-Identifier: LGPL-2.1-only
"""What a user of a release takes: one directory, complete, the same bytes from the same source, signed with a key."""

import json
import re
import subprocess
import sys
import tarfile

import pytest

from kit.pack_tools import VERSION, Keyring, tree
from kit.rpm_tools import TOP, make_release, succeed

KEY = "Updates of our pools"
PUBLIC = "RPM-GPG-KEY-relvmoiscsi"
RPMS = [f"relvmoiscsi-{VERSION}-1.noarch.rpm", f"relvmoiscsi-pool-{VERSION}-1.noarch.rpm"]
FILES = {
    *RPMS,
    "RELEASE.rst",
    "SHA256SUMS",
    f"relvmoiscsi-{VERSION}.iso",
    f"relvmoiscsi-{VERSION}.tar.gz",
    f"relvmoiscsi-{VERSION}-py3-none-any.whl",
    f"relvmoiscsi-{VERSION}-html.tar.gz",
    f"relvmoiscsi-pool-{VERSION}.tar.gz",
}
SAME = {name for name in FILES if name.endswith((".tar.gz", ".whl"))}  #: with and without signatures


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    """A release with signatures, made by another user at another place."""
    place = tmp_path_factory.mktemp("signed")
    with Keyring() as keyring:
        keyring.new_key(KEY)
        elsewhere = {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "PYTHONHASHSEED": "7", "HOME": str(place)}
        yield make_release(place / "release", "--key", KEY, GNUPGHOME=str(keyring.home), **elsewhere)


def commands(text, title):
    """The first block of commands below a title."""
    return re.search(rf"^{title}\n-+\n(?:.*\n)*?.*::\n\n((?:    .*\n)+)", text, re.MULTILINE).group(1)


def test_a_release_has_everything_with_the_right_sums(release):
    assert {path.name for path in release.iterdir() if path.is_file()} == FILES
    assert {path.name for path in (release / "repo").glob("*.rpm")} == set(RPMS)
    summed = {line.split("  ")[1] for line in (release / "SHA256SUMS").read_text().splitlines()}
    assert summed == {str(path.relative_to(release)) for path in release.rglob("*") if path.is_file()} - {"SHA256SUMS"}
    subprocess.run(["sha256sum", "-c", "--quiet", "--strict", "SHA256SUMS"], cwd=str(release), check=True)


def test_the_same_source_gives_the_same_bytes(release, signed):
    """Of packages and the ISO, which hold the signatures: test_rpm and test_pack."""
    first, second = ({name: made for name, made in tree(at).items() if name in SAME} for at in (release, signed))
    assert set(first) == SAME and first == second


def test_the_page_and_the_release_tell_a_user_the_same_four_lines(release):
    told = commands((release / "RELEASE.rst").read_text(encoding="utf-8"), "Install")
    assert told.count("\n") == 4 and all(name in told for name in ("SHA256SUMS", *RPMS))
    assert commands((TOP / "docs/install.rst").read_text(encoding="utf-8"), "Install") == told


def test_a_release_says_whether_its_origin_can_be_verified(release, signed):
    told = {made: (made / "RELEASE.rst").read_text(encoding="utf-8") for made in (release, signed)}
    assert "has no signature" in told[release] and "gpg --verify" not in told[release]
    before = told[signed].index("gpg --verify SHA256SUMS.asc SHA256SUMS")
    assert "no signature" not in told[signed] and before < told[signed].index("sha256sum -c")


def test_the_wheel_the_sdist_the_collection_and_the_pages_are_whole(release, tmp_path):
    wheel = release / f"relvmoiscsi-{VERSION}-py3-none-any.whl"
    said = succeed("env", f"PYTHONPATH={wheel}", sys.executable, "-m", "relvmoiscsi", "--version")
    assert VERSION in said
    for archive, wanted in [
        (f"relvmoiscsi-{VERSION}.tar.gz", f"relvmoiscsi-{VERSION}/setup.py"),
        (f"relvmoiscsi-{VERSION}-html.tar.gz", f"relvmoiscsi-{VERSION}-html/install.html"),
    ]:
        with tarfile.open(str(release / archive)) as tar:
            assert wanted in tar.getnames()
    succeed("tar", "-xzf", release / f"relvmoiscsi-pool-{VERSION}.tar.gz", "-C", tmp_path)
    manifest = json.loads((tmp_path / "MANIFEST.json").read_text())
    files = json.loads((tmp_path / "FILES.json").read_text())["files"]
    sums = [(file["name"], file["chksum_sha256"]) for file in files if file["ftype"] == "file"]
    sums.append(("FILES.json", manifest["file_manifest_file"]["chksum_sha256"]))
    assert len(sums) > 10
    for name, sum_of_name in sums:
        assert succeed("sha256sum", tmp_path / name).split()[0] == sum_of_name, name


def test_a_signed_release_is_verified_by_its_key(signed, tmp_path):
    home = tmp_path / "gpg"
    home.mkdir(mode=0o700)
    succeed("gpg", "--homedir", home, "--batch", "--import", signed / PUBLIC)
    succeed("gpg", "--homedir", home, "--batch", "--verify", signed / "SHA256SUMS.asc", signed / "SHA256SUMS")
    subprocess.run(["sha256sum", "-c", "--quiet", "--strict", "SHA256SUMS"], cwd=str(signed), check=True)
    database = f"_dbpath {tmp_path / 'rpmdb'}"
    succeed("rpmkeys", "--define", database, "--import", signed / PUBLIC)
    for rpm in [*signed.glob("*.rpm"), *signed.glob("repo/*.rpm")]:
        succeed("rpmkeys", "--define", database, "--define", "_pkgverify_level all", "--checksig", rpm)
