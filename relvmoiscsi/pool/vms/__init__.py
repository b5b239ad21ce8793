# SPDX-License-Identifier: LGPL-2.1-only
"""VMs on attached copies: copies of VMs, disks put in place of others, disks lent; no byte of a disk is copied.

    inventory        VMs, VBDs, VIFs, networks and VDIs of the pool, each class read once; our marks on VMs
    ova_file, ova    the records of a VM, as xapi exports them, and how they become those of its copy; pure
    transfer         records out of the pool and into the pool
    choice           which VMs are to have copies, under which names, on which networks
    clone            copies of VMs, each verified disk by disk
    discard          copies of VMs go, with the SR
    forget           a copy of an SR is forgotten, never destroyed
    restore          disks of a copy in place of a VM's own; undone; left as they are
    restore_journal  what the VM says of that: its disks, that nobody may start the VM
    swap_disks       how the disks are swapped, one by one
    move_home        such disks move to the SR of the VM's own disks, for good
    rescue           a disk of a copy lent to a VM
    save_vms         records of VMs on their SR, for VMs that the pool loses later
    vbds             what a VM has at a device at this moment
    left_behind      what a run leaves when it fails or is stopped, and what ends that

Nothing here prints or asks; values go in and come out.
"""
