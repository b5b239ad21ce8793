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
                        lun_url.is_url means an iSCSI URL: source.py, named_device.py, cli/on_lun.py and cli/reading.py
                        ask it. A new kind is in opened.py and in answers.schema.json. For a driver: a way to open in
                        call.py, with a gate and a guard; a package in sr_driver/ with a Transport and a CallLun; an
                        executable in drivers/; its type in host/xapi/whitelist.OURS, pool_records.OWN_TYPES,
                        pool/records.OWN_TYPES and doctor/driver.EXECUTABLES (`grep -r relvmohba` finds the packages).
                        What opens is a row of CORRIDOR in tests/unit/test_architecture.py, and of MAY_PASS where the
                        driver has an opener of its own
    a user in the pool  users.objection: the one rule of all entrances. users.ask_pool asks for a command and the
                        plugin, users.verify_unused for a driver
    a user on this host host/disk/holders.py says who counts: `opened_by` for an open disk (a program that only reads a
                        path of a map does not), `users_of_disks` for a path that does not answer. exclusive.take_alone
                        asks the first and refuses; take_image does so for an image file. On another host of the pool:
                        host/xapi/other_hosts.py, for LUNs behind adapters
    a guard             of a command: CommandGuard.ask, before the consent and again under the locks. Of a driver: its
                        `verify_unused`, before the LUN is opened (sr_create) and under the locks. named_device.py
                        asks nobody
    a lock              of the change of identities: guard.WriteGuard.hold, after SM's lock, which an adapter's call may
                        have already; a name in DISK_LOCKS where only a LUN that LVM sees needs it. Of each write, with
                        the copy for one VDI, which comes before those locks: where a LUN is opened for a write, in
                        disk_source.py, url_source.py, call.session_to_write and HbaLun.device_session, by a lock that
                        `guards_lun`, so that a child that hangs keeps it
    an entrance         run.resignature_of, plan_of, recover and undo with source.source_of, a consent and a Permission
                        (is_asked=False where no person answers), as plugin.resignature, which also tells `stale`;
                        answer.py has the JSON, answers.schema.json its names. One run at a time in a process:
                        run.recording changes a logger, and host/own_process.py forks. The room has rows in
                        tests/unit/test_architecture.py, and a folder in tests/unit
    a refusal           of the pool: users.objection; its override is in Permission and CommandGuard.ask, and for a
                        driver in Question. Of the device or its content: engine.prepare, which has the request and
                        refuses no recover, undo or show; its override is a field of ResignatureRequest. What nobody
                        can read: resignature/reading/survey.py. Of a property of the session: run._check_copy. Of a
                        script alone, as for a later copy: the consent of each entrance
    a question          run._ask asks the pool; the consent of each entrance asks a person, or refuses a script
"""
