# SPDX-License-Identifier: LGPL-2.1-only
"""LVM2's on-disk format: label, metadata areas, metadata text."""
