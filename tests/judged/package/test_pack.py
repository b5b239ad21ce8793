# SPDX-License-Identifier: LGPL-2.1-only
"""Packs as hosts meet them: isoinfo and the kernel read the ISO, gpg the signatures, a real dnf installs.

They run with the judges, who have root and Debian's packages. The payload is a small RPM; that the pack of the real
one is installable as well is the last test.
"""

import os
import re
import shutil
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kit.examples import WHOLE
from kit.pack_tools import (
    REPO,
    VERSION,
    Host,
    Keyring,
    configuration_of_xapi,
    dom0_repository,
    extract,
    listing,
    make_pack,
    payload_rpm,
    query,
    succeed,
    tree,
)

pytestmark = pytest.mark.root

PACKAGES = ("control-relvmoiscsi", "relvmoiscsi", "update-relvmoiscsi")
KEY_FILE = "RPM-GPG-KEY-relvmoiscsi"
METADATA = ("primary.xml.gz", "filelists.xml.gz", "other.xml.gz", "comps.xml", "comps.xml.gz")


@pytest.fixture(scope="module")
def keyring():
    """With one key that hosts can verify, `Updates of our pools`."""
    made = Keyring()
    made.new_key("Updates of our pools")
    yield made
    made.remove()


def sign_pack(rpm, output, keyring, **environment):
    return make_pack(rpm, output, "--key", "Updates of our pools", GNUPGHOME=str(keyring.home), **environment)


@pytest.fixture(scope="module")
def host_keyring(signed):
    made = Keyring()
    made.trust_as_hosts_do(signed.output / KEY_FILE)
    yield made
    made.remove()


@pytest.fixture(scope="module")
def payload(tmp_path_factory):
    return payload_rpm(tmp_path_factory.mktemp("payload") / "rpm")


@pytest.fixture(scope="module")
def unsigned(tmp_path_factory, payload):
    made = make_pack(payload, tmp_path_factory.mktemp("unsigned") / "pack")
    assert made.status == 0, made.stderr
    return made


@pytest.fixture(scope="module")
def signed(tmp_path_factory, payload, keyring):
    made = sign_pack(payload, tmp_path_factory.mktemp("signed") / "pack", keyring)
    assert made.status == 0, made.stderr
    return made


@pytest.fixture(scope="module")
def contents(tmp_path_factory, signed):
    """What is in the ISO of the signed pack."""
    return extract(signed.iso, tmp_path_factory.mktemp("contents") / "iso")


def expected_files(signed):
    names = {"/update.xml", "/repodata/repomd.xml"}
    names |= {"/update.xml.asc", "/repodata/repomd.xml.asc"} if signed else set()
    names |= {f"/Packages/{name}-{VERSION}-1.noarch.rpm" for name in PACKAGES}
    return names | {"/repodata/<sha256>-" + name for name in METADATA}


def directories():
    return {"/Packages", "/repodata"}


# The ISO. --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_signed, names", [(True, "-R"), (True, "-J"), (False, "-R")])
def test_the_iso_holds_what_xapi_looks_for_and_nothing_else(request, is_signed, names):
    """By Rock Ridge, which dom0 reads, and by Joliet, which XenCenter reads."""
    pack = request.getfixturevalue("signed" if is_signed else "unsigned")

    found = {re.sub("[0-9a-f]{64}", "<sha256>", path) for path in listing(pack.iso, names)}

    assert found - directories() == expected_files(is_signed)


def test_everything_in_the_iso_belongs_to_root_and_can_be_read_by_all(signed):
    listed = succeed("isoinfo", "-R", "-l", "-i", signed.iso)

    entries = re.findall(r"(?m)^([d-]\S{9}) +\d+ +(\d+) +(\d+) ", listed)
    assert len(entries) > len(PACKAGES)
    assert set(entries) == {("dr-xr-xr-x", "0", "0"), ("-r--r--r--", "0", "0")}


# The packages for xapi. ------------------------------------------------------------------------------------------


def test_the_size_is_what_rpm_says_of_the_payload(contents, payload):
    update = ElementTree.parse(str(contents / "update.xml")).getroot()

    assert update.get("installation-size") == query(payload, "%{longsize}")


