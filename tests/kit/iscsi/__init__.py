# SPDX-License-Identifier: LGPL-2.1-only
"""Targets that judge an initiator. Nothing here imports relvmoiscsi.iscsi: two readings of RFC 7143 meet in the tests.

hostile.py      HostileTarget: a scripted target in threads of this process. HOW is in its docstring
quirks.py       what it does wrong, by name; acts.py: what the names do; options.py: what it is like
lun.py          LUNs with a write cache; scsi.py: commands to them
connection.py   socket and numbers; login.py, negotiation.py, full_feature.py: its half of RFC 7143; wire.py: PDUs
watch.py        what an initiator may not do
proxy.py        CuttingProxy: forwards to any target, and cuts or stops
programs.py     tgt and istgt of the distribution, started on loopback
"""
