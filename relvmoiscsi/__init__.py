# SPDX-License-Identifier: LGPL-2.1-only
"""Resignature array clones of LVM-based storage repositories of XenServer and XCP-ng."""

__version__ = "0.1.0"
