# SPDX-License-Identifier: LGPL-2.1-only
"""Packs as hosts meet them: isoinfo and the kernel read the ISO, gpg the signatures, a real dnf installs.

They run with the judges, who have root and Debian's packages. The signed pack is of the real package, the unsigned one
of a small stand-in.
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
    VERSION,
    Host,
    Keyring,
    configuration_of_xapi,
    dom0_repository,
    extract,
    has_agent,
    listing,
    make_pack,
    payload_rpm,
    tree,
)
from kit.rpm_tools import query, succeed
from relvmoiscsi.host.this_host import wait_for

PACKAGES = ("control-relvmoiscsi", "relvmoiscsi", "update-relvmoiscsi")
KEY_FILE = "RPM-GPG-KEY-relvmoiscsi"
METADATA = ("primary.xml.gz", "filelists.xml.gz", "other.xml.gz", "comps.xml", "comps.xml.gz")
REPO = "{http://linux.duke.edu/metadata/repo}"


def sign_pack(rpm, output, keyring, **environment):
    return make_pack(rpm, output, "--key", "Updates of our pools", GNUPGHOME=str(keyring.home), **environment)


@pytest.fixture(scope="module")
def keyring():
    """With one key that hosts can verify."""
    with Keyring() as made:
        made.new_key("Updates of our pools")
        yield made


@pytest.fixture(scope="module")
def payload(tmp_path_factory):
    return payload_rpm(tmp_path_factory.mktemp("payload") / "rpm")


@pytest.fixture(scope="module")
def unsigned(tmp_path_factory, payload):
    made = make_pack(payload, tmp_path_factory.mktemp("unsigned") / "pack")
    assert made.status == 0, made.stderr
    return made


@pytest.fixture(scope="module")
def signed(tmp_path_factory, packages, keyring):
    made = sign_pack(packages.whole(), tmp_path_factory.mktemp("signed") / "pack", keyring)
    assert made.status == 0, made.stderr
    return made


@pytest.fixture(scope="module")
def contents(tmp_path_factory, signed):
    """What is in the ISO of the signed pack."""
    return extract(signed.iso, tmp_path_factory.mktemp("contents") / "iso")


@pytest.fixture(scope="module")
def update(contents):
    """The attributes in update.xml."""
    return attributes_of(contents)


def attributes_of(contents):
    return ElementTree.parse(str(contents / "update.xml")).getroot().attrib


def rpm_in(contents, name):
    return contents / "Packages" / f"{name}-{VERSION}-1.noarch.rpm"


# -- the ISO and the packages in it -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_signed, names", [(True, "-R"), (True, "-J"), (False, "-R")])
def test_the_iso_holds_what_xapi_looks_for_and_nothing_else(request, is_signed, names):
    """By Rock Ridge, which dom0 reads, and by Joliet, which XenCenter reads."""
    pack = request.getfixturevalue("signed" if is_signed else "unsigned")
    expected = ["/update.xml", "/repodata/repomd.xml"]
    expected += [path + ".asc" for path in expected] if is_signed else []
    expected += [f"/Packages/{name}-{VERSION}-1.noarch.rpm" for name in PACKAGES]
    expected += ["/repodata/<sha256>-" + name for name in METADATA]

    found = {re.sub("[0-9a-f]{64}", "<sha256>", path) for path in listing(pack.iso, names)}

    assert found == {"/Packages", "/repodata", *expected}
    entries = re.findall(r"(?m)^([d-]\S{9}) +\d+ +(\d+) +(\d+) ", succeed("isoinfo", "-R", "-l", "-i", pack.iso))
    assert set(entries) == {("dr-xr-xr-x", "0", "0"), ("-r--r--r--", "0", "0")}, "root's, and all may read"


def test_what_is_installed_first_requires_what_the_payload_requires_of_others(tmp_path):
    payload = payload_rpm(tmp_path / "rpm", requires=("sm >= 2", "a, b", "python(abi) >= 3.6", "relvmoiscsi(itself)"))

    contents = extract(make_pack(payload, tmp_path / "pack").iso, tmp_path / "iso")

    required = succeed("rpm", "-qp", "--requires", rpm_in(contents, "control-relvmoiscsi")).splitlines()
    of_hosts = [line for line in required if not line.startswith("rpmlib(")]
    assert sorted(of_hosts) == ["a", "b", "python(abi) >= 3.6", "sm >= 2"]


def test_the_record_belongs_to_its_package_but_is_not_unpacked_with_it(contents, update):
    """`g`: RPM removes the file with the package; that it is there says that the transaction has come to its end."""
    record, control = (rpm_in(contents, f"{name}-relvmoiscsi") for name in ("update", "control"))
    files = "[%{filenames} %{fileflags:fflags}\n]"

    assert (query(record, files), query(control, files)) == (f"/var/update/applied/{update['uuid']} g\n", "")
    said = succeed("rpm", "-qp", "--nosignature", "--scripts", record)
    assert re.findall(r"(?m)^(\w+) (?:scriptlet|program)", said) == ["posttrans"]


@pytest.mark.parametrize("name", PACKAGES)
def test_rpm_of_el7_reads_the_packages_and_verifies_them_once_it_has_the_key(contents, signed, tmp_path, name):
    """RPM 4.11: what it must be able to do is in the package's requirements, its payload and its digests."""
    rpm = rpm_in(contents, name)
    succeed("rpmkeys", "--dbpath", tmp_path, "--import", signed.output / KEY_FILE)

    features = set(re.findall(r"rpmlib\((\w+)\)", succeed("rpm", "-qp", "--nosignature", "--requires", rpm)))
    said = succeed("rpmkeys", "--dbpath", tmp_path, "--checksig", "--verbose", rpm)

    assert features <= {"CompressedFileNames", "FileDigests", "PayloadFilesHavePrefix", "PartialHardlinkSets"}
    assert query(rpm, "%{payloadformat} %{payloadcompressor}") == "cpio gzip"
    assert re.search(r"Header V4 RSA/SHA256 Signature, key ID \w+: OK", said)
    assert re.search(r"(?m)^ +V4 RSA/SHA256 Signature, key ID \w+: OK", said), "header and payload, for RPM 4.11"


