# SPDX-License-Identifier: LGPL-2.1-only
"""A simulated XenServer / XCP-ng pool: a XenAPI server that runs storage drivers exactly as xapi does.

It judges the driver and imports nothing of relvmoiscsi; kit/lun_world.py, which puts the engine behind it, does. What
it knows comes from docs/host.rst and the sources named there; a module says where it is simpler than the real thing.

    datamodel.py   xapi's own data model, from a table: classes, fields, calls, roles, errors; all else is refused
    wire.py        the XML that xapi writes to a driver, and how strictly it reads the answer
    database.py    records: pool, host, SR, PBD, VDI, secret, SM, task; generic get, set, add_to, remove_from
    plugins.py     the directory of drivers: names, white list, sr_get_driver_info
    runner.py      one driver call: argv, environment, files, the log of every call; errors as XenAPI has them
    storage.py     SR, PBD, VDI calls in xapi's order, with its secrets and its locks
    vms.py         VM, VBD, VIF, network and VDI calls
    transfer.py    GET and PUT: records of a VM out and in, matched as xapi does; bytes into a VDI
    host_plugins.py   host.call_plugin: executables in a directory of each host
    api.py         sessions, tasks and the dispatch of a XenAPI call
    server.py      XML-RPC and JSON-RPC over HTTP on a unix socket and on TCP
    jsonrpc.py     the same calls as JSON
    near.py        the same for clients in this process, without a network
    simulator.py   Pool: all of it together, for tests
    client.py      clients: the XenAPI package on either transport, `xe`-like error text
    cloudstack.py  CloudStack's ResignatureCommand, call by call
    observer.py    what `python3 -m observer` is on a host, without the tracing
    standin.py     a stand-in for lvmoiscsi; drivers/LVMoISCSISR is its executable
    standin_hba.py     a stand-in for lvmohba; drivers/LVMoHBASR is its executable
"""
