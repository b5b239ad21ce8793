#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-only
"""Make the installation media from the RPM: an update for xapi, and a repository for yum and dnf.

    build/pack/relvmoiscsi-<version>.iso     the update, for `xe-install-supplemental-pack` and `xe update-upload`.
        update.xml  update.xml.asc           description of the update; xapi checks the signature before reading.
        Packages/relvmoiscsi-*.rpm           the payload.
        Packages/update-relvmoiscsi-*.rpm    requires the payload, records the update on the host.
        Packages/control-relvmoiscsi-*.rpm   requires what the payload requires of a host; installed first.
        repodata/repomd.xml  repomd.xml.asc  names and checksums of all files above, except update.xml.
    build/pack/repo/                         the payload, relvmoiscsi-pool, repodata, relvmoiscsi.repo for a host.
    build/pack/RPM-GPG-KEY-relvmoiscsi       the public key, also in repo/, if a key was given.

The same RPM gives the same bytes: every date is SOURCE_DATE_EPOCH, or the build time of the RPM. Signatures contain the
time of the signing. So signed RPMs, and all files with checksums of signed RPMs, differ in each build.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
TOP = HERE.parent

NAME = "relvmoiscsi"
DESCRIPTION = "Gives LUN clones new identities: SR.create of the type relvmoiscsi"
#: xapi finds the SM plugin and registers its type when xapi starts.
GUIDANCE = "restartXAPI"
#: import-update-key copies a key file to /etc/pki/rpm-gpg under the same name, and yum looks for this name there.
KEY_FILE = "RPM-GPG-KEY-" + NAME
#: An update keeps its UUID forever, and no two updates share a UUID.
UUID_NAMESPACE = uuid.UUID("65057268-c3b2-5568-8db4-3e1f7285fe6e")

#: program: Debian package
PROGRAMS = {"rpm": "rpm", "rpmbuild": "rpm", "createrepo_c": "createrepo-c", "xorriso": "xorriso"}
PROGRAMS_TO_SIGN = {"gpg": "gnupg", "rpmsign": "rpm"}

#: OpenPGP number of the algorithm that GnuPG 2.0 and RPM 4.11 of EL7, and later versions, can verify
RSA = "1"
MIN_RSA_BITS = 2048


class PackError(Exception):
    """Nothing was made; the text gives the reason and the next step."""


class Package(NamedTuple):
    """The RPM with the payload, as its header describes the RPM.

    `size` is the installed size in bytes. `requires` lists the requirements on a host.
    """

    path: Path
    name: str
    version: str
    release: str
    arch: str
    size: int
    build_time: int
    requires: List[str]


class Key(NamedTuple):
    """A secret key that can sign; `armored` is its public half."""

    fingerprint: str
    armored: bytes

    @property
    def gpg_name(self) -> str:
        """Return the name of exactly this key: RPM of EL7 cannot verify a signature of a subkey."""
        return self.fingerprint + "!"


class Result(NamedTuple):
    """The files of a build."""

    iso: Path
    repository: Path
    uuid: str
    key: Optional[Key]


# Content of the files. ----------------------------------------------------------------------------------------------


def update_uuid(version: str, release: str) -> str:
    return str(uuid.uuid5(UUID_NAMESPACE, f"{NAME}-{version}-{release}"))


def update_xml(package: Package, signed: bool) -> str:
    """Return update.xml, ASCII and one element per line. Source: ocaml/xapi/xapi_pool_update.ml, parse_update_info."""
    update = ElementTree.Element("update")
    update.set("name-label", NAME)
    update.set("version", package.version)
    update.set("uuid", update_uuid(package.version, package.release))
    update.set("installation-size", str(package.size))
    update.set("after-apply-guidance", GUIDANCE)
    update.set("control", "control-" + NAME)
    if signed:
        update.set("key", KEY_FILE)
    description = ElementTree.SubElement(update, "name-description")
    description.text = DESCRIPTION
    description.tail = update.text = "\n"
    return str(ElementTree.tostring(update, encoding="us-ascii"), "ascii") + "\n"


def record_script(update: str, identifier: str) -> str:
    """Return the script that update-relvmoiscsi runs at the end of a transaction.

    xapi fails on an incomplete record, so the script writes a new file and renames the file. xapi ignores names that
    are no UUIDs.
    """
    new, old = f"/var/update/applied/.{identifier}.new", f"/var/update/applied/{identifier}"
    return f"""\
