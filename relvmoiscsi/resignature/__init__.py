# SPDX-License-Identifier: LGPL-2.1-only
"""Give a LUN new identities, recover a run that was cut, undo a run. Only `relvmoiscsi.engine` imports this package.

inspection     the state of a device: no SR, clean, unfinished, resignatured or damaged; whether one VDI is possible
problems       all problems of a LUN against a request, and one answer that leads on from all of them
compare        whether two LUNs share no identity and differ in nothing else, byte for byte

The rooms, in the order of a run:

reading        request (of the caller); survey (label and VG), volumes (images, saved VM records), read_cache,
               lun_contents (the values), lun_notes, contradictions (MGT against the volumes; a resignatured LUN names
               no other SR), way_out (a command against a defect); left_behind (what goes with an unreadable VDI);
               sm_journals (SM's rules for its unfinished work), sm_work (volumes and records under change)
planning       new_ids (derived or chosen); selection (all VDIs, or one); run_plan, volume_writes (inside volumes);
               identity_check (each identity is new, nothing else differs), plan_check (the plan, read back in memory)
merge          a leaf and its parents become one image: vdi_choice (which VDI), strategy (costs, extents), compact
               (values in little memory); vhd_chain, qcow2_chain (owners of blocks); vhd_layout, qcow2_layout (places of
               blocks); vhd_image, qcow2_image (strategies and bytes)
protocol       steps (the table); commit_record (in the label), journal (bytes; the label in each state), run_record
               (content of a journal), merged_image (a new image in a journal), identities (take identities back),
             sentences (messages about a LUN with a run that is not over)
writing        step (write, flush, read back), apply (all steps), copying (guest data), finalize (steps 5 and 6)
recovery       earlier_run (find an earlier run), cut_run (roll back or finish), undo
"""
