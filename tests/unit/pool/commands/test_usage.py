# SPDX-License-Identifier: LGPL-2.1-only
"""Which errors of `relvmoiscsi pool` show the usage of the command: those of words that do not fit together."""

import pytest


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
