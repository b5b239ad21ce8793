# SPDX-License-Identifier: LGPL-2.1-only
"""What the command, the plugin and the SR drivers share before a write to a LUN."""
