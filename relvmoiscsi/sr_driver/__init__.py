# SPDX-License-Identifier: LGPL-2.1-only
"""The SR driver: take a call of xapi, have the engine do the work, print an XML-RPC document."""
