# SPDX-License-Identifier: LGPL-2.1-only
"""The QCOW2 format, as XCP-ng's SM stores it in a logical volume."""
