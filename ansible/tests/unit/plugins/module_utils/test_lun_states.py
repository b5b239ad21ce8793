# SPDX-License-Identifier: LGPL-2.1-only
"""What is made of the rows in which a task ends; nothing of relvmoiscsi is needed for that."""

from __future__ import annotations

from ansible_collections.relvmoiscsi.pool.plugins.module_utils import client, lun_states


def row(**more):
    side = {"scsi_id": "3600", "kind": "clone", "sr": None, "hosts": {}}
    told = {"scsi_id": "3600", "name": "Copy", "sr": {"old": "a", "new": "b"}, "vdis": [], "error": None}
    return {**told, "changed": False, "before": side, "after": {**side, "hosts": {"xs1": "plugged"}}, **more}


def test_one_change_is_a_change():
    assert lun_states.ended([row(), row(changed=True)])["changed"]
    assert not lun_states.ended([row(), row()])["changed"]


def test_one_error_is_a_failure_which_has_the_rows_all_the_same():
    ended = lun_states.ended([row(), row(error="It is down.")])
    assert ended["failed"] and ended["msg"] == "1 of 2 LUNs failed. 3600: It is down."
    assert len(ended["luns"]) == 2


def test_the_map_is_by_sr_and_passes_over_what_is_new():
    vdis = [{"old": "1", "new": "2"}, {"old": None, "new": "3"}]
    assert lun_states.id_map([row(vdis=vdis), row()]) == {"b": {"1": "2"}}


def test_the_diff_has_hosts_and_nothing_of_what_is_gone():
    assert lun_states.ended([row(after=None)])["diff"]["after"] == ""
    assert "  xs1: plugged\n" in lun_states.ended([row()])["diff"]["after"]


def test_errors_are_counted():
    assert client.summary("LUNs", [("a", None)]) == ""
    assert client.summary("LUNs", [("a", None), ("b", "No.")]) == "1 of 2 LUNs failed. b: No."


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
