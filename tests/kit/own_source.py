# SPDX-License-Identifier: LGPL-2.1-only
"""The modules of the package, and those beside it, as syntax trees, for the rules that the code keeps."""

import ast
from pathlib import Path

import relvmoiscsi

PACKAGE = "relvmoiscsi"
ROOT = Path(relvmoiscsi.__file__).resolve().parent
BESIDE = ("acceptance", "drivers", "openstack/relvmoiscsi_cinder", "ansible/plugins")


def own_modules():
    """Each module of the package: its name ("formats.lvm.pv", "lvm.__init__") and its source."""
    for path in sorted(ROOT.rglob("*.py")):
        yield ".".join(path.relative_to(ROOT).with_suffix("").parts), path.read_text(encoding="utf-8")


def modules_beside():
    """Each module beside the package that runs where a person has a pool: its name ("acceptance.made"), its source."""
    top = ROOT.parent
    for path in sorted(path for place in BESIDE for path in (top / place).rglob("*")):
        if path.is_file() and path.suffix in ("", ".py"):  # xapi runs programs without a suffix
            yield ".".join(path.relative_to(top).with_suffix("").parts), path.read_text(encoding="utf-8")


def nodes_of(source):
    """All nodes of the syntax tree of a module, as `ast.walk` gives them, without the contexts of names."""
    found = [ast.parse(source)]
    for node in found:  # which grows meanwhile
        for name in node._fields:
            value = getattr(node, name, None)
            for each in value if isinstance(value, list) else (value,):
                if isinstance(each, ast.AST) and not isinstance(each, ast.expr_context):
                    found.append(each)
    return found
