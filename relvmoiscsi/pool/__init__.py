# SPDX-License-Identifier: LGPL-2.1-only
"""A client of a whole pool: from array snapshots to attached copies on all hosts, by XenAPI alone, from anywhere.

    with connect(Where("https://pool.example", "root", password)) as calls:
        pool = records.read(calls)
        found = luns.find(calls, pool, pool.portals())
        chosen = attach.choose(found, [], [], everything=True)
        wanted = attach.Wanted(date="2026-11-22", run="nightly")
        done = attach.attach(calls, pool, chosen, wanted, found=found)

    connection   log in, on the master wherever the login was sent; TLS; what went wrong, in sentences
    calls        a session: calls, tasks that are waited for by events, another connection for another thread
    records      what the pool knows, each class read once
    lists        the XML with which a driver answers a probe
    luns         each LUN that the pool can see, named for what it is
    jobs         several at once, one failing stops no other
    attach       resignature, introduce, plug, label; every step repeatable
    attach_plan  which of these steps there are to take, as a value: for `attach`, a dry run and a prompt
    hosts        one SR on every host of the pool
    vdis         old and new VDIs, and what goes along from the old to the new
    secrets      CHAP
    lock         one client at a time works on a copy
    marks        our records in other_config
    progress     bars in a terminal, lines elsewhere

It needs the module XenAPI: `pip install .[pool]` in a clone, or dom0's own. No other part of relvmoiscsi needs it.
"""
