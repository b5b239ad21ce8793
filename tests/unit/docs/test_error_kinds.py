# SPDX-License-Identifier: LGPL-2.1-only
"""docs/scripting.rst names every class that `error.class` can have, under its exit status."""

import importlib
import pkgutil
import re

import relvmoiscsi
from kit.shell import TOP
from relvmoiscsi.errors import RelvmoiscsiError

#: never an answer of the command: abstract, caught before the answer, or of the SR driver alone
_NEVER = {"StructureError", "RelvmoiscsiError", "Redirected", "_ClosedByTarget", "MissingKey"}


def _classes(of):
    return {of, *(each for one in of.__subclasses__() for each in _classes(one))}


def test_the_page_has_every_kind_of_error_under_its_exit_status():
    for module in pkgutil.walk_packages(relvmoiscsi.__path__, "relvmoiscsi."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = {each for each in _classes(RelvmoiscsiError) if each.__module__.startswith("relvmoiscsi.")}
    page = (TOP / "docs/scripting.rst").read_text(encoding="utf-8")
    (item,) = re.findall(r"^- ``error.class``.*?(?=^- )", page, re.MULTILINE | re.DOTALL)
    _intro, *parts = re.split(r"\b(\d+):", item)

    told = {
        (name, int(status))
        for status, names in zip(parts[::2], parts[1::2])
        for name in re.findall(r"``(\w+)``", names)
    }
    assert told - {("Interrupted", 130)} == {
        (each.__name__, each.exit_status) for each in ours if each.__name__ not in _NEVER
    }