cd / && mkdir -p /var/update/applied
cat >{new} <<'END_OF_UPDATE' && mv -f {new} {old}
{update}END_OF_UPDATE
"""


def comps_xml() -> str:
    """Return the group that xapi installs: `yum upgrade @update`, `dnf install @update`."""
    return f"""\
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE comps PUBLIC "-//Red Hat, Inc.//DTD Comps info//EN" "comps.dtd">
<comps>
  <group>
    <id>update</id>
    <name>{NAME}</name>
    <description>{DESCRIPTION}</description>
    <default>false</default>
    <uservisible>true</uservisible>
    <packagelist>
      <packagereq type="mandatory">update-{NAME}</packagereq>
    </packagelist>
  </group>
</comps>
"""


def repo_file(signed: bool) -> str:
    """Return the file for /etc/yum.repos.d. XCP-ng wants foreign repositories disabled by default."""
    text = """\
# Copy this file to /etc/yum.repos.d, say in baseurl where the directory is (file:// or http://), and on every host:
#   yum install --enablerepo={0} {0}
[{0}]
name={0}
baseurl=file:///root/{0}-repo
enabled=0
gpgcheck={1}
repo_gpgcheck={1}
""".format(NAME, int(signed))
    return text + (f"gpgkey=file:///etc/pki/rpm-gpg/{KEY_FILE}\n" if signed else "")


# Calls of programs. -------------------------------------------------------------------------------------------------


def run(what: str, argv: List[str], env: Optional[Dict[str, str]] = None) -> bytes:
    """Run a program that must succeed; return its stdout. `what` starts the sentence about a failure."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, env=env)
    if done.returncode != 0:
        output = (done.stderr + done.stdout).decode(errors="replace").strip()
        raise PackError(f"{what}: {argv[0]} ended with exit status {done.returncode}.\n{output}")
    return bytes(done.stdout)


def need_programs(programs: Dict[str, str]) -> None:
    missing = sorted(program for program in programs if shutil.which(program) is None)
    if missing:
        packages = " ".join(sorted({programs[program] for program in missing}))
        raise PackError("{} cannot be found. On Debian: apt-get install {}".format(" and ".join(missing), packages))


