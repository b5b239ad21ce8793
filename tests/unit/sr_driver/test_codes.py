# SPDX-License-Identifier: LGPL-2.1-only
"""Each error has SM's number; none is silent, and none can be taken for success."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import relvmoiscsi
from relvmoiscsi.errors import CommandFailed, Overtaken, RelvmoiscsiError, Unfinished, UsageError
from relvmoiscsi.sr_driver.codes import (
    GENERIC_EXCEPTION,
    NUMBERS,
    SM_GENERAL,
    UNIMPLEMENTED,
    fault_of,
    unmistakable,
)

ROOT = Path(relvmoiscsi.__file__).resolve().parent
NEVER = {1, 16, 24, 38, 39, 144}


def shipped_numbers():
    text = (Path(__file__).resolve().parents[2] / "data" / "sm_error_keys.txt").read_text(encoding="utf-8")
    pairs = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {name: int(number) for number, name in pairs}


def keys_in_the_code():
    """Every text of the package that is the name of an SM error, wherever it stands: {key: module}."""
    shipped, found = shipped_numbers(), {}
    for path in sorted(ROOT.rglob("*.py")):
        for text in re.findall('"([A-Za-z]+)"', path.read_text(encoding="utf-8")):
            if text in shipped:
                found[text] = str(path.relative_to(ROOT))
    return found


def error_classes():
    for module in pkgutil.walk_packages(relvmoiscsi.__path__, "relvmoiscsi."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = [RelvmoiscsiError]
    for error in found:
        found += [one for one in error.__subclasses__() if one not in found]
    return [error for error in found if error.__module__.startswith("relvmoiscsi.")]


def an(error, message, sm_key=None):
    """An error of this class, however it is made."""
    made = error.__new__(error)
    RelvmoiscsiError.__init__(made, message, sm_key)
    return made


def test_the_numbers_are_those_of_sm_and_every_key_in_the_code_has_one():
    shipped, keys = shipped_numbers(), keys_in_the_code()

    assert {key: number for key, number in NUMBERS.items() if shipped.get(key) != number} == {}
    assert {SM_GENERAL, UNIMPLEMENTED} <= set(shipped.values())
    assert GENERIC_EXCEPTION == 1200
    assert {"ISCSILogin", "ConfigSCSIid", "BadRequest", "APIFailure", "LVMRead", "LockErr"} <= set(keys)
    assert {key: module for key, module in keys.items() if key not in NUMBERS} == {}


@pytest.mark.parametrize("key", sorted(set(NUMBERS) | set(shipped_numbers()) | {"NoSuchKey", ""}))
def test_a_failure_keeps_its_text_in_xapi(key):
    fault = fault_of(UsageError("It is wrong.", key).in_state("Nothing was written."))

    assert fault.faultCode not in NEVER
    assert fault.faultCode in (NUMBERS.get(key), SM_GENERAL)
    assert fault.faultString == f"It is wrong. Nothing was written. [{key}]"


def test_the_number_of_a_key_is_used_where_it_keeps_the_text():
    assert fault_of(UsageError("", "ConfigTargetMissing")).faultCode == 95
    assert fault_of(UsageError("", "ConfigSCSIid")).faultCode == 107
    assert fault_of(CommandFailed(["iscsiadm"], 24, "")).faultCode == SM_GENERAL
    assert fault_of(UsageError("")).faultCode == SM_GENERAL, "InvalidArg is 1, which stands for success"


def test_an_overtaken_run_and_a_run_that_was_refused_in_the_middle_keep_their_text():
    for error in (Overtaken("the LUN", 512), Unfinished("No.", "SRInUse"), Unfinished("No.", "EIO")):
        fault = fault_of(error.in_state("Look at it."))
        assert fault.faultCode in (SM_GENERAL, 200)
        assert fault.faultString == f"{error.message} Look at it. [{error.sm_key}]"


def test_words_of_success_are_marked_and_nothing_else():
    assert unmistakable("SR 'successfully resigned' and Successfully Resigned") == (
        "SR 'successfully? resigned' and successfully? Resigned"
    )
    assert unmistakable("resigned successfully") == "resigned successfully"


def test_a_fault_has_an_end_and_its_key_whatever_a_lun_is_called():
    text = fault_of(UsageError("x" * 1_000_000)).faultString
    assert len(text) < 1 << 14 and text.endswith(f"x... [{UsageError.sm_key}]")