def test_what_is_installed_first_requires_what_the_payload_requires_of_others(tmp_path):
    payload = payload_rpm(tmp_path / "rpm", requires=("sm >= 2", "a, b", "python(abi) >= 3.6", "relvmoiscsi(itself)"))

    contents = extract(make_pack(payload, tmp_path / "pack").iso, tmp_path / "iso")

    control = contents / "Packages" / f"control-relvmoiscsi-{VERSION}-1.noarch.rpm"
    required = succeed("rpm", "-qp", "--requires", control).splitlines()
    of_hosts = [line for line in required if not line.startswith("rpmlib(")]
    assert sorted(of_hosts) == ["a", "b", "python(abi) >= 3.6", "sm >= 2"]


def test_the_record_belongs_to_its_package_but_is_not_unpacked_with_it(contents):
    """`g`: RPM removes the file with the package; that it is there says that the transaction has come to its end."""
    update = ElementTree.parse(str(contents / "update.xml")).getroot()
    files = "[%{filenames} %{fileflags:fflags}\n]"

    of_update, of_control = (
        query(contents / "Packages" / f"{name}-relvmoiscsi-{VERSION}-1.noarch.rpm", files).splitlines()
        for name in ("update", "control")
    )

    assert of_update == ["/var/update/applied/{} g".format(update.get("uuid"))]
    assert of_control == []
    record = contents / "Packages" / f"update-relvmoiscsi-{VERSION}-1.noarch.rpm"
    scriptlets = re.findall(
        r"(?m)^(\w+) (?:scriptlet|program)", succeed("rpm", "-qp", "--nosignature", "--scripts", record)
    )
    assert scriptlets == ["posttrans"]


@pytest.mark.parametrize("name", PACKAGES)
def test_nothing_in_a_package_for_xapi_is_too_new_for_rpm_of_el7(contents, name):
    """RPM 4.11: what it must be able to do is in the package's requirements, its payload and its digests."""
    rpm = contents / "Packages" / f"{name}-{VERSION}-1.noarch.rpm"

    required = succeed("rpm", "-qp", "--nosignature", "--requires", rpm)

    features = set(re.findall(r"rpmlib\((\w+)\)", required))
    assert features <= {"CompressedFileNames", "FileDigests", "PayloadFilesHavePrefix", "PartialHardlinkSets"}
    assert query(rpm, "%{payloadformat} %{payloadcompressor}") == "cpio gzip"


# Installing. -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dom0(tmp_path_factory):
    return dom0_repository(tmp_path_factory.mktemp("dom0") / "repository")


@pytest.fixture
def host(tmp_path, dom0):
    return Host(tmp_path / "host", dom0)


def test_dnf_installs_the_update_with_the_configuration_that_xapi_writes(host, contents, signed):
    """xapi: precheck installs what `control` names, apply the group `update`, both with signatures checked."""
    configuration = configuration_of_xapi(contents, signed.output / KEY_FILE)
    update = ElementTree.parse(str(contents / "update.xml")).getroot()

    host.must_dnf(configuration, "install", update.get("control"))
    assert host.installed() == {f"control-relvmoiscsi-{VERSION}-1"}
    host.must_dnf(configuration, "install", "@update")

    assert host.installed() == {f"{name}-{VERSION}-1" for name in PACKAGES}
    assert (host.root / "usr/share/relvmoiscsi/payload").stat().st_size == 1000
    assert host.applied() == {update.get("uuid"): (contents / "update.xml").read_text()}


def test_a_host_that_lacks_something_is_told_so_before_anything_is_installed(tmp_path, contents, signed):
    host = Host(tmp_path / "host", dom0_repository(tmp_path / "dom0", provides=["/bin/sh", "sm"]))
    update = ElementTree.parse(str(contents / "update.xml")).getroot()

    status, output = host.dnf(
        configuration_of_xapi(contents, signed.output / KEY_FILE), "install", update.get("control")
    )

    assert status != 0 and "nothing provides /usr/bin/python3 needed by control-relvmoiscsi" in output
    assert host.installed() == set()


