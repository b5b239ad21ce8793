# SPDX-License-Identifier: LGPL-2.1-only
"""VMs on attached copies: clone VMs, restore disks, lend disks. No function copies the bytes of a disk.

    inventory        VMs, VBDs, VIFs, networks and VDIs of the pool, each class read once; marks on VMs
    lineage          the mark of a disk that has changed its UUID
    owners           whose data a VDI has; which disk of an attached copy is which disk of the original
    ova_file, ova    the exported records of a VM, and the edit that makes them records of a copy; pure
    ova_compare      does an export say what the pool's own records say; pure
    ova_made         has an import made what the edited file says; pure
    transfer         export and import of records
    checked_export   an export as far as the pool's own records say the same
    choice           which VMs to clone, under which names, on which networks
    clone            clone VMs, and verify each clone and its snapshots
    discard          destroy clones of VMs, and forget their SR
    forget           forget the SR of a copy; never destroy the SR
    restore          replace a VM's disks by disks of a copy; undo a restore; keep the disks as they are
    restore_entries  read the journal of a restore from a VM's record; pure
    restore_journal  write the journal of a restore in the VM's record; block the start of the VM
    swap_disks       swap the disks of a VM one by one
    move_home        move restored disks to the SR of the VM's old disks, and end the restore
    rescue           lend a disk of a copy to a VM
    save_vms         save records of VMs on their SR, for VMs that the pool loses later
    vbds             one VM, its drives and the VDIs of its restore as they are now
    run_states       sentences: the state that a failed or interrupted run leaves, and the command to repeat

No module here prints or asks; functions take values and return values.
"""
