# SPDX-License-Identifier: LGPL-2.1-only
"""From what is on a LUN to a LUN with new identities, and back. The rooms follow a run. Only `relvmoiscsi.engine`
imports from here.

inspection     what is on a device, whatever that is: state, defects, whether one VDI can be made of it
compare        two LUNs: no identity in common, nothing else differs, byte for byte
reading        what is on it: survey (LVM's part), volumes (what is inside, VM records that were saved), read_cache,
               lun_contents (the values), lun_notes; SM's unfinished work: sm_journals (its rules), sm_work (what it
               leads to, databases of pools)
planning       new_ids (derived or chosen); collapse (a LUN with one VDI); run_plan, volume_writes (inside volumes);
               identity_check (every identity new, nothing else differs), plan_check (the plan read back in memory)
merge          a leaf and its parents become one image: choice (which VDI, and an earlier run), strategy (costs,
               extents), compact (values in little memory); vhd_chain and qcow2_chain (as read, owners of blocks),
               vhd_layout and qcow2_layout (where blocks go), vhd_image and qcow2_image (strategies, bytes)
protocol       steps (the table); commit_record (in the label), journal (its bytes, and the label in every state), run
               (what it says), rebuilt (what one VDI adds to it), structure (with a checksum), identities (taken back),
               sentences (what is said of a run that is not over)
writing        step (write, flush, read back), apply (all steps), copying (guest data, unseen), finalize (the end, of an
               image made anew as well)
recovery       earlier_run (what was left), cut_run (take back, finish), undo
"""
