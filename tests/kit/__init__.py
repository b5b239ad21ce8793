# SPDX-License-Identifier: LGPL-2.1-only
"""What the tests judge the engine with: disks in memory, power cuts, LUN builders and an independent reader.

Nothing here imports the engine. Of `relvmoiscsi` only `device` (the `Device` contract) and `errors` are used, so that a
mistake in the engine cannot hide behind the same mistake here.
"""
