# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN, from the word that names it to the end of a run: the only way to open for a write, guard, lock and rewrite it.

    opened.py    a source, which opens what a caller names, and the lock of a LUN; an open LUN: names, device, guard
    source.py    the source that a word names; disk_source.py: a disk; url_source.py: a LUN behind a target
    lun_url.py   the form of a URL; url_login.py: who logs in to its target; named_device.py: the device, for programs
    call.py      how a driver's call opens a LUN: over a session, or as disks
    gate.py      what each batch over a session, or in a child that writes, passes first: the time of the call
    guard.py     who may write: the pool's answer, and the locks of a write
    users.py     the rule for the question who uses the LUN; pool_records.py and known_sr.py find the answer
    run.py       look, recover, plan, consent, carry out, record; proposals.py: what a caller consents to
    answer.py    the result of a run as facts

A command, the plugin and the SR drivers call this room, and nothing below it that writes. Where a new thing belongs:

    a transport of the command
        Its room, beside iscsi/, has a Device: before each batch it verifies the name and the size (verify_size) of the
        LUN, each write looks at its Fence, and end_late_writes ends the writes of an earlier run. A LunSource beside
        url_source.py opens the device: is_path = False, is_same, may_open_after, a GatedDevice with a SessionGate; its
        OpenLun has the SR type and the PBD that attach the LUN; its _opened_alone refuses a LUN that this machine sees
        as a disk. The pool and the locks know the LUN by its SCSIid alone, and this machine's disks of a LUN are SCSI
        disks (sd*) alone: disks_with, host/disk/udev.py. source.py reads the word (is_path, verify_word, source_of).
        opened.py and answers.schema.json have its kind, and SessionOptions and cli/on_lun.py what its login needs.
        cli/listing.py lists what is behind a UrlSource. MAY_IMPORT and CORRIDOR of test_architecture.py have rows for
        its room.
    a transport of a driver
        A row in sr_types.py, an executable in drivers/, a package in sr_driver/ with a Transport and a CallLun, and a
        pair of functions in call.py beside session_to_read and session_to_write, which are for iSCSI; the rest as
        above. Decide what only adapters do today: HbaLun asks the other hosts, and HbaConfig asks the caller whether
        the LUN is a clone (is_meant). These name a type themselves: pool/records.py (ProbePortal), cli/on_lun.py,
        plugin_targets.py, doctor/pool.py, supp-pack/, tools/check.sh; doctor/driver.py asks one driver for all.
    a user in the pool
        A field of a record that names a LUN: pool_records._pairs_of, and a row in USERS of test_lun_users.py. A class
        of records: PoolRecords, read_pool, users_of, ids_named. The rule about users: users.objection. What stays
        visible after a scan: read_srs, which reads no record that a vm-admin can write.
    a user on this host
        A claim of the kernel makes the exclusive open fail; _Devices.claims in host/disk/holders.py has the words for
        it. A mere open does not: _Devices.opens finds it, for exclusive.take_alone. Who removes disks asks both
        (users_of_each), and so does a dry run (exclusive.in_use). For an image file: users_of_file. Other
        hosts are asked for LUNs behind adapters alone.
    a guard
        WriteGuard.hold, in its in_state, behind the locks: each write of commands and drivers on a LUN passes it; so
        does a run that is about to copy one VDI, without locks and names. ImageGuard.held, for an image file.
        named_device.py asks no guard, as docs/python.rst says. A dry run tells what Guard.ask objects, and not what
        hold refuses; --not-in-use overrides what CommandGuard.ask objects, and Cinder's layer always says it.
    a lock
        Of the whole write: opened.lun_locked, which also serves CallLun.read and each dry run of a command.
        It is a lock for each LUN: a call holds its own while sr_driver/hba/other_luns.py tries those of others. It
        raises Busy, which a probe answers; guards_lun=True keeps it for a child that hangs; an ordinary user over the
        network can take it. Of the change of identities alone: WriteGuard.hold, behind LVM's locks: the order is lock
        of the LUN, SM's, LVM's. hold takes the locks that the list of its caller names: none for a URL, none for a LUN
        that LVM of this machine does not see. A new lock has a row in CORRIDOR and ONE_PLACE, which no test misses.
    a refusal
        Of the pool: users.objection. Of LVM's text: formats/lvm/vg.py; recover and undo read it as well, so a LUN whose
        run was cut after its commit is not finished then. What a new run alone must refuse: engine.prepare. Of a label,
        a metadata area or a VG that is no SR's: resignature/reading/survey.py. Of a session: iscsi/login.py offers the
        keys, TargetSessions._log_in sees each answer; log_in_again repeats a plain Refused until the deadline, and
        passes on Unproven. Of the device: before BlockDevice, ImageFile and iscsi.open_lun give it, as Device.objection
        for a dry run; of one VDI on it, Device.verify_copy. Of a script alone, as for a later copy: the consent.
    an override
        Of a refusal of the pool: Permission, which CommandGuard.ask applies; for a driver, Question. Of a refusal of
        the content: a field of ResignatureRequest.
    a question
        The consent of each entrance, which asks a person, or refuses a script. The consent of the command also shows
        what the run destroys (report.loss_of), and whether the LUN is a later copy (answer.unsaid_copy).
    an entrance
        run.resignature_of, plan_of, recover and undo, with source.source_of (only_block, where the caller has fewer
        rights than the process), a Permission and a consent. With is_asked=True, the consent asks for the SCSIid where
        no pool has answered, as WriteCommand does: CommandGuard relies on it. answer.py has the JSON; the entrance
        tells `stale`. One run at a time in a process: run.recording changes a logger, and host/own_process.py forks.
        The package needs the standard library alone. So an entrance for D-Bus or OpenStack runs the command.
"""