def test_the_next_update_takes_the_place_of_the_record_and_removal_leaves_none(
    host, tmp_path, keyring, contents, signed
):
    first = ElementTree.parse(str(contents / "update.xml")).getroot().get("uuid")
    host.must_dnf(configuration_of_xapi(contents, signed.output / KEY_FILE), "install", "@update")
    assert set(host.applied()) == {first}

    later = sign_pack(payload_rpm(tmp_path / "later", release="2"), tmp_path / "pack", keyring)
    next_contents = extract(later.iso, tmp_path / "iso")
    configuration = configuration_of_xapi(next_contents, later.output / KEY_FILE)
    host.must_dnf(configuration, "upgrade", "@update")
    second = ElementTree.parse(str(next_contents / "update.xml")).getroot().get("uuid")
    assert second != first
    assert host.installed() == {f"relvmoiscsi-{VERSION}-2", f"update-relvmoiscsi-{VERSION}-2"}
    assert host.applied() == {second: (next_contents / "update.xml").read_text()}

    host.must_dnf(configuration, "reinstall", "update-relvmoiscsi")
    assert host.applied() == {second: (next_contents / "update.xml").read_text()}

    host.must_dnf(configuration, "remove", "relvmoiscsi")
    assert host.installed() == set()
    assert host.applied() == {}


@pytest.mark.parametrize("is_signed", [True, False])
def test_dnf_installs_the_payload_alone_from_the_repository_when_told_to(host, request, is_signed):
    pack = request.getfixturevalue("signed" if is_signed else "unsigned")
    repo = (pack.repository / "relvmoiscsi.repo").read_text()
    repo = re.sub("(?m)^baseurl=.*", f"baseurl=file://{pack.repository}", repo)
    repo = repo.replace("/etc/pki/rpm-gpg/", f"{pack.repository}/")
    configuration = "[main]\nreposdir=/dev/null\n" + repo

    status, output = host.dnf(configuration, "install", "relvmoiscsi")
    assert status != 0 and "Unable to find a match: relvmoiscsi" in output

    host.must_dnf(configuration, "install", "--enablerepo=relvmoiscsi", "relvmoiscsi")
    assert host.installed() == {f"relvmoiscsi-{VERSION}-1"}
    assert host.applied() == {}


@pytest.mark.parametrize("changed", [f"Packages/update-relvmoiscsi-{VERSION}-1.noarch.rpm", "repodata/repomd.xml"])
def test_dnf_refuses_an_update_that_was_changed_after_it_was_signed(host, contents, signed, tmp_path, changed):
    copy = tmp_path / "iso"
    shutil.copytree(str(contents), str(copy))
    content = bytearray((copy / changed).read_bytes())
    content[-10] ^= 1
    (copy / changed).write_bytes(content)

    status, _ = host.dnf(configuration_of_xapi(copy, signed.output / KEY_FILE), "install", "@update")

    assert status != 0
    assert host.installed() == set()


# Signatures. -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["update.xml", "repodata/repomd.xml"])
def test_a_host_that_imported_the_key_verifies_what_xapi_verifies(contents, host_keyring, keyring, name):
    """xapi wants all three words, ocaml/xapi/gpg.ml."""
    status = host_keyring.status_of(contents / (name + ".asc"), contents / name)

    assert "GOODSIG" in status and "TRUST_ULTIMATE" in status
    assert {status["VALIDSIG"][0]} == keyring.fingerprints()


def test_the_repository_is_signed_with_the_same_key(signed, host_keyring, keyring):
    repomd = signed.repository / "repodata" / "repomd.xml"

    status = host_keyring.status_of(Path(str(repomd) + ".asc"), repomd)

    assert {status["VALIDSIG"][0]} == keyring.fingerprints()
    assert (signed.repository / KEY_FILE).read_bytes() == (signed.output / KEY_FILE).read_bytes()


@pytest.mark.parametrize("name", PACKAGES)
def test_rpm_verifies_the_packages_once_it_has_the_key(contents, signed, tmp_path, name):
    rpm = contents / "Packages" / f"{name}-{VERSION}-1.noarch.rpm"
    succeed("rpmkeys", "--dbpath", tmp_path, "--import", signed.output / KEY_FILE)

    said = succeed("rpmkeys", "--dbpath", tmp_path, "--checksig", "--verbose", rpm)

    assert re.search(r"Header V4 RSA/SHA256 Signature, key ID \w+: OK", said)
    assert re.search(r"(?m)^ +V4 RSA/SHA256 Signature, key ID \w+: OK", said), "header and payload, for RPM 4.11"


