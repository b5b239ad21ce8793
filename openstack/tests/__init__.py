# SPDX-License-Identifier: LGPL-2.1-only
"""Tests of the layer for Cinder, run as Cinder's own are, by unittest: `make cinder`.

What Cinder's services do when they start is done here first, and our driver is known before the drivers are listed.
"""

import cinder.tests.unit  # noqa: F401

import relvmoiscsi_cinder.lvm  # noqa: F401
