# SPDX-License-Identifier: LGPL-2.1-only
"""An exit status stands for one family of errors, and a key for SM is one that SM ships."""

import ast
import inspect
from pathlib import Path

from kit.own_source import nodes_of, own_modules
from relvmoiscsi import errors

DATA = Path(__file__).resolve().parents[1] / "data"

#: Exit status of each family of errors; a subclass has the status of its family.
EXIT_STATUS = {
    "UsageError": 2,
    "NotFound": 3,
    "Refused": 4,
    "FormatError": 5,
    "CommandFailed": 6,
    "DeviceError": 7,
    "Unfinished": 8,
    "Partial": 9,
    "Overtaken": 10,
    "NoConnection": 11,
}
EXIT_STATUS_OF_A_BUG = 70


def sm_keys(nodes):
    """SM keys in a syntax tree: (line number, key)."""
    takes_key_second = {"RelvmoiscsiError", "UsageError", "NotFound", "Refused", "FormatError", "Unfinished"}
    for node in nodes:
        if isinstance(node, ast.Call):
            values = [keyword.value for keyword in node.keywords if keyword.arg == "sm_key"]
            called = getattr(node.func, "id", getattr(node.func, "attr", None))
            if called in takes_key_second:
                values += node.args[1:2]
        elif isinstance(node, ast.Assign):
            names = [getattr(target, "id", getattr(target, "attr", None)) for target in node.targets]
            values = [node.value] if "sm_key" in names else []
        else:
            continue
        for value in values:
            for part in ast.walk(value):
                text = ast.literal_eval(part) if type(part).__name__ in ("Str", "Constant") else None
                if isinstance(text, str):
                    yield node.lineno, text


def shipped_keys():
    lines = (DATA / "sm_error_keys.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split() for line in lines if line and not line.startswith("#")]
    return {name: int(number) for number, name in pairs}


def error_classes():
    found = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, Exception)]
    return [value for value in found if value.__module__ == errors.__name__]


def test_every_sm_key_in_the_code_is_one_that_sm_ships():
    keys = shipped_keys()
    named = [(name, *found) for name, source in own_modules() for found in sm_keys(nodes_of(source))]
    assert [(name, line, key) for name, line, key in named if key not in keys] == [] != named
    assert [error for error in error_classes() if error.sm_key not in keys] == []


def test_an_error_has_the_exit_status_of_its_family():
    for error in error_classes():
        families = [base.__name__ for base in error.__mro__ if base.__name__ in EXIT_STATUS]
        wanted = EXIT_STATUS[families[0]] if families else EXIT_STATUS_OF_A_BUG
        assert error.exit_status == wanted and (families or error is errors.RelvmoiscsiError), error.__name__


def test_exit_statuses_are_not_shared_between_families():
    families = [error for error in error_classes() if errors.RelvmoiscsiError in error.__bases__]
    assert {family.__name__: family.exit_status for family in families} == EXIT_STATUS
    assert len({*EXIT_STATUS.values(), EXIT_STATUS_OF_A_BUG, 0}) == len(EXIT_STATUS) + 2


def test_sm_keys_are_found_wherever_they_are_given():
    source = 'class E(Refused):\n    sm_key = "A"\nraise Refused("s", sm_key="B" if x else "C")\n'
    source += 'raise errors.NotFound("s", "D")'
    assert [key for _, key in sm_keys(nodes_of(source))] == ["A", "B", "C", "D"]