def test_the_primary_key_signs_even_if_it_has_a_newer_subkey_that_could(payload, tmp_path):
    keyring = Keyring()
    try:
        fingerprint = keyring.new_key("Primary")
        keyring.add_signing_subkey(fingerprint)
        made = make_pack(payload, tmp_path / "pack", "--key", "Primary", GNUPGHOME=str(keyring.home))
        contents = extract(made.iso, tmp_path / "iso")
        status = keyring.status_of(contents / "update.xml.asc", contents / "update.xml")
    finally:
        keyring.remove()

    assert status["VALIDSIG"][0] == fingerprint


def test_the_administrator_is_told_what_to_do_with_a_signed_pack(signed, keyring):
    (fingerprint,) = keyring.fingerprints()

    assert "signed by " + fingerprint in signed.stdout
    assert "import-update-key " + KEY_FILE in signed.stdout
    assert "xe-install-supplemental-pack " + signed.iso.name in signed.stdout
    assert "NOT SIGNED" not in signed.stdout


def test_an_unsigned_pack_says_so_and_what_to_do(unsigned):
    assert "NOT SIGNED. xapi refuses this ISO: INVALID_UPDATE" in unsigned.stdout
    assert "make pack KEY=" in unsigned.stdout
    assert not (unsigned.output / KEY_FILE).exists()
    assert not list(unsigned.output.rglob("*.asc"))


# Refusals. -------------------------------------------------------------------------------------------------------


def assert_nothing_was_made(run, *sentences):
    assert run.status == 1
    assert run.stdout == ""
    assert run.stderr.endswith("No pack was made.\n") and "Traceback" not in run.stderr
    for sentence in sentences:
        assert sentence in run.stderr
    beside = list(run.output.parent.glob(run.output.name + "*"))
    assert beside == [], "neither the pack nor a part of it"


def test_a_key_that_is_not_there_is_named_with_the_keyring(payload, keyring, tmp_path):
    run = make_pack(payload, tmp_path / "pack", "--key", "nobody@example.org", GNUPGHOME=str(keyring.home))

    assert_nothing_was_made(run, f"There is no secret key `nobody@example.org` in {keyring.home}.")


@pytest.fixture(scope="module")
def poor_keys():
    """Keys whose signatures hosts would not accept, by the reason."""
    made = Keyring()
    made.new_key("elliptic", algorithm="ed25519")
    made.new_key("short", algorithm="rsa1024")
    made.new_key("expired", expires="1d", when="20200101T000000")
    made.add_signing_subkey(made.new_key("certifies", usage="cert"))
    made.new_key("twin <one@example.org>")
    made.new_key("twin <two@example.org>")
    yield made
    made.remove()


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("elliptic", "is no RSA key of 2048 bits or more"),
        ("short", "is no RSA key of 2048 bits or more"),
        ("expired", "is revoked, expired, disabled or invalid"),
        ("certifies", "can sign only by its subkeys"),
        ("twin", "stands for 2 secret keys"),
    ],
)
def test_a_key_that_hosts_would_not_accept_is_refused(payload, poor_keys, tmp_path, name, sentence):
    run = make_pack(payload, tmp_path / "pack", "--key", name, GNUPGHOME=str(poor_keys.home))

    assert_nothing_was_made(run, sentence)


@pytest.mark.parametrize("where", ["header", "payload"])
def test_a_package_that_was_tampered_with_is_refused(payload, tmp_path, where):
    content = bytearray(payload.read_bytes())
    content[content.index(b"Stands in for the payload") if where == "header" else -50] ^= 1
    tampered = tmp_path / payload.name
    tampered.write_bytes(content)

    run = make_pack(tampered, tmp_path / "pack")

    assert_nothing_was_made(run, f"{tampered} is damaged or was changed after it was built.")


@pytest.mark.parametrize("difference", [{"version": "99.0.0"}, {"arch": "x86_64"}])
def test_a_package_that_is_not_the_payload_of_this_version_is_refused(tmp_path, difference):
    run = make_pack(payload_rpm(tmp_path / "rpm", **difference), tmp_path / "pack")

    assert_nothing_was_made(run, f"the pack is made of relvmoiscsi {VERSION} for noarch")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    run = make_pack(tmp_path / "no.rpm", tmp_path / "pack")

    assert_nothing_was_made(run, "no.rpm does not exist. Run `make rpm`.")


def test_an_output_that_holds_something_else_is_left_alone(payload, tmp_path):
    output = tmp_path / "home"
    output.mkdir()
    (output / "thesis.tex").write_text("years of work")

    run = make_pack(payload, output)

    assert run.status == 1 and "Choose another directory." in run.stderr
    assert {path.name for path in tmp_path.rglob("*")} == {"home", "thesis.tex"}


