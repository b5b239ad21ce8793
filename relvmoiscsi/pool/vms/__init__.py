# SPDX-License-Identifier: LGPL-2.1-only
"""VMs on attached copies: copies of VMs, disks put in place of others, disks lent; no byte of a disk is copied.

    inventory    VMs, VBDs, VIFs, networks and VDIs of the pool, each class read once; our marks on VMs
    ova_file     the records of a VM, as xapi exports them: tar, XML, fields; pure
    ova          they become those of its copy; pure
    transfer     records out of the pool and into it
    choice       which VMs, under which names, on which networks
    clone        copies of VMs, each verified disk by disk; cloned is what became of one
    destroying   copies of VMs go, without their disks
    forget       a copy of an SR is forgotten, never destroyed
    discard      copies of VMs go, with the SR
    restore      disks of a copy in place of a VM's own, and back again; swapping is how, one by one
    home, keep   such disks moved to the SR of the VM's own, for good; the VM left as it is
    restore_journal, standstill    what the VM says of that: its disks, that it must not start
    devices      what a VM has at a device at this moment
    saved        records of VMs on their SR, for when the pool has them no more
    rescue       one disk of a copy lent to a VM

Nothing here prints or asks; values go in and come out.
"""
