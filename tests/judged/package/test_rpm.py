# SPDX-License-Identifier: LGPL-2.1-only
"""The RPM as a file: its contents, its requirements, and that each user builds the same bytes."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from kit.pack_tools import Keyring
from kit.rpm_tools import EPOCH, TOP, build_rpm, few_modules, modes, pool_package, query, succeed
from relvmoiscsi import __version__

SHARE = "/usr/share/relvmoiscsi/"
PROGRAMS = ("/etc/xapi.d/plugins/relvmoiscsi", "/opt/xensource/sm/ReLVMoHBASR", "/opt/xensource/sm/ReLVMoISCSISR",
            "/usr/libexec/sm/drivers/ReLVMoHBASR", "/usr/libexec/sm/drivers/ReLVMoISCSISR", "/usr/sbin/relvmoiscsi",
            SHARE + "sm-whitelist")  # fmt: skip
DIRECTORIES = ("/usr/lib/tmpfiles.d", "/usr/lib/systemd/system/xapi.service.d", "/usr/libexec/sm",
               "/usr/libexec/sm/drivers",
               "/usr/share/bash-completion", "/usr/share/bash-completion/completions", SHARE[:-1])  # fmt: skip
FILES = ("/etc/relvmoiscsi.conf", "/usr/lib/tmpfiles.d/relvmoiscsi.conf",
         "/usr/lib/systemd/system/xapi.service.d/relvmoiscsi.conf",
         "/usr/share/bash-completion/completions/relvmoiscsi", "/usr/share/man/man8/relvmoiscsi.8.gz",
         SHARE + "relvmoiscsi/answers.schema.json")  # fmt: skip
RULES = {"/etc/udev/rules.d/" + path.name for path in (TOP / "udev").glob("*.rules")}


@pytest.fixture(scope="module")
def package(packages):
    return packages.whole()


def in_repository(folder, pattern="*.py"):
    return {str(path.relative_to(TOP)) for path in (TOP / folder).rglob(pattern)}


OF_THE_POOL = in_repository("relvmoiscsi/pool")
PAGES = {"/usr/share/doc/relvmoiscsi/" + path for path in in_repository("docs", "*.rst")}
PAGES |= {f"/usr/share/doc/relvmoiscsi/{name}" for name in ("CHANGES.rst", "COPYING", "README.rst")}


def with_folders(modules):
    """Modules as they are installed, each folder with one for what is compiled."""
    folders = {os.path.dirname(SHARE + path) for path in modules}
    caches = {path + "/__pycache__" for path in folders}
    return {**dict.fromkeys(folders | caches, 0o40755), **{SHARE + path: 0o100644 for path in modules}}


def test_it_has_these_files_every_module_every_page_and_nothing_else(package):
    files = dict.fromkeys([*FILES, *RULES, *PAGES], 0o100644)
    directories = dict.fromkeys([*DIRECTORIES, *map(os.path.dirname, PAGES)], 0o40755)
    modules = with_folders(in_repository("relvmoiscsi") - OF_THE_POOL)

    assert modes(package) == {**files, **directories, **modules, **dict.fromkeys(PROGRAMS, 0o100755)}
    assert len(set(query(package, "[%{FILEUSERNAME} %{FILEGROUPNAME} %{FILEMTIMES}\n]").splitlines())) == 1
    assert query(package, "%{FILEUSERNAME} %{FILEGROUPNAME}") == "root root"
    name = f"relvmoiscsi-{__version__}-1.noarch"
    assert (package.name, query(package, "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}")) == (name + ".rpm", name)


def test_the_pool_client_is_a_package_of_its_own_with_these_modules_alone(package):
    pool = pool_package(package)
    versions = query(pool, "[%{REQUIRENAME} %{REQUIREFLAGS:depflags} %{REQUIREVERSION}\n]").splitlines()
    required = {" ".join(line.split()) for line in versions if not line.startswith("rpmlib(")}

    assert modes(pool) == with_folders(OF_THE_POOL)
    assert required == {"/bin/sh", f"relvmoiscsi = {__version__}-1"}


def test_what_is_configuration_is_kept(package):
    lines = query(package, "[%{FILENAMES} %{FILEFLAGS:fflags}\n]").splitlines()
    flags = dict(line.rsplit(" ", 1) for line in lines)

    assert flags["/etc/relvmoiscsi.conf"] == "cn"
    assert {path for path, each in flags.items() if each == "c"} == RULES


def test_every_dom0_can_read_and_install_it_and_has_what_it_requires(package):
    """rpm 4.11 of CentOS 7 has these features; it has no zstd payload, rich dependencies, or file digests but these."""
    required = set(query(package, "[%{REQUIRENAME}\n]").splitlines())
    features = {"rpmlib(CompressedFileNames)", "rpmlib(FileDigests)", "rpmlib(PayloadFilesHavePrefix)"}

    assert required - features == {"/bin/sh", "/usr/bin/python3", "sm"}, "by names that are the same in each dom0"
    assert query(package, "%{PAYLOADCOMPRESSOR} %{PAYLOADFORMAT} %{FILEDIGESTALGO}") == "gzip cpio 8"
    assert "(none)" not in query(package, "%{SIGMD5} %{SIGSIZE} %{SHA1HEADER}"), "what rpm 4.11 verifies"
    assert query(package, "[%{RECOMMENDNAME}][%{SUGGESTNAME}][%{SUPPLEMENTNAME}][%{ENHANCENAME}]") == ""


def test_scriptlets_start_restart_and_enable_nothing(package):
    said = succeed("rpm", "-qp", "--scripts", "--triggers", "--filetriggers", package).splitlines()

    text = "\n".join(line for line in said if "echo" not in line and not line.startswith("#"))
    assert "sm-whitelist sync" in text and "sm-whitelist remove" in text
    assert set(re.findall(r"systemctl ([\w-]+)", text)) == {"daemon-reload"}
    assert "/usr/sbin/relvmoiscsi direct events || :" in text and "udevadm trigger" not in text
    assert not re.search(r"\b(service|restart|start|enable|xe|xe-toolstack-restart|wget|curl)\b", text)


def unpack(package, directory):
    cpio = subprocess.run(["rpm2cpio", str(package)], check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["cpio", "-id", "--quiet"], check=True, input=cpio, cwd=str(directory))


def test_bash_completes_by_what_the_command_prints(package, tmp_path):
    unpack(package, tmp_path)

    packaged = (tmp_path / "usr/share/bash-completion/completions/relvmoiscsi").read_text(encoding="utf-8")
    printed = succeed(sys.executable, "-m", "relvmoiscsi", "--completion", "bash", cwd=str(TOP))
    assert packaged == printed and "complete -o default -F _relvmoiscsi relvmoiscsi" in printed


def test_every_program_in_it_is_the_repository_s_with_an_interpreter_that_leaves_nothing(package, tmp_path):
    unpack(package, tmp_path)

    for path in PROGRAMS:
        first, *rest = (tmp_path / path[1:]).read_text(encoding="utf-8").split("\n")
        assert first == "#!/usr/bin/python3 -ISB", path
        if path.endswith("SR"):
            assert rest == (TOP / "drivers" / os.path.basename(path)).read_text(encoding="utf-8").split("\n")[1:]


def test_with_a_key_both_packages_are_signed_and_rpm_verifies_them_by_the_key_beside_them(tmp_path):
    source, output = few_modules(tmp_path / "source"), tmp_path / "rpm"
    key_file = output / "RPM-GPG-KEY-relvmoiscsi"

    def signatures(package):
        """As docs/security.rst has it."""
        said = succeed("rpm", "--dbpath", tmp_path / "db", "-Kv", package)
        return re.findall("(Signature, key ID [0-9a-f]{8}): (.*)", said)

    with Keyring() as keyring:
        keyring.new_key("Updates of our pools")
        signing = {"options": ("--key", "Updates of our pools"), "GNUPGHOME": str(keyring.home)}
        package = build_rpm(output, source, **signing)
        succeed("rpmkeys", "--dbpath", tmp_path / "db", "--import", key_file)
        (key,) = succeed("rpm", "--dbpath", tmp_path / "db", "-q", "gpg-pubkey", "--qf", "%{version}\n").split()
        for signed in (package, pool_package(package)):
            assert set(signatures(signed)) == {(f"Signature, key ID {key}", "OK")}

        before = package.read_bytes()
        with pytest.raises(AssertionError, match="There is no secret key `nobody`"):
            build_rpm(output, source, **{**signing, "options": ("--key", "nobody")})
        assert package.read_bytes() == before, "a build that fails leaves what was there"

    package = build_rpm(output, source)
    assert signatures(package) == [] and not key_file.exists()


def test_the_same_source_gives_the_same_bytes_whoever_builds_it(packages, tmp_path):
    other = few_modules(tmp_path / "elsewhere" / "b")
    for path in other.rglob("*"):
        os.utime(str(path), (1234567890, 1234567890))
        path.chmod(path.stat().st_mode & ~0o077)
    (other / "relvmoiscsi/__pycache__").mkdir(exist_ok=True)
    (other / "relvmoiscsi/__pycache__/left.cpython-36.pyc").write_bytes(b"")
    (tmp_path / ".rpmmacros").write_text("%packager somebody\n%dist .mine\n%_topdir /nowhere\n", encoding="utf-8")
    env = {"HOME": str(tmp_path), "TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8", "HOSTNAME": "other"}

    second = build_rpm(tmp_path / "second", other, SOURCE_DATE_EPOCH=EPOCH, **env)

    assert second.read_bytes() == packages.ours().read_bytes()


def test_rpmlint_has_nothing_to_say_that_is_not_explained(package):
    if shutil.which("rpmlint") is None:
        pytest.skip("there is no rpmlint")
    config, spec = TOP / "supp-pack/rpmlint.toml", package.parent / "relvmoiscsi.spec"

    assert "0 errors, 0 warnings" in succeed("rpmlint", "--config", config, package, spec)
