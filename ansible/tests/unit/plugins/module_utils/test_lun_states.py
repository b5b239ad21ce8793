# SPDX-License-Identifier: LGPL-2.1-only
"""What is made of the rows in which a task ends; nothing of relvmoiscsi is needed for that.

Changes, errors and the diff: tests/played.
"""

from __future__ import annotations

from ansible_collections.relvmoiscsi.pool.plugins.module_utils import client, lun_states


def test_the_map_is_by_sr_and_passes_over_what_is_new():
    vdis = [{"old_vdi": "1", "new_vdi": "2"}, {"old_vdi": None, "new_vdi": "3"}]
    rows = [{"old_sr": "a", "new_sr": "b", "vdi_pairs": each} for each in (vdis, [])]
    assert lun_states.id_map(rows) == {"b": {"1": "2"}}


def test_sentences_are_in_the_words_of_the_options():
    params = {"leave_others": False, "jobs": 1, "isolated": None}
    said = {
        "Name them too, or say --leave-others.": "Name them too, or say leave_others.",
        "Say --isolated NET.": "Say isolated NET.",
        "Take it back first (--done).": "Take it back first (state: absent).",
        "Undo that (`relvmoiscsi pool restore --undo`), or `--home`.": (
            "Undo that (`relvmoiscsi pool restore --undo`), or `state: home`."
        ),
        "a well-known-name -- and --nothing-we-know": "a well-known-name -- and --nothing-we-know",
    }
    for text, wanted in said.items():
        assert client.in_words_of(params, text) == wanted