#: programs: one at the beginning, the one that signs, one at the end
FAILING = ("rpmbuild", "gpg", "xorriso") + (("rpmsign", "createrepo_c") if WHOLE else ())


@pytest.mark.parametrize("program", FAILING)
def test_when_a_program_fails_its_words_are_told_and_the_pack_that_was_there_stays(
    payload, signed, keyring, tmp_path, program
):
    shutil.copytree(str(signed.output), str(tmp_path / "pack"))
    before = tree(tmp_path / "pack")
    (tmp_path / "bin").mkdir()
    # gpg looks up the key well, and then cannot sign
    works = f'case "$*" in *--list-secret-keys*|*--export*) exec {shutil.which(program)} "$@";; esac\n'
    broken = tmp_path / "bin" / program
    broken.write_text(f"#!/bin/sh\n{works if program == 'gpg' else ''}echo the disk is full >&2\nexit 3\n")
    broken.chmod(0o755)
    path = "{}:{}".format(tmp_path / "bin", os.environ["PATH"])

    run = sign_pack(payload, tmp_path / "pack", keyring, PATH=path)

    assert run.status == 1
    assert "the disk is full" in run.stderr and run.stderr.endswith("No pack was made.\n")
    assert tree(tmp_path / "pack") == before
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "pack"}


# Reproducible. ---------------------------------------------------------------------------------------------------


def test_two_builds_of_the_same_package_are_the_same_bytes(payload, unsigned, tmp_path):
    """By any user, in any directory, at any time."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".rpmmacros").write_text("%packager Somebody\n%_binary_payload w3.xzdio\n")
    (tmp_path / "another" / "place").mkdir(parents=True)
    while int(time.time()) <= int(unsigned.iso.stat().st_ctime):
        time.sleep(0.1)

    again = make_pack(
        payload,
        tmp_path / "another" / "place" / "pack",
        umask=0o077,
        TZ="Pacific/Kiritimati",
        HOME=str(tmp_path / "home"),
    )

    assert again.status == 0, again.stderr
    assert tree(again.output) == tree(unsigned.output)


def test_source_date_epoch_decides_when_it_is_set(payload, tmp_path):
    epoch = 1600000000

    made = make_pack(payload, tmp_path / "pack", SOURCE_DATE_EPOCH=str(epoch))

    extracted = extract(made.iso, tmp_path / "iso")
    assert {date for _, date, _ in tree(extracted).values()} == {epoch}
    record = extracted / "Packages" / f"update-relvmoiscsi-{VERSION}-1.noarch.rpm"
    assert query(record, "%{buildtime} %{buildhost}") == f"{epoch} localhost"
    for directory in (extracted, made.repository):
        repomd = ElementTree.parse(str(directory / "repodata" / "repomd.xml")).getroot()
        dated = [repomd.findtext(REPO + "revision")] + [each.text for each in repomd.iter(REPO + "timestamp")]
        assert len(dated) > 1 and set(dated) == {str(epoch)}


# The real payload. -----------------------------------------------------------------------------------------------


def test_the_pack_of_the_real_payload_is_installed_and_removed(host, packages, tmp_path, keyring):
    rpm = packages.whole()
    pack = sign_pack(rpm, tmp_path / "pack", keyring)
    contents = extract(pack.iso, tmp_path / "iso")
    update = ElementTree.parse(str(contents / "update.xml")).getroot()
    configuration = configuration_of_xapi(contents, pack.output / KEY_FILE)

    host.must_dnf(configuration, "install", update.get("control"))
    host.must_dnf(configuration, "install", "@update")

    installed = {str(path.relative_to(host.root)) for path in host.root.rglob("*") if path.is_file()}
    packaged = set(succeed("rpm", "-qp", "--nosignature", "--qf", "[%{filenames}\n]", rpm).splitlines())
    files = {name[1:] for name in packaged if not (host.root / name[1:]).is_dir()}
    assert "opt/xensource/sm/ReLVMoISCSISR" in files and files <= installed
    assert set(host.applied()) == {update.get("uuid")}

    host.must_dnf(configuration, "remove", "control-relvmoiscsi", "relvmoiscsi")
    assert host.installed() == set()
    assert host.applied() == {}
    assert not {name for name in files if (host.root / name).exists()}
