# SPDX-License-Identifier: LGPL-2.1-only
"""An error says what state the disk is in: whoever knows it first says it, and nobody after them."""

import pytest

from relvmoiscsi.errors import (
    DeviceError,
    FormatError,
    Place,
    Refused,
    RelvmoiscsiError,
    Truncated,
    failing_alone,
    in_state,
    shown_bytes,
)


def state_after(error, *arguments):
    with pytest.raises(type(error)) as caught, in_state(*arguments):
        raise error
    assert caught.value is error
    return error.disk_state


def test_the_first_sentence_stays():
    error = Refused("No.")
    assert state_after(error, "Nothing was written.") == "Nothing was written."
    assert state_after(error, "Something was.") == "Nothing was written."
    assert str(error) == "No. Nothing was written."
    assert str(error.advising("Repeat the command.")) == "No. Nothing was written. Repeat the command."


@pytest.mark.parametrize(
    "error, said", [(Refused("No."), ""), (Truncated("A structure", Place("x", 0), 512, 0), "Torn.")]
)
def test_errors_of_other_kinds_say_nothing_of_it(error, said):
    assert state_after(error, "Torn.", DeviceError, FormatError) == said


def test_a_sentence_may_be_made_when_it_is_needed():
    with in_state(lambda: pytest.fail("nobody needs it")):
        pass
    assert state_after(Refused("No."), lambda: "It is torn.") == "It is torn."
    assert state_after(Refused("No."), lambda: "") == ""


def test_a_bug_goes_through():
    with pytest.raises(ZeroDivisionError), in_state("It is torn."):
        raise ZeroDivisionError


def test_a_failure_without_bytes_names_no_bytes():
    assert DeviceError("/dev/sdx", "write", 512, 8, "no answer").message.startswith(
        "/dev/sdx: write of 8 bytes at byte 512"
    )
    assert DeviceError("/dev/sdx", "write", 0, 0, "no answer").message == "/dev/sdx: write failed: no answer."


@pytest.mark.parametrize(
    "data, said",
    [
        (b"LVM2 xxx", '"LVM2 xxx"'),
        (b" LVM2 x[5A%r0N*>", '" LVM2 x[5A%r0N*>"'),
        (b"QFI\xfb", "the bytes 51 46 49 fb"),
        (b"K\x18'i", "the bytes 4b 18 27 69"),
        (b'say "x"', "the bytes 73 61 79 20 22 78 22"),
        (b"a\\x1b", "the bytes 61 5c 78 31 62"),
        (b"tap\0", "the bytes 74 61 70 00"),
        (b"", "no bytes"),
    ],
)
def test_bytes_are_text_in_quotes_only_where_all_are_text(data, said):
    assert shown_bytes(data) == said


def test_a_bug_is_an_error_about_the_lun_that_was_looked_at_and_its_traceback_is_logged(caplog):
    with pytest.raises(RelvmoiscsiError) as caught, failing_alone("/dev/sdc"):
        raise KeyError("flowers")
    assert "/dev/sdc was not read, because of a bug in relvmoiscsi " in str(caught.value)
    assert "KeyError('flowers'" in str(caught.value) and caught.value.exit_status == 70
    assert "Traceback" in caplog.text and "/dev/sdc" in caplog.text


@pytest.mark.parametrize("error", [Refused("No."), MemoryError(), KeyboardInterrupt()])
def test_what_is_no_bug_stays_as_it_is(error):
    with pytest.raises(type(error)) as caught, failing_alone("/dev/sdc"):
        raise error
    assert caught.value is error
