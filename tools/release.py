# SPDX-License-Identifier: LGPL-2.1-only
"""Make a release: everything that a user takes, in one directory.

    RELEASE.rst                         how to install it, and what is new
    relvmoiscsi-<version>-1.noarch.rpm  for dom0; relvmoiscsi-pool beside it
    relvmoiscsi-<version>.iso           the update for xapi
    repo/                               the repository for yum and dnf
    relvmoiscsi-<version>.tar.gz        sdist, and a wheel beside it
    relvmoiscsi-pool-<version>.tar.gz   the collection for Ansible
    relvmoiscsi-<version>-html.tar.gz   the pages of docs/
    RPM-GPG-KEY-relvmoiscsi             the public key, if a key was given
    SHA256SUMS                          of all of these, with SHA256SUMS.asc if a key was given

The same source gives the same bytes without a key: every date is SOURCE_DATE_EPOCH, or that of the last commit.
Signatures have the time of the signing.
"""

import argparse
import gzip
import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple

TOP = Path(__file__).resolve().parent.parent
NAME = "relvmoiscsi"
#: not a part of the source: made by make, Python or git
MADE = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "htmlcov", "node_modules")

INSTALL = """\
Install
-------

{origin}

In dom0 of every host of the pool, in this directory::

    sha256sum -c --quiet SHA256SUMS
    yum install ./{name}-{version}-1.noarch.rpm ./{name}-pool-{version}-1.noarch.rpm
    xe-toolstack-restart    # when all hosts have the packages, and HA is off; VMs run on
    relvmoiscsi doctor      # in dom0 of one host

``{name}-{version}-html.tar.gz`` has the pages: begin with ``install.html``.

"""
SIGNED = """\
Verify the signature first, on a machine that has the signer's public key from a place that you trust: the key in this
directory proves nothing. ``gpg --verify SHA256SUMS.asc SHA256SUMS`` must name that signer."""
UNSIGNED = """\
This release has no signature. ``SHA256SUMS`` finds a damaged copy, and proves nothing about the origin."""


def run(argv: List[str], cwd: Path = TOP, **environment: str) -> bytes:
    """Run a program that must succeed; return its stdout."""
    env = dict(os.environ, LC_ALL="C.UTF-8", TZ="UTC", **environment)
    return subprocess.run(
        argv, cwd=str(cwd), env=env, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ).stdout


def date_of_source() -> int:
    if os.environ.get("SOURCE_DATE_EPOCH"):
        return int(os.environ["SOURCE_DATE_EPOCH"])
    return int(run(["git", "-c", "safe.directory=*", "log", "-1", "--format=%ct"]))


