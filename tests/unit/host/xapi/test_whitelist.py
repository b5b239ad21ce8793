# SPDX-License-Identifier: LGPL-2.1-only
"""Our drop-in among xapi's configuration: when there is one, what it says, what becomes of it, and of all other files.

A tree here is what lies under a host's root directory: content by path. `sync` and `remove` are asked what they make of
one, and `xapi_list` is what xapi would read from it.
"""

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.examples import examples
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host import run_directory
from relvmoiscsi.host.this_host import Host as AnyHost
from relvmoiscsi.host.xapi import whitelist
from relvmoiscsi.host.xapi.conf import sm_plugins
from relvmoiscsi.host.xapi.whitelist import remove, sync
from relvmoiscsi.sr_types import OWN_TYPES

CONF, CONF_D = "/etc/xapi.conf", "/etc/xapi.conf.d/"
DROP_IN = CONF_D + "zz-relvmoiscsi.conf"
STOCK = {CONF: b"log=all\nsm-plugins=ext nfs lvmoiscsi\n"}
DIRECTORY = {CONF_D: None}


class Host:
    """The files under a root directory."""

    def __init__(self, directory, tree=()):
        self.root = Path(str(directory))
        (self.root / "etc").mkdir()
        for path, content in sorted(dict(tree).items()):
            self.write(path, content)

    def __truediv__(self, path):
        return self.root / path.lstrip("/")

    def write(self, path, content):
        """A file; without content, a directory."""
        target = self / path
        (target if content is None else target.parent).mkdir(parents=True, exist_ok=True)
        if content is not None:
            target.write_bytes(content)

    def tree(self):
        """All of it but /run, which is gone after a reboot, and has the lock."""
        found = {}
        for directory, _, files in os.walk(os.fsencode(str(self.root))):
            path = directory[len(os.fsencode(str(self.root))) :] or b"/"
            if path.startswith(b"/run"):
                continue
            found[path] = None
            for name in files:
                with open(os.path.join(directory, name), "rb") as file:
                    found[os.path.join(path, name)] = file.read()
        return found

    def conf_d(self):
        return sorted(os.listdir(str(self / CONF_D))) if (self / CONF_D).exists() else []

    def xapi_list(self):
        return ([(), *(setting.plugins for setting in sm_plugins(AnyHost(str(self.root))))])[-1]

    def sync(self):
        return sync(AnyHost(str(self.root)))

    def remove(self):
        return remove(AnyHost(str(self.root)))

    def edit(self, path, old, new):
        """What an administrator does with an editor."""
        content = (self / path).read_bytes()
        assert old in content
        (self / path).write_bytes(content.replace(old, new))


@pytest.fixture
def host(tmp_path):
    """Make a host with these files: host(tree)."""

    def make(*trees):
        (tmp_path / "host").mkdir()
        return Host(tmp_path / "host", {path: content for tree in trees for path, content in tree.items()})

    return make


@pytest.fixture
def synced(host):
    """A stock host with our drop-in."""
    dom0 = host(STOCK, DIRECTORY)
    dom0.sync()
    return dom0


# --- whether there is a drop-in, and what it says


ACCEPTED = "/etc/xapi.conf accepts relvmoiscsi and relvmohba already."
NO_LIST = "Neither /etc/xapi.conf nor /etc/xapi.conf.d sets sm-plugins: nothing was written."


@pytest.mark.parametrize(
    "tree, sentence",
    [
        ({CONF: b"sm-plugins = *", **DIRECTORY}, ACCEPTED),
        ({CONF: b"sm-plugins = ext * nfs", **DIRECTORY}, ACCEPTED),
        ({CONF: b"sm-plugins = RELVMOHBA ReLVMoISCSI", **DIRECTORY}, ACCEPTED),
        ({}, NO_LIST),
        (DIRECTORY, NO_LIST),
        ({CONF: b"log=all\n"}, NO_LIST),
    ],
)
def test_nothing_is_written_where_xapi_accepts_us_already_or_ours_alone_would_turn_off_all_others(host, tree, sentence):
    dom0 = host(tree)
    before = dom0.tree()

    assert dom0.sync() == (False, sentence)
    assert dom0.tree() == before


# --- its name


def test_it_is_read_after_every_other_file_with_a_list_and_repeats_the_one_that_wins(host):
    other = "\udcff"
    dom0 = host(STOCK, {CONF_D + "00.conf": b"sm-plugins=a", CONF_D + other: b"sm-plugins=ext other\n"})

    dom0.sync()

    assert dom0.xapi_list() == ("ext", "other", "relvmoiscsi", "relvmohba")
    assert (dom0 / (CONF_D + other)).read_bytes() == b"sm-plugins=ext other\n"


