# SPDX-License-Identifier: LGPL-2.1-only
"""An argument of another type than a promised function takes is a UsageError that names the argument."""

import inspect
import os

import pytest

from kit.builder import build_sr, raw
from relvmoiscsi import engine
from relvmoiscsi.arguments import FLAG, promised
from relvmoiscsi.device import Range
from relvmoiscsi.errors import UsageError
from relvmoiscsi.lun.named_device import open_device

FUNCTIONS = [getattr(engine, name) for name in engine.PROMISED if inspect.isfunction(getattr(engine, name))]
FUNCTIONS.append(open_device)
PLACES = [(function, name) for function in FUNCTIONS for name in inspect.signature(function).parameters]


def right(name):
    """A right value for the argument `name`."""
    disk = build_sr([raw("data")]).disk
    request = engine.ResignatureRequest()
    devices = dict.fromkeys(("device", "original", "clone"), disk)
    others = {"prepared": None, "name": "/nowhere", "writable": False, "entropy": os.urandom, "request": request}
    return {**devices, **others}[name]


@pytest.mark.parametrize(("function", "name"), PLACES, ids=lambda value: getattr(value, "__name__", value))
def test_an_argument_of_another_type_is_named(function, name):
    parameters = inspect.signature(function).parameters
    for wrong in (7, object(), b"x", ["x", 7], {"x"}):
        given = {key: right(key) for key, one in parameters.items() if one.default is one.empty}
        if "prepared" in given and name != "prepared":
            given["prepared"] = engine.prepare(given["device"], os.urandom)

        with pytest.raises(UsageError, match=rf"^The argument {name} of {function.__name__} is .*, expected ") as told:
            function(**{**given, name: wrong})

        assert told.value.__cause__ is None


def test_what_is_not_done_yet_and_what_was_done_already_are_no_plan():
    disk = right("device")
    with pytest.raises(UsageError, match="^The argument prepared of resignature is AlreadyDone.*, expected a Prepared"):
        engine.resignature(disk, engine.AlreadyDone(engine.inspect(disk).lun, None))
    with pytest.raises(UsageError, match="^The argument request of prepare is None, expected a ResignatureRequest"):
        engine.prepare(disk, os.urandom, None)
    with pytest.raises(UsageError, match="^The argument entropy of prepare is b'.*', expected a function, as os"):
        engine.prepare(disk, bytes(4), engine.ResignatureRequest())
    with pytest.raises(
        UsageError, match="^The argument data of compare is 5, expected a list of Range in bytes, from 0, or None"
    ):
        engine.compare(disk, disk, 5)
    with pytest.raises(UsageError, match="^The arguments original and clone of compare are the same device"):
        engine.compare(disk, disk)
    assert engine.compare(disk, disk.copy(), [Range(0, 512)]).same_identities


@pytest.mark.parametrize("wrong", [Range(-512, 512), Range(0, -1), Range(0.0, 512), Range("0", "512"), Range(0, True)])
def test_a_range_to_compare_is_whole_bytes_from_0(wrong):
    disk = right("device")
    with pytest.raises(
        UsageError, match=r"^The argument data of compare is \[Range.*expected a list of Range in bytes"
    ):
        engine.compare(disk, disk.copy(), [Range(0, 512), wrong])


@pytest.mark.parametrize("function", FUNCTIONS[:-1], ids=lambda function: function.__name__)
def test_a_device_behind_its_with_is_refused_before_any_request(tmp_path, function):
    path = tmp_path / "clone.img"
    right("device").to_file(str(path))
    with open_device(path, writable=True) as device:
        prepared = engine.prepare(device, os.urandom)
    values = {"device": device, "original": device, "clone": device, "entropy": os.urandom, "prepared": prepared}
    wanted = [values[name] for name, one in inspect.signature(function).parameters.items() if one.default is one.empty]

    with pytest.raises(UsageError, match=f"^{path} is closed: the argument .* of {function.__name__} must be open.$"):
        function(*wanted)


def test_a_device_in_the_place_of_another_argument_is_called_by_its_name():
    disk = right("device")
    with pytest.raises(UsageError, match=f"^The argument request of prepare is the device {disk.name}, expected a Res"):
        engine.prepare(disk, os.urandom, disk)


@pytest.mark.parametrize(
    "entropy", [lambda size: b"", lambda size: "x" * size, lambda size: None, lambda size: bytes(99)]
)
def test_entropy_of_another_size_or_type_is_refused_and_nothing_is_written(tmp_path, entropy):
    path = tmp_path / "clone.img"
    right("device").to_file(str(path))
    with open_device(str(path), writable=True) as device:
        before = path.read_bytes()
        with pytest.raises(UsageError, match=r"^entropy\(16\) is .*, expected 16 bytes. Nothing was written.$"):
            engine.prepare(device, entropy)
        assert path.read_bytes() == before

        engine.resignature(device, engine.prepare(device, os.urandom))
        after = path.read_bytes()
        with pytest.raises(UsageError, match=r"^entropy\(16\) is .*, expected 16 bytes. Nothing was written.$"):
            engine.undo(device, entropy)
        assert path.read_bytes() == after


@pytest.mark.parametrize("name", ["", "a\0b", "clone\ud800.img"])
def test_a_text_that_is_no_name_of_a_file_is_refused(name):
    with pytest.raises(UsageError, match="names no device"), open_device(name, writable=False):
        pytest.fail("it was opened")


def test_a_range_to_compare_that_is_not_on_the_devices_is_refused():
    disk = right("device")
    with pytest.raises(UsageError, match=r"which ends behind byte \d+ of the devices"):
        engine.compare(disk, disk.copy(), [Range(disk.size_bytes, 1)])


def test_a_call_with_other_arguments_than_the_function_has_is_a_type_error_as_of_any_function():
    disk = right("device")
    for values, named in (((), {}), ((disk, ()), {"words": ()}), ((disk, (), 1), {}), ((disk,), {"other": 1})):
        with pytest.raises(TypeError, match=r"inspect\(\) "):
            engine.inspect(*values, **named)


def test_a_promised_function_names_the_kind_of_each_argument():
    with pytest.raises(AssertionError):

        @promised(first=FLAG)
        def function(first, second):
            """Never called."""


def test_a_device_has_a_text_or_a_path_as_its_name():
    with pytest.raises(UsageError, match="argument name of open_device is b'clone.img', expected a text or a pathlib"):
        open_device(b"clone.img", writable=False).__enter__()
