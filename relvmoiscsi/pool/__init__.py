# SPDX-License-Identifier: LGPL-2.1-only
"""Client of a whole pool: attach the clones of array snapshots on all hosts, by XenAPI alone, from any machine.

An example:

    with connect(Where("https://pool.example", "root", password)) as calls:
        pool = records.read(calls)
        found = lun_search.find(calls, pool, pool.portals())
        chosen = attach.choose(found, [], [], everything=True)
        wanted = attach.AttachRequest(run="nightly")
        done = attach.attach(calls, pool, chosen, wanted, found=found)

The modules:

    connection   log in to the master, over TLS; explain why a login fails
    calls        a session: calls, tasks awaited by events, one connection for each thread
    records      a snapshot of the pool's records, each class read once
    luns         what each LUN is for the pool
    lun_answers  what the driver and the plugin tell about LUNs
    lun_search   find the LUNs that the pool sees
    jobs         run several jobs in parallel; a failed job stops no other job
    attach       resignature, introduce, plug, label; every step can be repeated
    attach_plan  the steps that a LUN still needs, as a value: for `attach`, a dry run and a prompt
    hosts        plug one SR on every host of the pool
    vdis         map old VDIs to new VDIs; copy tags and other_config
    secrets      Secrets with CHAP passwords
    lock         one client at a time works on a copy
    lock_keys    the locks of clients as keys in other_config of the pool
    marks        relvmoiscsi's records in other_config
    progress     bars in a terminal, lines elsewhere
"""