@pytest.mark.parametrize(
    "tree, words",
    [
        ({**STOCK, CONF_D + "z" * 250: b"sm-plugins=other"}, "no name of ours sorts behind its name. Rename that file"),
        ({CONF: b"sm-plugins='\\ext nfs'\n", **DIRECTORY}, "cannot be repeated in another file"),
    ],
)
def test_where_no_name_can_sort_last_or_the_list_cannot_be_repeated_it_says_so(host, tree, words):
    dom0 = host(tree)
    before = dom0.tree()

    with pytest.raises(Refused, match=words):
        dom0.sync()

    assert dom0.tree() == before


# --- when others change, or ours by hand

LIST = b"ext nfs lvmoiscsi relvmoiscsi relvmohba"


@pytest.mark.parametrize(
    "ours, files, plugins, names",
    [
        (LIST, {CONF: b"sm-plugins=ext nfs lvmoiscsi new\n"}, "ext nfs lvmoiscsi new relvmoiscsi relvmohba", []),
        (LIST, {CONF_D + "9.conf.rpmsave": b"sm-plugins=x\n"}, "x relvmoiscsi relvmohba", ["9.conf.rpmsave"]),
        (b"ext nfs lvmoiscsi", {CONF: b"sm-plugins=ext new\n"}, "ext new relvmoiscsi relvmohba", []),
        # copies of ours that an editor left decide nothing, and go
        *((LIST, {CONF_D + name: None, CONF: b"sm-plugins=ext\n"}, "ext relvmoiscsi relvmohba", [])
          for name in ("zz-relvmoiscsi.conf~", "#zz-relvmoiscsi.conf#", "00-copy")),
    ],
)  # fmt: skip
def test_it_follows_the_other_files_also_after_a_change_by_hand(synced, ours, files, plugins, names):
    synced.edit(DROP_IN, b"\nsm-plugins = " + LIST, b"\nsm-plugins = " + ours)
    for path, content in files.items():
        synced.write(path, content or (synced / DROP_IN).read_bytes())

    synced.sync()

    assert synced.xapi_list() == tuple(plugins.split())
    assert synced.conf_d() == [*names, "zz-relvmoiscsi.conf"]
    before = synced.tree()
    assert not synced.sync()[0]
    assert synced.tree() == before


def test_while_xapi_has_no_list_the_drop_in_stays(synced):
    (synced / CONF).unlink()
    before = synced.tree()
    synced.sync()
    assert synced.tree() == before


# --- when something is in the way


def test_a_root_without_etc_is_none(tmp_path):
    with pytest.raises(NotFound, match="etc cannot be opened"):
        sync(AnyHost(str(tmp_path / "nowhere")))


def test_two_runs_wait_for_each_other(host, monkeypatch):
    dom0 = host(STOCK, DIRECTORY)
    monkeypatch.setattr(whitelist, "WAIT_SECONDS", 0.0)
    waits = pytest.raises(Refused, match="sm-whitelist waited 0 seconds for")
    with run_directory.only_one("whitelist.lock", AnyHost(str(dom0.root)), 0.0, "It is changed by"), waits:
        dom0.sync()

    assert dom0.sync()[0]


class Killed(BaseException):
    """The process ends here."""


CHANGING = ("open", "fsync", "rename", "unlink", "mkdir", "fchmod")


def cut_at(patch, last, error):
    """From operation number `last` on, no operation of the system happens: they fail, or the process is gone."""
    done = []

    def guarded(real):
        def operation(*arguments, **options):
            done.append(real)
            if len(done) >= last:
                raise error
            return real(*arguments, **options)

        return operation

    for name in CHANGING:
        patch.setattr(os, name, guarded(getattr(os, name)))
    return done


def cuts(act, host, error):
    """Do `act` once for every operation it makes, cut there; after each, what xapi would find."""
    last = 0
    while True:
        last += 1
        with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
            dom0 = host(directory)
            done = cut_at(patch, last, error)
            try:
                act(dom0)
            except (Killed, Refused, NotFound):
                assert len(done) >= last
            else:
                assert last > 1, "nothing was done"
                return
            patch.undo()
            yield dom0


def added(directory):
    return Host(directory, STOCK)


def installed(directory):
    dom0 = added(directory)
    dom0.sync()
    return dom0


