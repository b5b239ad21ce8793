# SPDX-License-Identifier: LGPL-2.1-only
"""The SR driver: xapi's call in, the engine's work, one XML-RPC document out."""
