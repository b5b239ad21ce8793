# SPDX-License-Identifier: LGPL-2.1-only
"""The lab: a host with iSCSI target and initiator, multipath and LVM, to be used and broken by tests inside the VM.

Nothing here knows relvmoiscsi; it judges it. `kit.lab.bench.Lab` is what a test gets as the fixture `lab`.
"""
