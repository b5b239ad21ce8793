# SPDX-License-Identifier: LGPL-2.1-only
"""Cinder: new identities for volumes that hold an SR of XenServer or XCP-ng and are copies of another volume."""
