# SPDX-License-Identifier: LGPL-2.1-only
"""The VHD format, as SM stores it in a logical volume."""
