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

    a transport of the command
        Its room, beside iscsi/, has a Device: before each batch it verifies the name of the LUN, and it has a
        device.Fence. A LunSource beside url_source.py opens the device: is_path = False, is_same, may_open_after; its
        OpenLun has the SR type and the PBD that attach the LUN; its _opened_alone refuses a LUN that this machine sees
        as a disk. The LUN must tell a SCSIid: the pool and the locks know it by that alone. source.py reads the word
        (is_path, verify_word, source_of). opened.py and answers.schema.json have its kind, cli/on_lun.py the options
        of a login, cli/listing.py what `show` lists where the word names a whole target. test_architecture.py has a
        row for the room in MAY_IMPORT, and for the function that opens the device in CORRIDOR.
    a transport of a driver
        A row in sr_types.py, an executable in drivers/, a package in sr_driver/ with a Transport and a CallLun, and a
        pair of functions in call.py beside session_to_read and session_to_write, which are for iSCSI; CORRIDOR as
        above. These name both types themselves: pool/records.py (portals), doctor/driver.py, supp-pack/.
    a user in the pool
        A record that names a LUN: pool_records.users_of and ids_named; a class of records that is new, also PoolRecords
        and read_pool. The rule about users: users.objection.
    a user on this host
        A claim of the kernel makes the exclusive open fail; _Devices.claims in host/disk/holders.py has the words for
        it. A mere open does not: _Devices.opens finds it, for exclusive.take_alone. Who removes disks asks both
        (users_of_disks). On other hosts, for LUNs behind adapters: host/xapi/other_hosts.py.
    a guard
        WriteGuard.hold, under the locks: each write of commands and drivers on a LUN passes it; so does a run that is
        about to copy one VDI, without locks and names. A guard for an image file goes into ImageGuard.held.
        named_device.py asks no guard, as docs/python.rst says. CommandGuard.ask, if a person should know before the
        consent; --not-in-use overrides what it objects.
    a lock
        Of the whole write: opened.lun_locked, before or behind the lock of the LUN. It also serves each read of a
        driver and each dry run of a command; sr_driver/hba/other_luns.py calls it for LUNs of others, without a wait.
        Of the change of identities alone: WriteGuard.hold, behind SM's lock, which a call through adapters has held
        since its scan. SM's and LVM's locks are taken only on a LUN that LVM of this machine sees (DISK_LOCKS).
        A new lock of either kind has a row in CORRIDOR and ONE_PLACE.
    a refusal
        Of the pool: users.objection. Of LVM's metadata text: formats/lvm/vg.py, which recover and undo read as well. Of
        what nobody can read: resignature/reading/survey.py. Of other content or of the request: engine.prepare, which
        recover and undo do not call. Of a session: iscsi/lun_opening.py at its begin, iscsi/target_sessions.py at each
        login. Of the device: its open, with Device.objection for a dry run; of one VDI on it, Device.verify_copy. Of a
        script alone, as for a later copy: the consent.
    an override
        Of a refusal of the pool: Permission, which CommandGuard.ask applies; for a driver, Question. Of a refusal of
        the content: a field of ResignatureRequest.
    a question
        The consent of each entrance, which asks a person, or refuses a script. It shows what the run destroys
        (report.loss_of), and whether the LUN is a later copy (answer.unsaid_copy).
    an entrance
        run.resignature_of, plan_of, recover and undo, with source.source_of, a Permission (with is_asked=False where
        no person answers) and a consent. answer.py has the JSON. One run at a time in a process: run.recording changes
        a logger, and host/own_process.py forks. A program outside the package runs the command (openstack/).
"""