# -- installing -------------------------------------------------------------------------------------------------------


@pytest.fixture
def host(tmp_path, tmp_path_factory):
    yield Host(tmp_path / "host", dom0_repository(tmp_path_factory.mktemp("dom0") / "repository"))
    assert wait_for(lambda: not has_agent(tmp_path), 60), "a gpg-agent that dnf has started ends with the test"


def test_an_update_is_installed_as_xapi_does_it_followed_by_the_next_and_removed(
    host, tmp_path, keyring, contents, signed, update, packages
):
    """xapi: precheck installs what `control` names, apply the group `update`, both with signatures checked."""
    configuration = configuration_of_xapi(contents, signed.output / KEY_FILE)
    host.must_dnf(configuration, "install", update["control"])
    assert host.installed() == {f"control-relvmoiscsi-{VERSION}-1"}
    host.must_dnf(configuration, "install", "@update")

    assert host.installed() == {f"{name}-{VERSION}-1" for name in PACKAGES}
    assert host.applied() == {update["uuid"]: (contents / "update.xml").read_text()}
    assert update["installation-size"] == query(packages.whole(), "%{longsize}")
    packaged = [host.root / name[1:] for name in query(packages.whole(), "[%{filenames}\n]").splitlines()]
    files = [path for path in packaged if not path.is_dir()]
    assert host.root / "opt/xensource/sm/ReLVMoISCSISR" in files and all(path.is_file() for path in files)

    later = sign_pack(payload_rpm(tmp_path / "later", release="2"), tmp_path / "pack", keyring)
    next_contents = extract(later.iso, tmp_path / "iso")
    configuration = configuration_of_xapi(next_contents, later.output / KEY_FILE)
    second = {attributes_of(next_contents)["uuid"]: (next_contents / "update.xml").read_text()}
    assert update["uuid"] not in second
    for action, what in (("upgrade", "@update"), ("reinstall", "update-relvmoiscsi")):
        host.must_dnf(configuration, action, what)
        assert host.installed() == {f"{PACKAGES[0]}-{VERSION}-1", *(f"{name}-{VERSION}-2" for name in PACKAGES[1:])}
        assert host.applied() == second

    host.must_dnf(configuration, "remove", "relvmoiscsi", "control-relvmoiscsi")
    assert (host.installed(), host.applied()) == (set(), {})
    assert not [path for path in files if path.exists()]