def version_of_the_source() -> str:
    text = (TOP / NAME / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise PackError(f'{NAME}/__init__.py has no line `__version__ = "..."`.')
    return found.group(1)


def find_rpm(directory: Path, version: str) -> Path:
    found = sorted(directory.glob(f"{NAME}-{version}-*.noarch.rpm"))
    if not found:
        raise PackError(f"{directory} has no {NAME}-{version}-*.noarch.rpm. Run `make rpm`.")
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise PackError(f"{directory} has {len(found)} packages of version {version}: {names}. Name one with --rpm.")
    return found[0]


def inspect(rpm: Path, version: str) -> Package:
    """Check the checksums of the RPM and return the package; an earlier signature is ignored."""
    if not rpm.is_file():
        raise PackError(f"{rpm} does not exist. Run `make rpm`.")
    run(
        f"{rpm} is damaged or was changed after it was built. Build it again: `make rpm`",
        ["rpmkeys", "--checksig", "--nosignature", "--define", "_pkgverify_level digest", str(rpm)],
    )
    query = "%{name}\n%{version}\n%{release}\n%{arch}\n%{longsize}\n%{buildtime}"
    answer = run(f"{rpm} cannot be read", ["rpm", "-qp", "--nosignature", "--qf", query, str(rpm)])
    name, rpm_version, release, arch, size, build_time = answer.decode().split("\n")
    package = Package(rpm, name, rpm_version, release, arch, int(size), int(build_time), required_of_hosts(rpm))
    if (name, rpm_version, arch) != (NAME, version, "noarch"):
        raise PackError(
            f"{rpm} is {name} {rpm_version} for {arch}; the pack is made of {NAME} {version} for noarch. Run `make "
            "rpm`."
        )
    return package


def required_of_hosts(rpm: Path) -> List[str]:
    """Return the requirements that neither RPM nor the package itself provides."""
    provided, required = (
        run(f"{rpm} cannot be read", ["rpm", "-qp", "--nosignature", what, str(rpm)]).decode().splitlines()
        for what in ("--provides", "--requires")
    )
    own = {line.split(" ")[0] for line in provided}
    return sorted({line for line in required if not line.startswith("rpmlib(") and line.split(" ")[0] not in own})


def signing_key(name: str) -> Key:
    """Return the single secret key that `name` stands for, if hosts can verify its signatures."""
    if sys.stdin.isatty():
        os.environ.setdefault("GPG_TTY", os.ttyname(0))  # gpg may ask for a passphrase
    home = os.environ.get("GNUPGHOME") or "~/.gnupg"
    try:
        listing = run("?", ["gpg", "--batch", "--with-colons", "--list-secret-keys", "--", name]).decode()
    except PackError as error:
        raise PackError(
            f"There is no secret key `{name}` in {home}. `gpg --list-secret-keys` lists what there is; "
            "GNUPGHOME=<directory> names another keyring."
        ) from error
    records = [line.split(":") for line in listing.splitlines()]
    primary = [record for record in records if record[0] == "sec"]
    fingerprint = next(record[9] for record in records if record[0] == "fpr")
    if len(primary) != 1:
        raise PackError(f"`{name}` stands for {len(primary)} secret keys in {home}. Give the fingerprint of one.")
    validity, bits, algorithm, capabilities = (primary[0][field] for field in (1, 2, 3, 11))
    problem = None
    if validity in ("r", "e", "d", "i") or "D" in capabilities:
        problem = "is revoked, expired, disabled or invalid"
    elif algorithm != RSA or int(bits) < MIN_RSA_BITS:
        problem = (
            f"is no RSA key of {MIN_RSA_BITS} bits or more; GnuPG and RPM of XenServer 8 and XCP-ng 8.3 verify no "
            "others"
        )
    elif "s" not in capabilities:
        problem = "can sign only by its subkeys; RPM of XenServer 8 and XCP-ng 8.3 verifies no signature of a subkey"
    if problem:
        raise PackError(f"The key `{name}` ({fingerprint}) {problem}.")
    armored = run("The public key cannot be exported", ["gpg", "--batch", "--armor", "--export", fingerprint])
    return Key(fingerprint, armored)


def sign_rpm(rpm: Path, key: Key) -> None:
    """Sign the header for current RPM, and header and payload for RPM of EL7."""
    run(
        f"{rpm.name} cannot be signed",
        ["rpmsign", "--addsign", "--rpmv3", "--define", "__gpg " + str(shutil.which("gpg"))]
        + ["--define", "_gpg_name " + key.gpg_name, "--define", "_gpg_digest_algo sha256", str(rpm)],
    )


def sign_file(path: Path, key: Key) -> None:
    """Write the detached signature, `<path>.asc`."""
    run(
        f"{path.name} cannot be signed",
        ["gpg", "--batch", "--yes", "--armor", "--detach-sign", "--digest-algo", "SHA256"]
        + ["--local-user", key.gpg_name, "--output", str(path) + ".asc", str(path)],
    )


def sign_packages(rpms: List[Path], key_name: str) -> Key:
    """Sign these packages, and put the public key beside them: `make rpm` with a key."""
    need_programs(PROGRAMS_TO_SIGN)
    key = signing_key(key_name)
    for rpm in rpms:
        sign_rpm(rpm, key)
        (rpm.parent / KEY_FILE).write_bytes(key.armored)
    return key


def build_record_rpms(package: Package, script: str, work: Path, epoch: int) -> List[Path]:
    """Build update-relvmoiscsi and control-relvmoiscsi. A separate HOME excludes the settings of the user."""
    topdir = work / "rpmbuild"
    (topdir / "SOURCES").mkdir(parents=True)
    (topdir / "SOURCES" / "posttrans").write_text(script, encoding="ascii")
    macros = {
        "_topdir": str(topdir),
        "_rpmdir": str(topdir / "RPMS"),
        "_build_name_fmt": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
        "_buildhost": "localhost",
        "_binary_payload": "w9.gzdio",
        "use_source_date_epoch_as_buildtime": "1",
        "clamp_mtime_to_source_date_epoch": "1",
        "source_date_epoch_from_changelog": "0",
        "pack_version": package.version,
        "pack_release": package.release,
        "pack_uuid": update_uuid(package.version, package.release),
    }
    if package.requires:
        macros["pack_requires"] = ", ".join(package.requires)
    defines = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
    environment = dict(os.environ, HOME=str(work), SOURCE_DATE_EPOCH=str(epoch))
    spec = str(HERE / "update.spec")
    run("The packages for xapi cannot be built", ["rpmbuild", "-bb"] + defines + [spec], env=environment)
    return sorted((topdir / "RPMS").glob("*.rpm"))


def make_repodata(directory: Path, epoch: int, groups: Optional[Path], key: Optional[Key]) -> None:
    """Index the RPMs below a directory. gzip, because yum and the host installer read no newer compression."""
    stamp(directory, epoch)
    argv = ["createrepo_c", "--quiet", "--no-database", "--workers", "1", "--checksum", "sha256"]
    argv += ["--compress-type", "gz", "--general-compress-type", "gz"]
    argv += ["--revision", str(epoch), "--set-timestamp-to-revision"]
    argv += ["--groupfile", str(groups)] if groups else []
    run("The packages cannot be indexed", argv + [str(directory)])
    if key:
        sign_file(directory / "repodata" / "repomd.xml", key)


def make_iso(root: Path, iso: Path, package: Package, epoch: int) -> None:
    """Make the ISO: Linux reads Rock Ridge, XenCenter reads Joliet."""
    argv = ["xorriso", "-no_rc", "-as", "mkisofs", "-quiet", "-r", "-J", "-joliet-long"]
    argv += ["-V", f"{NAME}-{package.version}"[:32], "-A", update_uuid(package.version, package.release)]
    argv += ["-o", str(iso), str(root)]
    run("The ISO cannot be made", argv, env=dict(os.environ, SOURCE_DATE_EPOCH=str(epoch)))


def stamp(directory: Path, epoch: int) -> None:
    """Set the same dates and permissions for every user and build."""
    for path in [directory] + sorted(directory.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(str(path), (epoch, epoch))


# The whole build. ---------------------------------------------------------------------------------------------------


def build(rpm: Path, version: str, key_name: Optional[str], output: Path) -> Result:
    """Make all files beside the output, then replace the output. After a failure, the output is unchanged."""
    need_programs(PROGRAMS)
    if key_name is not None:
        need_programs(PROGRAMS_TO_SIGN)
    package = inspect(rpm, version)
    key = signing_key(key_name) if key_name is not None else None
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or package.build_time)
    check_output(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=output.name + ".", dir=str(output.parent)) as name:
        work = Path(name)
        made = work / "made"
        make_all(package, key, epoch, work, made)
        replace(output, made, work / "old")
    iso = output / f"{NAME}-{version}.iso"
    return Result(iso, output / "repo", update_uuid(version, package.release), key)


def make_all(package: Package, key: Optional[Key], epoch: int, work: Path, made: Path) -> None:
    root, repository = work / "root", made / "repo"
    (root / "Packages").mkdir(parents=True)
    repository.mkdir(parents=True)

    update = update_xml(package, signed=key is not None)
    script = record_script(update, update_uuid(package.version, package.release))
    for rpm in [package.path] + build_record_rpms(package, script, work, epoch):
        shutil.copyfile(str(rpm), str(root / "Packages" / rpm.name))
        if key:
            sign_rpm(root / "Packages" / rpm.name, key)

    (root / "update.xml").write_text(update, encoding="ascii")
    if key:
        sign_file(root / "update.xml", key)
    (work / "comps.xml").write_text(comps_xml(), encoding="ascii")
    make_repodata(root, epoch, work / "comps.xml", key)
    stamp(root, epoch)
    make_iso(root, made / f"{NAME}-{package.version}.iso", package, epoch)

    shutil.copyfile(str(root / "Packages" / package.path.name), str(repository / package.path.name))
    beside = package.path.with_name(package.path.name.replace(NAME, NAME + "-pool", 1))
    if beside.exists():
        shutil.copyfile(str(beside), str(repository / beside.name))
        if key:
            sign_rpm(repository / beside.name, key)
    make_repodata(repository, epoch, None, key)
    (repository / (NAME + ".repo")).write_text(repo_file(signed=key is not None), encoding="ascii")
    if key:
        for directory in (made, repository):
            (directory / KEY_FILE).write_bytes(key.armored)
    stamp(made, epoch)


def check_output(output: Path) -> None:
    """Raises PackError where the output, which is replaced as a whole, holds other files."""
    ours = {"repo", KEY_FILE}
    names = sorted(os.listdir(str(output))) if output.exists() else []
    foreign = [name for name in names if name not in ours and not re.match(NAME + r"-.*\.iso$", name)]
    if foreign:
        raise PackError(
            f"{output} holds a file that does not belong to a pack: {foreign[0]}. Choose another directory."
        )


def replace(output: Path, made: Path, old: Path) -> None:
    if output.exists():
        output.rename(old)
    made.rename(output)


def explain(result: Result) -> str:
    """Return the list of files, and the next steps for the administrator."""
    lines = [f"update {result.uuid} in {result.iso}", f"repository in {result.repository}"]
    if result.key:
        lines += [
            f"signed by {result.key.fingerprint}",
            f"Once on every host:  /opt/xensource/debug/import-update-key {KEY_FILE}",
            f"Then on every host:  xe-install-supplemental-pack {result.iso.name}",
            "and, when it suits:  xe-toolstack-restart",
        ]
    else:
        lines += [
            "NOT SIGNED. xapi refuses this ISO: INVALID_UPDATE, Invalid signature. A host trusts the keys that its",
            "administrator imports, so sign the ISO with your key:",
            "    gpg --quick-generate-key 'Updates of our pools' rsa3072 sign never",
            "    make pack KEY='Updates of our pools'",
            "The repository is not signed either: yum installs the packages without checking their origin.",
        ]
    return "\n".join(lines)


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Make the update ISO and the yum repository from the RPM.")
    parser.add_argument("--rpm", type=Path, metavar="FILE", help="default: the one in build/rpm, by `make rpm`")
    parser.add_argument("--key", metavar="KEY", help="sign with this key: a fingerprint, a key id or a user id")
    parser.add_argument(
        "--sign", type=Path, nargs="+", metavar="RPM", help="sign these packages with --key, and make no pack"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIRECTORY",
        default=TOP / "build" / "pack",
        help="replaced as a whole; default: build/pack",
    )
    arguments = parser.parse_args(argv)
    if arguments.sign and not arguments.key:
        parser.error("--sign needs --key")
    what = "No package was signed" if arguments.sign else "No pack was made"
    try:
        if arguments.sign:
            print(f"signed by {sign_packages(arguments.sign, arguments.key).fingerprint}")
            return 0
        version = version_of_the_source()
        rpm = arguments.rpm or find_rpm(TOP / "build" / "rpm", version)
        result = build(rpm, version, arguments.key, arguments.output)
    except PackError as error:
        print(f"build_pack.py: {error}\n{what}.", file=sys.stderr)
        return 1
    print(explain(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
