# SPDX-License-Identifier: LGPL-2.1-only
"""Installs the layer for Cinder; the engine and the command are the distribution `relvmoiscsi`."""

from setuptools import setup

VERSION = "0.1.0"  # that of relvmoiscsi; a test compares

setup(
    name="relvmoiscsi-cinder",
    version=VERSION,
    description="Cinder volumes that hold an SR of XenServer or XCP-ng get new identities when they are copied",
    license="LGPL-2.1-only",
    packages=["relvmoiscsi_cinder"],
    data_files=[("etc/cinder/rootwrap.d", ["etc/cinder/rootwrap.d/relvmoiscsi.filters"])],
    python_requires=">=3.11",
    install_requires=["relvmoiscsi==" + VERSION, "cinder"],
)