def build_pack() -> Any:
    """The module supp-pack/build_pack.py; it lies where no package can be."""
    spec = importlib.util.spec_from_file_location("build_pack", str(TOP / "supp-pack" / "build_pack.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_tar(path: Path, members: Iterable[Tuple[str, bytes, bool]], epoch: int) -> None:
    """Write a .tar.gz that depends on names, contents and the executable bit alone."""
    unzipped = io.BytesIO()
    with tarfile.open(fileobj=unzipped, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content, is_executable in sorted(members):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), epoch
            member.mode = 0o755 if is_executable else 0o644
            tar.addfile(member, io.BytesIO(content))
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, epoch) as zipped:
        zipped.write(unzipped.getvalue())


def read_tar(path: Path) -> Dict[str, Tuple[bytes, bool]]:
    with tarfile.open(str(path)) as tar:
        files = [member for member in tar if member.isfile()]
        return {member.name: (_content(tar, member), bool(member.mode & 0o100)) for member in files}


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


def make_python(work: Path, made: Path, version: str, epoch: int) -> None:
    """The sdist and the wheel."""
    source = work / "source"
    shutil.copytree(str(TOP), str(source), ignore=MADE)
    for path in source.rglob("*"):  # the wheel has the permissions of the files
        path.chmod(0o755 if path.is_dir() or os.access(str(path), os.X_OK) and path.stat().st_mode & 0o100 else 0o644)
    setup = [sys.executable, "-W", "ignore", "setup.py", "-q"]
    run([*setup, "sdist", "-d", str(work / "dist")], source)
    run([*setup, "bdist_wheel", "-d", str(made)], source, SOURCE_DATE_EPOCH=str(epoch))
    (sdist,) = (work / "dist").glob("*.tar.gz")
    write_tar(made / sdist.name, ((name, *what) for name, what in read_tar(sdist).items()), epoch)


def make_collection(work: Path, made: Path, epoch: int) -> None:
    """The collection, with FILES.json in order: ansible-galaxy lists a directory as the file system does."""
    galaxy = str(TOP / ".venv/ansible/bin/ansible-galaxy")
    run([galaxy, "collection", "build", "ansible", "--output-path", str(work)], HOME=str(work))
    (built,) = work.glob("relvmoiscsi-pool-*.tar.gz")
    files = read_tar(built)
    listed = json.loads(files["FILES.json"][0])
    listed["files"].sort(key=lambda file: file["name"])
    manifest = json.loads(files["MANIFEST.json"][0])
    files["FILES.json"] = (json.dumps(listed, indent=1).encode(), False)
    manifest["file_manifest_file"]["chksum_sha256"] = hashlib.sha256(files["FILES.json"][0]).hexdigest()
    files["MANIFEST.json"] = (json.dumps(manifest, indent=1).encode(), False)
    write_tar(made / built.name, ((name, *what) for name, what in files.items()), epoch)


def make_pages(work: Path, made: Path, version: str, epoch: int) -> None:
    html, name = work / "html", f"{NAME}-{version}-html"
    sphinx = [str(TOP / ".venv/docs/bin/python"), "-B", "-m", "sphinx", "-q", "-E", "-b", "html"]
    run([*sphinx, "-d", str(work / "doctrees"), "docs", str(html)], SOURCE_DATE_EPOCH=str(epoch))
    paths = [path for path in html.rglob("*") if path.is_file() and path.name not in (".buildinfo", "objects.inv")]
    write_tar(
        made / f"{name}.tar.gz",
        ((f"{name}/{path.relative_to(html)}", path.read_bytes(), False) for path in paths),
        epoch,
    )


def notes(version: str, is_signed: bool) -> str:
    """RELEASE.rst: how to verify and install it, and what CHANGES.rst says of this version."""
    changes = (TOP / "CHANGES.rst").read_text(encoding="utf-8")
    title = rf"^{re.escape(version)}\b.*\n-+\n"
    found = re.search(rf"{title}((?:.*\n)*?)(?=.+\n-{{3,}}\n|\Z)", changes, re.MULTILINE)
    if found is None:
        raise SystemExit(f"CHANGES.rst has no section {version}.")
    head = f"{NAME} {version}"
    install = INSTALL.format(name=NAME, version=version, origin=SIGNED if is_signed else UNSIGNED)
    return f"{head}\n{'=' * len(head)}\n\n{install}What is new\n-----------\n{found.group(1)}"


def make_all(made: Path, work: Path, key_name: Optional[str], epoch: int) -> None:
    """Everything, in the order of the list above."""
    pack = build_pack()
    version = pack.version_of_the_source()
    run(["bash", "supp-pack/build-rpm.sh", str(work / "rpm")], SOURCE_DATE_EPOCH=str(epoch))
    result = pack.build(pack.find_rpm(work / "rpm", version), version, key_name, work / "pack")
    for path in [*result.repository.glob("*.rpm"), *result.repository.glob("RPM-GPG-KEY-*"), result.iso]:
        shutil.copyfile(str(path), str(made / path.name))
    shutil.copytree(str(result.repository), str(made / "repo"))
    make_python(work, made, version, epoch)
    make_collection(work, made, epoch)
    make_pages(work, made, version, epoch)
    (made / "RELEASE.rst").write_text(notes(version, bool(result.key)), encoding="utf-8")
    names = sorted(str(path.relative_to(made)) for path in made.rglob("*") if path.is_file())
    sums = [f"{hashlib.sha256((made / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (made / "SHA256SUMS").write_text("".join(sums), encoding="ascii")
    if result.key:
        pack.sign_file(made / "SHA256SUMS", result.key)
    pack.stamp(made, epoch)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a release in one directory.")
    parser.add_argument("--key", metavar="KEY", help="sign with this key of gpg's")
    parser.add_argument("--output", type=Path, default=TOP / "build" / "release", help="replaced as a whole")
    arguments = parser.parse_args()
    output = arguments.output.absolute()
    if output.exists() and any(output.iterdir()) and not (output / "SHA256SUMS").exists():
        raise SystemExit(f"{output} holds files that are no release. Choose another directory.")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="release.", dir=str(output.parent)) as name:
        made = Path(name) / "made"
        made.mkdir()
        os.umask(0o022)
        make_all(made, Path(name), arguments.key, date_of_source())
        if output.exists():
            shutil.rmtree(str(output))
        made.rename(output)
    print(output)


if __name__ == "__main__":
    main()
