# SPDX-License-Identifier: LGPL-2.1-only
"""The power-cut disk gives every state a cut can leave, and can fail a bad program."""

import itertools

import pytest

from kit.crash import CrashDisk, FailingDisk
from kit.sparse import SparseDisk
from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.errors import DeviceError

SIZE = 1 << 20


def sector(number, letter):
    return Chunk(512 * number, letter * 512)


def contents(image, sectors):
    return "".join(image.peek(512 * number, 1).decode().replace("\0", "-") for number in sectors)


def states_of(disk, sectors=range(3), **how):
    return [contents(image, sectors) for _, image in disk.crash_images(**how)]


def test_closed_groups_are_whole_and_the_open_one_is_any_subset():
    disk = CrashDisk(SparseDisk(SIZE))
    disk.write([sector(0, b"a"), sector(1, b"b")])
    disk.flush()
    disk.write([sector(2, b"c")])

    assert sorted(states_of(disk)) == sorted(["---", "a--", "-b-", "ab-", "abc"])


def test_of_a_large_group_every_prefix_each_block_alone_and_each_one_missing_are_tried():
    disk = CrashDisk(SparseDisk(SIZE))
    for number in range(100):
        disk.write([sector(number, b"x")])
    disk.flush()

    states = set(states_of(disk, range(100), samples=50))

    for number in range(100):
        assert "x" * number + "-" * (100 - number) in states, "prefix"
        assert "-" * number + "x" + "-" * (99 - number) in states, "alone"
        assert "x" * number + "-" + "x" * (99 - number) in states, "missing"
    assert len(states) > 300


def test_a_block_written_twice_between_flushes_may_hold_either_and_one_that_does_not_change_is_not_counted():
    base = SparseDisk(SIZE)
    base.poke(512, b"s" * 512 * 30)
    disk = CrashDisk(base)
    disk.write([sector(0, b"a"), Chunk(512, b"s" * 512 * 30)])
    disk.write([sector(0, b"b")])

    assert sorted(states_of(disk, range(2))) == ["-s", "as", "bs", "bs"]


def test_a_dropped_flush_joins_two_groups():
    disk = CrashDisk(SparseDisk(SIZE), dropped_flush=1)
    for number, letter in enumerate((b"a", b"b", b"c")):
        disk.write([sector(number, letter)])
        disk.flush()

    assert "-b-" in states_of(disk)
    assert "--c" not in states_of(disk)


def test_cuts_behind_a_dropped_flush_are_those_from_the_group_that_goes_on():
    disk = CrashDisk(SparseDisk(SIZE), dropped_flush=2)
    for number, letter in enumerate((b"a", b"b", b"c")):
        disk.write([sector(number, letter)])
        disk.flush()

    (_, base), *cuts = disk.crash_images(first=disk.joined)
    assert disk.joined == 2 and base == disk.base
    found = [image.peek(0, 3 * 512)[::512].replace(b"\0", b"-") for _, image in cuts]
    assert sorted(found) == [b"a-c", b"ab-", b"abc"]


def test_a_physical_block_is_old_or_new_as_a_whole():
    base = SparseDisk(SIZE)
    base.physical_block_size = 4096
    base.poke(0, b"o" * 8192)
    disk = CrashDisk(base)
    disk.write([Chunk(512, b"n" * 512), Chunk(7680, b"n" * 512)])

    seen = {image.peek(0, 8192) for _, image in disk.crash_images()}

    old, first, last = b"o" * 4096, b"o" * 512 + b"n" * 512 + b"o" * 3072, b"o" * 3584 + b"n" * 512
    assert seen == {old + old, first + old, old + last, first + last}


def test_blocks_of_4096_are_whole():
    disk = CrashDisk(SparseDisk(SIZE, 4096))
    disk.write([Chunk(4096, b"a" * 4096 + b"b" * 4096)])

    assert len({(image.peek(4096, 4096), image.peek(8192, 4096)) for _, image in disk.crash_images()}) == 4
    with pytest.raises(AssertionError):
        disk.write([Chunk(512, b"a" * 512)])


# -- failures


def script(disk):
    """Seven operations: two reads, three chunks, two flushes."""
    disk.read([Range(0, 1), Range(5, 1)])
    disk.write([sector(0, b"a"), sector(1, b"b")])
    disk.flush()
    disk.write([Chunk(1024, b"c" * 1024)])
    disk.flush()


def test_each_operation_fails_in_turn_until_none_does():
    reasons = []
    for number in itertools.count(1):
        disk = FailingDisk(SparseDisk(SIZE), number)
        try:
            script(disk)
        except DeviceError as error:
            reasons.append(f"{error.action} {error.offset}")
            assert disk.failed and disk.operations == number
        else:
            break

    assert reasons == ["read 0", "read 5", "write 0", "write 512", "flush 0", "write 1024", "flush 0"]
    assert not disk.failed and disk.operations == 7


def test_once_or_for_good():
    once, for_good = FailingDisk(SparseDisk(SIZE), 2), FailingDisk(SparseDisk(SIZE), 2, for_good=True)
    for disk in (once, for_good):
        disk.flush()
        with pytest.raises(DeviceError):
            disk.flush()

    once.flush()

    for action in (for_good.flush, lambda: for_good.read([Range(0, 1)]), lambda: for_good.write([sector(0, b"a")])):
        with pytest.raises(DeviceError):
            action()
    assert once.base.flushes == 2 and for_good.base.flushes == 1


@pytest.mark.parametrize("leaves, expected", [("nothing", "a--------"), ("half", "abbbb----"), ("all", "abbbbbbbb")])
def test_a_failing_write_leaves_what_it_was_told_to(leaves, expected):
    base = SparseDisk(SIZE)
    disk = FailingDisk(base, 2, leaves=leaves)

    with pytest.raises(DeviceError):
        disk.write([sector(0, b"a"), Chunk(512, b"b" * 4096), sector(20, b"z")])

    assert contents(base, [*range(9), 20]) == expected + "-"