def changed(directory):
    dom0 = installed(directory)
    dom0.write(CONF_D + "zzz.conf", b"sm-plugins=other\n")
    return dom0


@pytest.mark.parametrize("error", [Killed(), OSError(28, "No space left on device")], ids=["killed", "failing"])
@pytest.mark.parametrize(
    "prepare, act, lists, names",
    [
        (added, Host.sync, [("ext", "nfs", "lvmoiscsi"), ("ext", "nfs", "lvmoiscsi", "relvmoiscsi", "relvmohba")],
         ["zz-relvmoiscsi.conf"]),
        (changed, Host.sync, [("other",), ("other", *OWN_TYPES), ("ext", "nfs", "lvmoiscsi", *OWN_TYPES)],
         ["zzz.conf", "zz-relvmoiscsi.conf", "zzz.conf-zz-relvmoiscsi.conf"]),
        (installed, Host.remove, [("ext", "nfs", "lvmoiscsi", "relvmoiscsi", "relvmohba"), ("ext", "nfs", "lvmoiscsi")],
         ["zz-relvmoiscsi.conf"]),
    ],
    ids=["added", "changed", "removed"],
)  # fmt: skip
def test_a_run_that_is_cut_leaves_xapi_the_old_list_or_the_new_one(prepare, act, lists, names, error):
    seen = 0
    for dom0 in cuts(act, prepare, error):
        seen += 1
        assert dom0.xapi_list() in lists
        assert set(dom0.conf_d()) <= set(names), "xapi would parse something that is not meant for it"

        act(dom0)

        assert dom0.xapi_list() == lists[1]
        assert sorted(os.listdir(str(dom0 / "etc"))) == ["xapi.conf", "xapi.conf.d"]
    assert seen > 3


# --- whatever there is

PLUGINS = st.lists(
    st.sampled_from(["ext", "nfs", "EXT", "lvmoiscsi", "x-1", "*", "relvmoiscsi", "relvmohba", "'a", "b'"]), max_size=5
)
LINES = st.one_of(
    st.builds("sm-plugins{1}{0}".format, PLUGINS.map(" ".join), st.sampled_from(["=", " = ", "\t="])),
    st.builds('sm-plugins="{}" # comment'.format, PLUGINS.map(" ".join)),
    st.sampled_from(["", "log=all", "# sm-plugins=ext", "nonsense", "sm-dir = /usr/libexec/sm/drivers"]),
)
CONTENTS = st.builds(
    lambda lines, end: ("\n".join(lines) + end).encode(), st.lists(LINES, max_size=3), st.sampled_from(["", "\n"])
)
FILE_NAMES = st.one_of(
    st.sampled_from(["99-a.conf", "99-a.conf.rpmsave", "zz-b.conf", "zzz.conf", "~", ".x", "\u00e9.conf"]),
    st.text("az~-.", min_size=1, max_size=6).filter(lambda name: name not in (".", "..")),
)
FILES = st.dictionaries(FILE_NAMES, CONTENTS, max_size=4)
TREES = st.builds(
    lambda conf, files, has_directory: {
        **({CONF: conf} if conf is not None else {}),
        **(DIRECTORY if has_directory or files else {}),
        **{CONF_D + name: content for name, content in files.items()},
    },
    st.one_of(st.none(), CONTENTS),
    FILES,
    st.booleans(),
)


@contextmanager
def on_host(tree):
    """A host in a directory that goes when the block ends; hypothesis needs a new one for each example."""
    with tempfile.TemporaryDirectory() as directory:
        yield Host(directory, tree)


@settings(max_examples=examples(60))
@given(TREES, st.lists(FILES, max_size=2))
def test_whatever_others_change_they_and_we_are_accepted_once_and_our_removal_restores_every_byte(tree, changes):
    with on_host({**tree, **DIRECTORY}) as dom0, on_host({**tree, **DIRECTORY}) as without:
        for files in [None, *changes]:
            for host in (dom0, without) if files is not None else ():
                for name in host.conf_d():
                    if not name.endswith("zz-relvmoiscsi.conf"):
                        (host / (CONF_D + name)).unlink()
                for name, content in files.items():
                    host.write(CONF_D + name, content)
            others = sm_plugins(AnyHost(str(without.root)))

            dom0.sync()

            if others:
                expected = (*others[-1].plugins, *(name for name in OWN_TYPES if not others[-1].allows(name)))
                assert dom0.xapi_list() == expected
            once = dom0.tree()
            assert not dom0.sync()[0] and dom0.tree() == once
        dom0.remove()
        dom0.remove()
        assert dom0.tree() == without.tree()