def test_a_host_that_lacks_something_is_told_so_before_anything_is_installed(tmp_path, contents, signed, update):
    host = Host(tmp_path / "host", dom0_repository(tmp_path / "dom0", provides=["/bin/sh", "sm"]))
    configuration = configuration_of_xapi(contents, signed.output / KEY_FILE)

    status, output = host.dnf(configuration, "install", update["control"])

    assert status != 0 and "nothing provides /usr/bin/python3 needed by control-relvmoiscsi" in output
    assert host.installed() == set()


@pytest.mark.parametrize("kind", ["signed", "unsigned"])
def test_dnf_installs_the_payload_alone_from_the_repository_when_told_to(host, request, kind):
    pack = request.getfixturevalue(kind)
    repo = re.sub(
        "(?m)^baseurl=.*", f"baseurl=file://{pack.repository}", (pack.repository / "relvmoiscsi.repo").read_text()
    )
    configuration = "[main]\nreposdir=/dev/null\n" + repo.replace("/etc/pki/rpm-gpg/", f"{pack.repository}/")

    status, output = host.dnf(configuration, "install", "relvmoiscsi")
    assert status != 0 and "Unable to find a match: relvmoiscsi" in output

    host.must_dnf(configuration, "install", "--enablerepo=relvmoiscsi", "relvmoiscsi")
    assert (host.installed(), host.applied()) == ({f"relvmoiscsi-{VERSION}-1"}, {})


@pytest.mark.parametrize("changed", [f"Packages/update-relvmoiscsi-{VERSION}-1.noarch.rpm", "repodata/repomd.xml"])
def test_dnf_refuses_an_update_that_was_changed_after_it_was_signed(host, contents, signed, tmp_path, changed):
    copy = tmp_path / "iso"
    shutil.copytree(str(contents), str(copy))
    content = bytearray((copy / changed).read_bytes())
    content[-10] ^= 1
    (copy / changed).write_bytes(content)

    status, _ = host.dnf(configuration_of_xapi(copy, signed.output / KEY_FILE), "install", "@update")

    assert status != 0 and host.installed() == set()


# -- signatures -------------------------------------------------------------------------------------------------------


def test_a_host_that_imported_the_key_verifies_what_xapi_verifies_and_the_repository(contents, signed, keyring):
    """xapi wants all three words, ocaml/xapi/gpg.ml."""
    repomd = signed.repository / "repodata" / "repomd.xml"
    with Keyring() as of_host:
        of_host.trust_as_hosts_do(signed.output / KEY_FILE)
        for path in (contents / "update.xml", contents / "repodata/repomd.xml", repomd):
            status = of_host.status_of(Path(f"{path}.asc"), path)
            assert "GOODSIG" in status and "TRUST_ULTIMATE" in status, path
            assert {status["VALIDSIG"][0]} == keyring.fingerprints()

    assert (signed.repository / KEY_FILE).read_bytes() == (signed.output / KEY_FILE).read_bytes()


def test_the_primary_key_signs_even_if_it_has_a_newer_subkey_that_could(payload, tmp_path):
    with Keyring() as keyring:
        fingerprint = keyring.new_key("Updates of our pools")
        keyring.add_signing_subkey(fingerprint)
        contents = extract(sign_pack(payload, tmp_path / "pack", keyring).iso, tmp_path / "iso")
        status = keyring.status_of(contents / "update.xml.asc", contents / "update.xml")

    assert status["VALIDSIG"][0] == fingerprint


def test_the_administrator_is_told_what_to_do_with_a_pack(signed, unsigned, keyring):
    (fingerprint,) = keyring.fingerprints()
    for words in (fingerprint, "import-update-key " + KEY_FILE, "xe-install-supplemental-pack " + signed.iso.name):
        assert words in signed.stdout
    assert "NOT SIGNED" not in signed.stdout
    assert "NOT SIGNED. xapi refuses this ISO: INVALID_UPDATE" in unsigned.stdout
    assert "make pack KEY=" in unsigned.stdout
    assert not [path for path in unsigned.output.rglob("*") if path.name == KEY_FILE or path.suffix == ".asc"]


# -- refusals ---------------------------------------------------------------------------------------------------------


def assert_nothing_was_made(run, *sentences):
    assert (run.status, run.stdout) == (1, "")
    assert run.stderr.endswith("No pack was made.\n") and "Traceback" not in run.stderr
    for sentence in sentences:
        assert sentence in run.stderr
    assert list(run.output.parent.glob(run.output.name + "*")) == [], "neither the pack nor a part of it"


