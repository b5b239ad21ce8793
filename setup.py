# SPDX-License-Identifier: LGPL-2.1-only
"""Installs the package and the command, which need nothing beyond the standard library."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent


def text(name):
    """The content of a file beside this one, empty if it is not there."""
    path = HERE / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


def version():
    """The one version there is; the package is not imported to get it."""
    found = re.search(r'^__version__ = "([^"]+)"$', text("relvmoiscsi/__init__.py"), re.MULTILINE)
    if found is None:
        raise SystemExit('relvmoiscsi/__init__.py has no line `__version__ = "..."`.')
    return found.group(1)


setup(
    name="relvmoiscsi",
    version=version(),
    description="Resignature array clones of LVM-based storage repositories of XenServer and XCP-ng",
    long_description=text("README.rst"),
    long_description_content_type="text/x-rst",
    license="LGPL-2.1-only",
    packages=find_packages(include=["relvmoiscsi", "relvmoiscsi.*"]),
    package_data={"relvmoiscsi": ["py.typed", "answers.schema.json"]},  # for type checkers; for readers of --json
    python_requires=">=3.6",
    extras_require={"pool": ["tqdm"]},  # for bars of progress of `relvmoiscsi pool`
    entry_points={"console_scripts": ["relvmoiscsi = relvmoiscsi.__main__:run"]},
    zip_safe=False,
    classifiers=[
        "Environment :: Console",
        "Intended Audience :: System Administrators",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.6",
        "Topic :: System :: Systems Administration",
    ],
)
