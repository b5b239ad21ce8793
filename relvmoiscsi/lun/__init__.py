# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN, from the word that names it to the end of a run: the only way to open, guard, lock and rewrite a LUN.

    source.py    what a caller names: an image file, a disk of this machine, a URL
    opened.py    an open LUN: its names, its device behind the gate, its guard
    gate.py      what each batch of reads and writes passes first: the time of the call, a signal
    guard.py     who may write: the pool's answer, and the locks of a write
    users.py     the rule for the question who uses the LUN; pool_records.py and known_sr.py find the answer
    run.py       look, settle, plan, consent, carry out, record

A command, the plugin and the SR drivers call this room, and nothing below it that writes.
"""
