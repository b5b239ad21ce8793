# SPDX-License-Identifier: LGPL-2.1-only
"""The MGT volume: SM's own metadata of an SR and its VDIs."""
