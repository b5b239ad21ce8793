# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN, from the word that names it to the end of a run: the only way to open, guard, lock and rewrite a LUN.

    opened.py    a source, which opens what a caller names, and the lock of a LUN; an open LUN: names, device, guard
    source.py    the source that a word names; disk_source.py: a disk; url_source.py: a LUN behind a target
    url_login.py who logs in to the target of a URL; named_device.py: the device of a name, for programs
    call.py      how a driver's call opens a LUN: over a session, or as disks
    gate.py      what each batch of reads and writes passes first: the time of the call
    guard.py     who may write: the pool's answer, and the locks of a write
    users.py     the rule for the question who uses the LUN; pool_records.py and known_sr.py find the answer
    run.py       look, recover, plan, consent, carry out, record; answer.py: the result as facts

A command, the plugin and the SR drivers call this room, and nothing below it that writes. Where a new thing belongs:

    a transport         For a command: a LunSource beside url_source.py, and its form of a word in source.py, the only
                        module that reads the word (is_path, verify_word, source_of). The class says is_path = False and
                        is_same, and its _opened_alone refuses a LUN that this machine sees as a disk. A new kind is in
                        opened.py and in answers.schema.json. For a driver: a row in sr_types.py, an executable in
                        drivers/, a package in sr_driver/ with a Transport and a CallLun, and a pair of functions in
                        call.py beside session_to_read and session_to_write, which are for iSCSI, with a row of CORRIDOR
                        in test_architecture.py
    a user in the pool  A record that names a LUN: pool_records.users_of and ids_named; a class that is new, also in
                        PoolRecords and read_pool. The rule about users: users.objection
    a user on this host host/disk/holders.py. Each open of a disk for a write asks it (exclusive.take_alone), and so
                        does each call over a session for the disks of its LUN. A URL is refused where this machine sees
                        the LUN as a disk. On another host: host/xapi/other_hosts.py, for LUNs behind adapters
    a guard             WriteGuard.hold, under the locks of each run, of commands and drivers; an image file has none.
                        CommandGuard.ask, if a person should know before the consent. named_device.py asks no guard
    a lock              Of the whole write: opened.lun_locked, also for a driver's read and a dry run; a device without
                        a SCSIid has none. Of the change of identities: WriteGuard.hold, after SM's lock, under the same
                        condition as SM's lock, a name in DISK_LOCKS: before a long copy, hold only asks
    an entrance         run.resignature_of, plan_of, recover and undo, with source.source_of, a Permission (with
                        is_asked=False where no person answers) and a consent, as plugin.resignature. answer.py has the
                        JSON. One run at a time in a process: run.recording changes a logger, and host/own_process.py
                        forks
    a refusal           Of the pool: users.objection. Of LVM's metadata text: formats/lvm/vg.py. What nobody can read:
                        resignature/reading/survey.py. Of other content or the request: engine.prepare, which recover
                        and undo do not call. Of a transport: the device, as Device.verify_copy, which engine.prepare
                        calls. Of a script alone, as for a later copy: the consent
    an override         Of a refusal of the pool: Permission, which CommandGuard.ask applies; for a driver, Question. Of
                        a refusal of the content: a field of ResignatureRequest
    a question          the consent of each entrance, which asks a person, or refuses a script
"""
