# SPDX-License-Identifier: LGPL-2.1-only
"""The disks that xapi takes the name of a device for."""

import pytest

from kit.pool import vms
from relvmoiscsi.pool.vms.device_numbers import places_of

TWO = {("hd", 1, 0), ("xvd", 1, 0)}
#: letters wrap in an int of OCaml
FAR = "xvd" + "a" * 40


@pytest.mark.parametrize(
    "text", ["1", "01", "+1", "0x1", "0X_1".replace("_", "0"), "0b1", "0o1", "0u1", "0_1", "1_", "0" * 9999 + "1"]
)
def test_a_number_is_a_disk_of_each_of_two_buses(text):
    assert places_of(text) == TWO


@pytest.mark.parametrize(
    ("text", "place"),
    [("4", ("xvd", 4, 0)), ("xvdb", ("xvd", 1, 0)), ("hdb", ("hd", 1, 0)), ("d1", ("xvd", 1, 0)),
     ("d1p2", ("xvd", 1, 2)), ("xvdaa", ("xvd", 26, 0)), ("xvdb15", ("xvd", 1, 15)), ("sdp15", ("sd", 15, 15)),
     ("fdc", ("fd", 2, 0)), ("hdt63", ("hd", 19, 63)), ("1048575", ("xvd", 1048575, 0))],
)  # fmt: skip
def test_a_name_is_one_disk(text, place):
    assert places_of(text) == {place}


@pytest.mark.parametrize(
    "text",
    ["", "x", "0x", "0b2", "0o8", "_1", "1.0", "-1", "1048576", "9" * 5000, "0x" + "f" * 5000, "sdq", "fdd", "fda1",
     "hdu", "xvda16", "xvd", "xvdA", "xvda1x", "d", "d1p", "d1p16",
     "d" + "9" * 5000, "xvda" + "9" * 5000, "\u00b2", "1\n", FAR],
)  # fmt: skip
def test_a_text_that_is_no_device_is_no_disk(text):
    assert places_of(text) == set()


def test_many_letters_wrap_as_in_an_int_of_ocaml():
    """Else a vm-admin writes a name that xapi alone takes for the disk 0."""
    letters, number = "", (1 << 63) + 1
    while number:
        number, letter = divmod(number - 1, 26)
        letters = chr(ord("a") + letter) + letters
    assert places_of("xvd" + letters) == {("xvd", 0, 0)}


@pytest.mark.parametrize("text", ["0", "3", "4", "0x0", "xvda", "hda", "sda", "fda", "d0", "xvda1", "255", "hdu", "-0"])
def test_the_simulated_pool_says_the_same(text):
    assert places_of(text) == {(bus, disk, part) for bus, disk, part in vms._places(text)}
