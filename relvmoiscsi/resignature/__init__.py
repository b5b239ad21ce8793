# SPDX-License-Identifier: LGPL-2.1-only
"""From what is on a LUN to a LUN with new identities, and back.

what is on it           survey (LVM's part), volumes (what is inside), read_cache, lun (the values), notes
SM's unfinished work    sm_journals (its rules), workbench
new ids                 new_ids (derived or chosen), mapfile (what people choose them with)
the protocol            steps, states (tables); tail (the mark), labels, run, journal (its bytes)
the plan                plan, contents (inside volumes), plan_check (read back in memory), undo (the way back)
on the device           apply (step by step), canvas (as found, as it is to be), landing (the end)
after a cut             earlier_run (what was left), recovery (finish, take back), repair (put identities right),
                        structure (whole or torn), evidence (how far it has come), sentences (what is said of it)
without a good label    torn_label, late_label, journal_search
the judge               check (every identity new, nothing else differs), compare (two LUNs, byte for byte)
"""