@pytest.fixture(scope="module")
def poor_keys():
    """Keys whose signatures hosts would not accept, by the reason."""
    with Keyring() as made:
        made.new_key("elliptic", algorithm="ed25519")
        made.new_key("short", algorithm="rsa1024")
        made.new_key("expired", expires="1d", when="20200101T000000")
        made.add_signing_subkey(made.new_key("certifies", usage="cert"))
        made.new_key("twin <one@example.org>")
        made.new_key("twin <two@example.org>")
        yield made


@pytest.mark.parametrize("name, sentence", [
    ("elliptic", "is no RSA key of 2048 bits or more"), ("short", "is no RSA key of 2048 bits or more"),
    ("expired", "is revoked, expired, disabled or invalid"), ("certifies", "can sign only by its subkeys"),
    ("twin", "stands for 2 secret keys"), ("nobody@example.org", "There is no secret key `nobody@example.org` in "),
])  # fmt: skip
def test_a_key_that_is_absent_or_that_hosts_would_not_accept_is_refused(payload, poor_keys, tmp_path, name, sentence):
    run = make_pack(payload, tmp_path / "pack", "--key", name, GNUPGHOME=str(poor_keys.home))

    assert_nothing_was_made(run, sentence)


@pytest.mark.parametrize("where", ["header", "payload"])
def test_a_package_that_was_tampered_with_is_refused(payload, tmp_path, where):
    content = bytearray(payload.read_bytes())
    content[content.index(b"Stands in") if where == "header" else -50] ^= 1
    tampered = tmp_path / payload.name
    tampered.write_bytes(content)

    assert_nothing_was_made(
        make_pack(tampered, tmp_path / "pack"), f"{tampered} is damaged or was changed after it was built."
    )


@pytest.mark.parametrize("difference", [{"version": "99.0.0"}, {"arch": "x86_64"}, None], ids=str)
def test_what_is_not_the_payload_of_this_version_is_refused(tmp_path, difference):
    rpm = payload_rpm(tmp_path / "rpm", **difference) if difference else tmp_path / "no.rpm"
    says = f"the pack is made of relvmoiscsi {VERSION} for noarch"

    run = make_pack(rpm, tmp_path / "pack")

    assert_nothing_was_made(run, says if difference else "no.rpm does not exist. Run `make rpm`.")


def test_an_output_that_holds_something_else_is_left_alone(payload, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")

    run = make_pack(payload, tmp_path / "home")

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

    run = sign_pack(payload, tmp_path / "pack", keyring, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    assert run.status == 1
    assert "the disk is full" in run.stderr and run.stderr.endswith("No pack was made.\n")
    assert tree(tmp_path / "pack") == before
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "pack"}


# -- reproducible -----------------------------------------------------------------------------------------------------


def test_two_builds_of_the_same_package_are_the_same_bytes(payload, unsigned, tmp_path):
    """By any user, in any directory, at any time."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".rpmmacros").write_text("%packager Somebody\n%_binary_payload w3.xzdio\n")
    (tmp_path / "another" / "place").mkdir(parents=True)
    while int(time.time()) <= int(unsigned.iso.stat().st_ctime):
        time.sleep(0.1)
    environment = {"TZ": "Pacific/Kiritimati", "HOME": str(tmp_path / "home")}

    again = make_pack(payload, tmp_path / "another" / "place" / "pack", umask=0o077, **environment)

    assert again.status == 0, again.stderr
    assert tree(again.output) == tree(unsigned.output)


def test_source_date_epoch_decides_when_it_is_set(payload, tmp_path):
    epoch = 1600000000

    made = make_pack(payload, tmp_path / "pack", SOURCE_DATE_EPOCH=str(epoch))

    extracted = extract(made.iso, tmp_path / "iso")
    assert {date for _, date, _ in tree(extracted).values()} == {epoch}
    assert query(rpm_in(extracted, "update-relvmoiscsi"), "%{buildtime} %{buildhost}") == f"{epoch} localhost"
    for directory in (extracted, made.repository):
        repomd = ElementTree.parse(str(directory / "repodata" / "repomd.xml")).getroot()
        dated = [repomd.findtext(REPO + "revision")] + [each.text for each in repomd.iter(REPO + "timestamp")]
        assert len(dated) > 1 and set(dated) == {str(epoch)}
