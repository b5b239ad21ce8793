# SPDX-License-Identifier: LGPL-2.1-only
"""The address of a target, which a target gives in its answers."""

import time

import pytest

from relvmoiscsi.portal import Portal, parse_address


@pytest.mark.parametrize(
    "text, portal",
    [
        ("10.0.0.1:3260,1", Portal("10.0.0.1", 3260)),
        ("[fd00::1]", Portal("fd00::1", 3260)),
        ("[fe80::1%eth0]:3261,2", Portal("fe80::1%eth0", 3261)),
        ("san.example", Portal("san.example", 3260)),
    ],
)
def test_an_address_is_read(text, portal):
    assert parse_address(text) == portal


@pytest.mark.parametrize(
    "text",
    [
        "\u05d0",
        "\u05d0" * 16000,
        "x" * 254,
        "m\u00fcnchen.example",
        "[fe80::1%" + "x" * 16 + "]",
        "[san]",
        "[::1",
        "a/b",
        "-:",
    ]
    + ["\x1b[2J", "a\x1bb:3260,1", "a\x7fb", "a\x9b31m", "a\u202eb", "a\x00", "", "a:0", "a:65536", "a b"]
    + ["[" + ":" * 290, "10.0.0.1," + "1" * 300],
)
def test_what_is_no_address_is_refused_without_its_control_characters(text):
    with pytest.raises(ValueError, match="is no address of a target") as caught:
        parse_address(text)
    assert str(caught.value).isprintable()


def test_an_address_of_a_megabyte_is_refused_at_once():
    """A target sends up to 4 MiB of addresses before anybody has proved anything; no deadline ends a pattern."""
    address, began = "[" + ":" * (1 << 20), time.process_time()
    with pytest.raises(ValueError, match="is no address of a target"):
        parse_address(address)
    assert time.process_time() - began < 1  # a pattern that goes back needs hours
