# SPDX-License-Identifier: LGPL-2.1-only
"""Cinder: volumes that hold an SR of XenServer or XCP-ng get new identities when they are made from another one."""
