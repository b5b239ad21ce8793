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
                        lun_url.is_url means an iSCSI URL: cli/on_lun.py and cli/reading.py ask it for the login, the
                        next step and the list of LUNs. For a driver: a way to open in call.py, with a gate and a guard,
                        a package in sr_driver/ with a Transport and a CallLun, an executable in drivers/, the type in
                        host/xapi/whitelist.py. What opens and writes is a row of CORRIDOR in the test below
    a user in the pool  users.objection: the one rule of all entrances
    a user on this host host/disk/exclusive.py: `take_alone` refuses a disk that another program has open, and names the
                        program by holders.py. On another host of the pool: host/xapi/other_hosts.py, for LUNs behind
                        adapters
    a guard             what a WriteGuard is given as `verify_unused` is asked under the locks, of a command and of a
                        driver. `ask` is before the consent; a driver asks in sr_create before the LUN is opened
    a lock              of a write: guard.WriteGuard.hold, and a name in DISK_LOCKS where only a LUN that LVM sees needs
                        it. For as long as a LUN is open, with the copy for one VDI, which is before the locks of the
                        write: beside the lun_lock of disk_source.py, url_source.py, call.py
    an entrance         run.resignature_of, plan_of, recover and undo with source.source_of and a Permission, as the
                        plugin; answer.py has the JSON. One run at a time in a process: run.recording changes a logger,
                        and host/own_process.py forks. The room has rows in tests/unit/test_architecture.py, and a
                        folder in tests/unit
    a refusal           of the pool: users.objection; its override is in Permission and CommandGuard.ask, and for a
                        driver in Question. Of the device or its content: the engine (reading/survey.py refuses a LUN
                        that is too small); its override is in ResignatureRequest. Of a property of the session:
                        run._check_copy. Of a script alone, as for a later copy: the consent of each entrance
    a question          run._ask asks the pool; the consent of each entrance asks a person, or refuses a script
"""
