# SPDX-License-Identifier: LGPL-2.1-only
"""No repr and no str of an object shows a secret: a program logs its objects, and a traceback shows them."""

import importlib
import pkgutil
import re

import pytest

import acceptance
import relvmoiscsi
from kit.own_source import ROOT
from relvmoiscsi.iscsi.names import Credentials

MARK = "s3cret-of-a-test"
SECRET = re.compile(r"(?:password|secret|settings)\Z")  # `settings` of the environment of a command, in Cinder's layer
UUIDS = {"ProbePortal"}  #: its secrets are the UUIDs of xapi's Secrets, which the device-config of a PBD shows as well


def named_tuples():
    """Each NamedTuple class of the package, of the acceptance day, and of the layer for Cinder that needs no Cinder."""
    modules = [importlib.import_module("relvmoiscsi_cinder.place")]
    for package in (relvmoiscsi, acceptance):
        names = [each.name for each in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
        modules += [importlib.import_module(name) for name in names if name != "relvmoiscsi.__main__"]
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, type) and hasattr(value, "_fields") and value.__module__ == module.__name__:
                yield value


@pytest.fixture
def with_secrets(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT.parent / "openstack"))
    found = {each for each in named_tuples() if any(map(SECRET.search, each._fields))}
    return [each for each in found if each.__name__ not in UUIDS]


def test_no_object_with_a_secret_shows_it(with_secrets):
    shown = {}
    for kind in with_secrets:
        value = kind._make(MARK if SECRET.search(field) else f"the {field}" for field in kind._fields)
        shown[kind.__name__] = repr(value) + str(value) + f"{value}" + repr([value])

    assert {"Where", "LunSearch", "Chap", "Place"} <= set(shown)  # the rule found them
    assert [name for name, text in shown.items() if MARK in text] == []
    assert "pool='the pool', user='the user', password=...," in shown["Where"]


def test_a_url_with_a_password_is_not_shown():
    where = importlib.import_module("relvmoiscsi.pool.connection").Where("https://root:" + MARK + "@pool.example")

    assert MARK not in repr(where)


def test_a_login_shows_users_and_no_secret():
    assert repr(Credentials("me", MARK, "it", MARK[::-1])) == "Credentials(user='me', incoming_user='it')"
