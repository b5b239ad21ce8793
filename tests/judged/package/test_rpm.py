# SPDX-License-Identifier: LGPL-2.1-only
"""The RPM as a file: its contents, its requirements, and that each user builds the same bytes."""

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

import relvmoiscsi
from kit.packages import EPOCH, few_modules
from kit.rpm_tools import TOP, build_rpm, pool_package, query

pytestmark = pytest.mark.root

CODE = "/usr/share/relvmoiscsi/relvmoiscsi/"

#: everything in the package but the modules and the pages; kind and mode
FILES = {
    "/etc/relvmoiscsi.conf": 0o100644,
    "/etc/udev/rules.d/57-relvmoiscsi.rules": 0o100644,
    "/etc/udev/rules.d/99-zz-relvmoiscsi.rules": 0o100644,
    "/etc/xapi.d/plugins/relvmoiscsi": 0o100755,
    "/opt/xensource/sm/ReLVMoHBASR": 0o100755,
    "/opt/xensource/sm/ReLVMoISCSISR": 0o100755,
    "/usr/lib/systemd/system/xapi.service.d": 0o40755,
    "/usr/lib/systemd/system/xapi.service.d/relvmoiscsi.conf": 0o100644,
    "/usr/libexec/sm": 0o40755,
    "/usr/libexec/sm/drivers": 0o40755,
    "/usr/libexec/sm/drivers/ReLVMoHBASR": 0o100755,
    "/usr/libexec/sm/drivers/ReLVMoISCSISR": 0o100755,
    "/usr/sbin/relvmoiscsi": 0o100755,
    "/usr/share/bash-completion": 0o40755,
    "/usr/share/bash-completion/completions": 0o40755,
    "/usr/share/bash-completion/completions/relvmoiscsi": 0o100644,
    "/usr/share/doc/relvmoiscsi": 0o40755,
    "/usr/share/doc/relvmoiscsi/CHANGES.rst": 0o100644,
    "/usr/share/doc/relvmoiscsi/COPYING": 0o100644,
    "/usr/share/doc/relvmoiscsi/README.rst": 0o100644,
    "/usr/share/man/man8/relvmoiscsi.8.gz": 0o100644,
    "/usr/share/relvmoiscsi": 0o40755,
    "/usr/share/relvmoiscsi/sm-whitelist": 0o100755,
}


@pytest.fixture(scope="module")
def package(packages):
    return packages.whole()


def test_the_name_tells_the_one_version_and_no_distribution_or_architecture(package):
    assert os.path.basename(package) == f"relvmoiscsi-{relvmoiscsi.__version__}-1.noarch.rpm"
    assert query(package, "%{NAME} %{VERSION} %{RELEASE} %{ARCH}") == [
        f"relvmoiscsi {relvmoiscsi.__version__} 1 noarch"
    ]


def test_it_has_these_files_every_module_every_page_and_nothing_else(package):
    listed = dict(line.rsplit(" ", 1) for line in query(package, "[%{FILENAMES} %{FILEMODES}\n]"))
    found = {path: int(mode) & 0xFFFF for path, mode in listed.items()}

    modules = modules_but_the_pools()
    wanted = {"/usr/share/relvmoiscsi/" + path: 0o100644 for path in modules}
    folders = {os.path.dirname(path) for path in wanted}
    wanted.update(dict.fromkeys(folders, 16877))
    wanted.update({path + "/__pycache__": 0o40755 for path in folders})
    assert {path for path in found if path.startswith(CODE[:-1])} == set(wanted)
    rules = {"/etc/udev/rules.d/" + path.name: 0o100644 for path in (TOP / "udev").glob("*.rules")}
    pages = {"/usr/share/doc/relvmoiscsi/" + str(path.relative_to(TOP)) for path in (TOP / "docs").rglob("*.rst")}
    rooms = {os.path.dirname(path): 0o40755 for path in pages}
    assert found == {**FILES, **rules, **wanted, **dict.fromkeys(pages, 0o100644), **rooms}


def modules_of_the_pool():
    folder = (TOP / "relvmoiscsi" / "pool").rglob("*.py")
    return {str(path.relative_to(TOP)) for path in [*folder, *(TOP / "relvmoiscsi" / "cli").glob("pool*.py")]}


def modules_but_the_pools():
    return {str(path.relative_to(TOP)) for path in (TOP / "relvmoiscsi").rglob("*.py")} - modules_of_the_pool()


def test_the_pool_client_is_a_package_of_its_own_with_these_modules_alone(package):
    pool = pool_package(package)
    listed = dict(line.rsplit(" ", 1) for line in query(pool, "[%{FILENAMES} %{FILEMODES}\n]"))
    found = {path: int(mode) & 0xFFFF for path, mode in listed.items()}
    wanted = {"/usr/share/relvmoiscsi/" + path: 0o100644 for path in modules_of_the_pool()}
    folders = {os.path.dirname(path) for path in wanted} - {CODE + "cli"}

    assert found == {
        **wanted,
        **dict.fromkeys(folders, 0o40755),
        **{path + "/__pycache__": 0o40755 for path in folders},
    }
    required = {line for line in query(pool, "[%{REQUIRENAME}\n]") if not line.startswith("rpmlib(")}
    assert required == {"/bin/sh", "relvmoiscsi"}
    versions = query(pool, "[%{REQUIRENAME} %{REQUIREFLAGS:depflags} %{REQUIREVERSION}\n]")
    assert [" ".join(line.split()) for line in versions if line.startswith("relvmoiscsi")] == [
        f"relvmoiscsi = {relvmoiscsi.__version__}-1"
    ]


