# SPDX-License-Identifier: LGPL-2.1-only
"""Errors of `relvmoiscsi pool` before the first change: which show the usage, and that each says what was changed."""

import pytest

from kit.pool_lab import IQN, TARGET, sr_disk


@pytest.fixture
def two(lab, copy):
    """Two SRs, two VMs and two networks have one name each."""
    net = lab.network("office")
    lab.network("office")
    lab.vm("web", lab.vdi("Production", "root disk")[0], networks=[net])
    lab.vm("db", lab.vdi("Production", "data")[0]), lab.vm("db")
    for _ in range(2):
        lab.pool.db.create("SR", name_label="twice", type="lvmoiscsi")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["attach", "--clones-of", "twice", "--yes"], "2 SRs have the name 'twice'."),
        (["map", "twice"], "2 SRs have the name 'twice'."),
        (["discard", "twice", "--yes"], "2 SRs have the name 'twice'."),
        (["discard", "a copy"], "No terminal to confirm on."),
        (["clone", "a copy", "db", "--isolated", "x", "--yes"], "2 VMs have the name 'db'."),
        (["clone", "a copy", "web", "--network", "office=office", "--yes"], "2 networks have the name 'office'."),
        (["clone", "a copy", "web", "--yes"], "would be on the networks of their originals: 'office'."),
        (["restore", "a copy", "db", "--yes"], "2 VMs have the name 'db'."),
        (["restore", "--undo", "db", "--yes"], "2 VMs have the name 'db'."),
        (["rescue", "a copy", "data", "--vm", "db", "--yes"], "2 VMs have the name 'db'."),
        (["save-vms", "twice", "--yes"], "2 SRs have the name 'twice'."),
    ],
)
def test_where_the_words_fit_and_the_pool_does_not_no_usage_is_shown(two, pool_command, words, said):
    ran = pool_command(*words)
    assert ran.status == 2 and said in ran.err and "usage: " not in ran.err


@pytest.mark.parametrize(
    "words", [["discard"], ["clone", "a copy"], ["restore", "a copy"], ["attach", "../x", "--yes"]]
)
def test_words_that_do_not_fit_together_show_the_usage(lab, pool_command, words):
    ran = pool_command(*words)
    assert ran.status == 2 and ran.err.startswith(f"usage: relvmoiscsi pool {words[0]} [-h]")


def test_what_is_refused_before_the_first_change_says_that_nothing_was_changed(lab, copy, pool_command):
    """Only some refusals said so, and a script reads `disk_state`."""
    lab.vm("web", lab.vdi("Production", "root disk")[0], networks=[lab.network("office")])
    lab.vm("owner", lab.vdi("Production", "data")[0])
    foreign = lab.world.add(TARGET, IQN, sr_disk("theirs"))
    assert pool_command("clone", "a copy", "web", "--isolated", "night", "--yes").status == 0
    for words, said in (
        (["restore", "a copy", "web"], "is a disk of 'web on a copy' already."),
        (["rescue", "a copy", "data", "--vm", "owner"], "IDs would clash."),
        (["clone", "a copy", "owner", "--isolated", "office"], "it is not isolated."),
        (["attach", foreign], "add --foreign"),
    ):
        for how in ("--yes", "--dry-run"):
            error = pool_command(*words, how, "--json").json["error"]
            assert said in error["message"] + error["advice"] and error["disk_state"] == "Nothing was changed."
