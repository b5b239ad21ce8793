# SPDX-License-Identifier: LGPL-2.1-only
"""What points nowhere is noticed; tools/check.sh asks it of the whole repository."""

import pytest

from tools.references import problems_in


@pytest.fixture
def repository(tmp_path):
    """A repository of a page, a module and a test."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/host.rst").write_text("Host\n====\n\nSM on the same host\n-------------------\n\ntext\n----no\n")
    (tmp_path / "relvmoiscsi/host/disk").mkdir(parents=True)
    (tmp_path / "relvmoiscsi/host/disk/claim.py").write_text("")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_claim.py").write_text("def test_it_is_so():\n    pass\n")
    return tmp_path


def told(text, top):
    return [says for _line, says in problems_in(text, text, top)]


@pytest.mark.parametrize(
    "text",
    [
        "see docs/host.rst.",
        'docs/host.rst, "SM on the same host"',
        '# docs/host.rst, "SM on\n    # the same host"',
        "relvmoiscsi/host/disk/claim.py, relvmoiscsi/host, relvmoiscsi/*/disk/*.py",
        "``tests/test_claim.py::test_it_is_so``",
        "`host.disk.claim`, `host.disk.claim.open_file`, `host.disk`",
        "QEMU docs/interop/qcow2.rst, SM\n    drivers/util.py",
        "/usr/share/doc/relvmoiscsi/tools/nothing.py and <root>/docs/nothing.rst",
    ],
)
def test_what_exists_is_fine(text, repository):
    assert told(text, repository) == []


@pytest.mark.parametrize(
    "text, says",
    [
        ("see docs/hosts.rst", "there is no docs/hosts.rst"),
        ('docs/host.rst, "text"', 'there is no section "text" in docs/host.rst'),
        ("(relvmoiscsi/host/claim.py)", "there is no relvmoiscsi/host/claim.py"),
        ("relvmoiscsi/*/layout.py", "there is no relvmoiscsi/*/layout.py"),
        ("``tests/test_claim.py::test_it_is_not``", "there is no test test_it_is_not in tests/test_claim.py"),
        ("`host.claim`", "there is no module host.claim"),
        ("facts" + "/sm.md", "'facts" + "/' leads out of the repository"),
        ("the rule of " + "design" + ".md", "'design" + ".md' leads out of the repository"),
        ("as in " + "issue" + " 2", "'issue" + " 2' leads out of the repository"),
    ],
)
def test_what_leads_nowhere_is_told(text, says, repository):
    assert told(text, repository) == [says]
