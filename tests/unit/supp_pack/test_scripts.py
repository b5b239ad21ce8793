# SPDX-License-Identifier: LGPL-2.1-only
"""What the scripts outside the package import from the package exists: no other test of a unit runs them all."""

import ast
import importlib

import pytest

from kit.rpm_tools import TOP

SCRIPTS = ("supp-pack/relvmoiscsi", "supp-pack/sm-whitelist", "drivers/ReLVMoISCSISR", "drivers/ReLVMoHBASR")


def imported(script):
    """(module, name) of each import from the package, at any depth."""
    for node in ast.walk(ast.parse((TOP / script).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("relvmoiscsi"):
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("script", [*SCRIPTS, "drivers/plugins/relvmoiscsi"])
def test_what_a_script_imports_is_there(script):
    found = list(imported(script))

    assert found
    for module, name in found:
        assert hasattr(importlib.import_module(module), name) or importlib.import_module(f"{module}.{name}")
