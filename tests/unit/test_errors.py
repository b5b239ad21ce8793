# SPDX-License-Identifier: LGPL-2.1-only
"""An error says what state the disk is in: whoever knows it first says it, and nobody after them."""

import pytest

from relvmoiscsi.errors import DeviceError, FormatError, Place, Refused, Truncated, in_state


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


def test_errors_of_other_kinds_say_nothing_of_it():
    assert state_after(Refused("No."), "It is torn.", DeviceError, FormatError) == ""
    assert (
        state_after(Truncated("A structure", Place("/dev/sdc", 0), 512, 0), "It is torn.", DeviceError, FormatError)
        == "It is torn."
    )


def test_a_sentence_may_be_made_when_it_is_needed():
    asked = []

    def sentence():
        asked.append(1)
        return "It is torn."

    with in_state(sentence):
        pass
    assert asked == []

    assert state_after(Refused("No."), sentence) == "It is torn."
    assert state_after(Refused("No."), lambda: "") == ""


def test_a_bug_goes_through():
    with pytest.raises(ZeroDivisionError), in_state("It is torn."):
        raise ZeroDivisionError