def test_everything_is_root_s_and_as_old_as_the_version(package):
    owners = query(package, "[%{FILEUSERNAME} %{FILEGROUPNAME} %{FILEMTIMES}\n]")

    assert len(set(owners)) == 1
    assert owners[0].startswith("root root ")


def test_what_is_configuration_is_kept(package):
    flags = dict(line.rsplit(" ", 1) for line in query(package, "[%{FILENAMES} %{FILEFLAGS:fflags}\n]") if " " in line)

    assert flags["/etc/relvmoiscsi.conf"] == "cn"
    assert {path for path, each in flags.items() if each == "c"} == {
        "/etc/udev/rules.d/" + path.name for path in (TOP / "udev").glob("*.rules")
    }


def test_every_dom0_can_read_and_install_it(package):
    """rpm 4.11 of CentOS 7 has these features; it has no zstd payload, rich dependencies, or file digests but these."""
    features = {line for line in query(package, "[%{REQUIRENAME}\n]") if line.startswith("rpmlib(")}

    assert features <= {"rpmlib(CompressedFileNames)", "rpmlib(FileDigests)", "rpmlib(PayloadFilesHavePrefix)"}
    assert query(package, "%{PAYLOADCOMPRESSOR} %{PAYLOADFORMAT} %{FILEDIGESTALGO}") == ["gzip cpio 8"]
    assert "(none)" not in query(package, "%{SIGMD5} %{SIGSIZE} %{SHA1HEADER}")[0], "what rpm 4.11 verifies"
    weak = "[%{RECOMMENDNAME}][%{SUGGESTNAME}][%{SUPPLEMENTNAME}][%{ENHANCENAME}]"
    assert query(package, weak) == [""]


def test_it_requires_what_every_dom0_has_by_names_that_are_the_same_in_each(package):
    required = {line for line in query(package, "[%{REQUIRENAME}\n]") if not line.startswith("rpmlib(")}

    assert required == {"/bin/sh", "/usr/bin/python3", "sm"}


def test_scriptlets_start_restart_and_enable_nothing(package):
    done = subprocess.run(
        ["rpm", "-qp", "--scripts", "--triggers", "--filetriggers", package], check=True, stdout=subprocess.PIPE
    )
    commands = [line for line in done.stdout.decode().split("\n") if "echo" not in line and not line.startswith("#")]

    text = "\n".join(commands)
    assert "sm-whitelist sync" in text and "sm-whitelist remove" in text
    assert set(re.findall(r"systemctl ([\w-]+)", text)) == {"daemon-reload"}
    assert not re.search(r"\b(service|restart|start|enable|xe|xe-toolstack-restart|wget|curl)\b", text)


def test_every_program_in_it_is_the_repository_s_with_an_interpreter_that_leaves_nothing(package, tmp_path):
    cpio = subprocess.run(["rpm2cpio", package], check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["cpio", "-id", "--quiet"], check=True, input=cpio, cwd=str(tmp_path))

    programs = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_mode & stat.S_IXUSR]

    assert {"/" + str(path.relative_to(tmp_path)) for path in programs} == {
        path for path, mode in FILES.items() if mode == 0o100755
    }
    for program in programs:
        lines = program.read_text(encoding="utf-8").split("\n")
        assert lines[0] == "#!/usr/bin/python3 -ISB", program
        if program.name.endswith("SR"):
            assert lines[1:] == (TOP / "drivers" / program.name).read_text(encoding="utf-8").split("\n")[1:]


def test_the_same_source_gives_the_same_bytes_whoever_builds_it(packages, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", EPOCH)
    first = packages.ours()
    other = few_modules(tmp_path / "elsewhere" / "b")
    for path in other.rglob("*"):
        os.utime(str(path), (1234567890, 1234567890))
        path.chmod(path.stat().st_mode & ~0o077)
    (other / "relvmoiscsi/__pycache__").mkdir(exist_ok=True)
    (other / "relvmoiscsi/__pycache__/left.cpython-36.pyc").write_bytes(b"")
    for name, value in (("HOME", str(tmp_path)), ("TZ", "Asia/Tokyo"), ("LC_ALL", "C.UTF-8"), ("HOSTNAME", "other")):
        monkeypatch.setenv(name, value)
    (tmp_path / ".rpmmacros").write_text("%packager somebody\n%dist .mine\n%_topdir /nowhere\n", encoding="utf-8")
    second = build_rpm(tmp_path / "second", other)
    assert Path(second).read_bytes() == Path(first).read_bytes()


def test_rpmlint_has_nothing_to_say_that_is_not_explained(package):
    if shutil.which("rpmlint") is None:
        pytest.skip("there is no rpmlint")
    spec = os.path.join(os.path.dirname(package), "relvmoiscsi.spec")

    done = subprocess.run(
        ["rpmlint", "--config", str(TOP / "supp-pack/rpmlint.toml"), package, spec],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )

    output = done.stdout.decode()
    assert done.returncode == 0, output
    assert "0 errors, 0 warnings" in output, output
