# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN, from the word that names it to the end of a run: the only way to open, guard, lock and rewrite a LUN.

    opened.py    a source, which opens what a caller names; an open LUN: its names, its device, its guard
    source.py    the source that a word names; disk_source.py: a disk; url_source.py: a LUN behind a target
    url_login.py who logs in to the target of a URL; named_device.py: the device of a name, for programs
    call.py      how a driver's call opens a LUN: over a session, or as disks
    gate.py      what each batch of reads and writes passes first: the time of the call
    guard.py     who may write: the pool's answer, and all locks of a write
    users.py     the rule for the question who uses the LUN; pool_records.py and known_sr.py find the answer
    run.py       look, recover, plan, consent, carry out, record; answer.py: the result as facts

A command, the plugin and the SR drivers call this room, and nothing below it that writes. Where a new thing belongs:

    a transport         a LunSource beside url_source.py, and source.source_of chooses it by the word of the caller.
                        What the word takes beside it, as a login: cli/on_lun.py. For a driver: a way to open in
                        call.py, with a gate and a guard, and a package with a Transport and a CallLun in sr_driver/
    a user in the pool  users.objection: the one rule of all entrances
    a user on this host host/disk/holders.py: an exclusive open refuses the LUN for the users that holders.py finds. On
                        another host of the pool: host/xapi/other_hosts.py, for LUNs behind adapters
    a guard             a WriteGuard with an `ask` of its own; the source, or the way to open in call.py, gives it to
                        the OpenLun
    a lock              of a write: guard.WriteGuard.hold, and a name in DISK_LOCKS where only a LUN that LVM sees needs
                        it. For as long as a LUN is open: beside the lun_lock of disk_source.py, url_source.py, call.py
    an entrance         run.resignature_of and plan_of with source.source_of and a Permission, as the plugin; answer.py
                        has the JSON. The room has a row in tests/unit/test_architecture.py
    a refusal           of the pool: users.objection; its override is in Permission and CommandGuard.ask, and for a
                        driver in Question. Of the content: the engine; its override is in ResignatureRequest. Of a
                        property of the open LUN: run._check_copy. Of a script alone, as for a later copy: the consent
                        of each entrance
    a question          run._ask asks the pool; the consent of each entrance asks a person, or refuses a script
"""
