# SPDX-License-Identifier: LGPL-2.1-only
"""A public module says in `__all__` what is public, and type checkers of other programs see the package's types."""

import importlib
import inspect
import subprocess
import sys

import pytest

from kit.shell import TOP

PUBLIC = [
    "relvmoiscsi.device",
    "relvmoiscsi.engine",
    "relvmoiscsi.errors",
    "relvmoiscsi.iscsi",
    "relvmoiscsi.lun.named_device",
    "relvmoiscsi.pool.connection",
    "relvmoiscsi.report",
]


def own_names(module):
    """The functions and classes that a module defines without an underscore."""
    for name, value in vars(module).items():
        is_named = inspect.isfunction(value) or inspect.isclass(value)
        if is_named and not name.startswith("_") and value.__module__ == module.__name__:
            yield name


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_module_lists_its_names(name):
    module = importlib.import_module(name)

    assert set(own_names(module)) - set(module.__all__) == set()
    assert [name for name in module.__all__ if not hasattr(module, name) or name.startswith("_")] == []
    assert len(set(module.__all__)) == len(module.__all__)


@pytest.mark.processes
def test_what_is_installed_says_that_it_has_types(tmp_path):
    words = ["-q", "build", "--build-base", str(tmp_path / "base"), "--build-lib", str(tmp_path / "lib")]

    subprocess.run([sys.executable, "setup.py", *words], cwd=str(TOP), check=True, stderr=subprocess.PIPE)

    assert (tmp_path / "lib/relvmoiscsi/py.typed").is_file()
    assert (tmp_path / "lib/relvmoiscsi/answers.schema.json").is_file()
