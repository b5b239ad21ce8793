# SPDX-License-Identifier: LGPL-2.1-only
"""Changed-block logs: two links between VDIs, in binary (docs/formats/cbt.rst)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relvmoiscsi.formats.cbt import CbtLog, changes, read_cbt_log

NAME = "e0672695-8b1c-43bf-b507-5bf218d8eb89.cbtlog"
OLDER = "6c936f08-3c14-41f7-8136-e4597b31e47e"
NEW = "66666666-7777-4888-9999-aaaaaaaaaaaa"

# written by cbt-util (tests/data/images/golden/tree.tar.xz)
HEAD = bytes.fromhex(
    "6c936f083c1441f78136e4597b31e47e"  # parent, in the order of its text
    "00000000000000000000000000000000"  # no child
    "00000000 00000000 0000800000000000"  # not consistent, padding, 8 MiB
)


def test_a_log_that_cbt_util_wrote_is_read_and_its_link_changes_in_its_sixteen_bytes():
    log = read_cbt_log(HEAD, NAME)
    (change,) = changes(log, {OLDER: NEW}, NAME)

    assert (log.parent, log.child, log.size > 0) == (OLDER, None, True)
    assert (log.consistent, log.size) == (0, 8 << 20)
    assert (change.offset, change.old, change.new) == (0, HEAD[:16], bytes.fromhex(NEW.replace("-", "")))
    assert change.what == "CBT parent link of " + NAME


def test_zero_links_stay_zero_and_a_log_of_zeros_is_not_initialised():
    log = read_cbt_log(bytes(48), NAME)

    assert (log.parent, log.child, log.size) == (None, None, 0)
    assert changes(log, {}, NAME) == []


@given(st.binary(min_size=32, max_size=32), st.integers(0, 1), st.binary(min_size=12, max_size=12))
def test_every_link_is_mapped_and_nothing_else_changes(links, consistent, rest):
    log = read_cbt_log(links + bytes([consistent, 0, 0, 0]) + rest, NAME)

    found = changes(log, {uuid: NEW for uuid in (log.parent, log.child) if uuid}, NAME)

    assert [change.offset for change in found] == [at for at, uuid in ((0, log.parent), (16, log.child)) if uuid]
    assert all(len(change.old) == len(change.new) == 16 for change in found)
    assert bytes(log)[:32] == links


@pytest.mark.parametrize("flag", [2, 0x01000000])
def test_of_what_may_be_no_log_yet_only_links_that_are_known_change(flag):
    """SM reads any flag but 0 as consistent."""
    log = read_cbt_log(bytes(CbtLog.zero(parent=OLDER, child=NAME[:36], consistent=flag)), NAME)

    (change,) = changes(log, {OLDER: NEW}, NAME)

    assert not log.is_written
    assert (change.offset, change.old, change.new) == (0, HEAD[:16], bytes.fromhex(NEW.replace("-", "")))
