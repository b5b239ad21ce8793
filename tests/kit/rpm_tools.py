# SPDX-License-Identifier: LGPL-2.1-only
"""Building the package of this repository, or of a copy of it that a test has changed, and looking into it."""

import glob
import os
import shutil
import subprocess
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent

#: what the package is built from
SOURCES = ("relvmoiscsi", "drivers", "udev", "supp-pack", "docs", "COPYING", "README.rst", "CHANGES.rst")


def build_rpm(output, source=TOP, **environment) -> str:
    """Run the build in `source`; gives the path of the package in the directory `output`."""
    done = subprocess.run(
        [str(source / "supp-pack" / "build-rpm.sh"), str(output)],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr.decode()
    (package,) = glob.glob(os.path.join(str(output), "relvmoiscsi-[0-9]*.rpm"))
    assert done.stdout.decode().strip() == package
    return package


def pool_package(package):
    """The path of relvmoiscsi-pool, which is built beside this package."""
    (found,) = glob.glob(os.path.join(os.path.dirname(package), "relvmoiscsi-pool-*.rpm"))
    return found


def copy_of_sources(target):
    """A copy of what the package is built from, to be changed."""
    target.mkdir(parents=True)
    for name in SOURCES:
        if (TOP / name).is_dir():
            shutil.copytree(str(TOP / name), str(target / name), ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(str(TOP / name), str(target / name))
    return target


def query(package, form):
    """The lines that rpm prints of a package file for `form`."""
    argv = ["rpm", "-qp", "--queryformat", form, package]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return done.stdout.decode().split("\n")[:-1] if form.endswith("\n]") else done.stdout.decode().split("\n")
