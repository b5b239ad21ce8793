# SPDX-License-Identifier: LGPL-2.1-only
"""The list of storage drivers that xapi accepts, read as xapi reads it."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relvmoiscsi.errors import NotFound
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.host.xapi import conf
from relvmoiscsi.host.xapi.conf import Setting, sm_plugins, value_of

STOCK = "ext nfs iscsi lvmoiscsi dummy file hba rawhba udev iso lvm lvmohba lvmofcoe shm smb"


@pytest.fixture
def root(tmp_path):
    """The root directory of a host whose xapi is configured by files that the test writes."""
    (tmp_path / "etc" / "xapi.conf.d").mkdir(parents=True)
    return tmp_path


def configure(root, **files):
    """conf: of xapi.conf; every other name, with _ for -, is a file in xapi.conf.d that ends in .conf."""
    for name, content in files.items():
        path = "xapi.conf" if name == "conf" else "xapi.conf.d/{}.conf".format(name.replace("_", "-"))
        (root / "etc" / path).write_text(content, encoding="utf-8")


@pytest.mark.parametrize(
    "line, plugins",
    [
        ("sm-plugins=ext nfs", ("ext", "nfs")),
        ("  sm-plugins\t=\text  nfs \t", ("ext", "nfs")),
        ("sm-plugins=\"ext nfs'", ('"ext', "nfs'")),
        ('sm-plugins="', ('"',)),
        ("sm-plugins=ext # nfs", ("ext",)),
        ('sm-plugins="ext # nfs"', ('"ext',)),
        ("sm-plugins=ext nfs\r", ("ext", "nfs")),
        ("sm-plugins=ext\fnfs\vsmb", ("ext", "nfs\vsmb")),
        ("sm-plugins=", ()),
        ("sm-plugins==b", ("=b",)),
        ("set sm-plugins=ext", ("ext",)),
        ("#sm-plugins=ext", None),
        ("sm-plugins", None),
        ("SM-plugins=ext", None),
        ("my-sm-plugins=ext", None),
        ("log=sm-plugins=ext", None),
        ("=ext", None),
    ],
)
def test_a_line_is_taken_apart_as_xapi_does_it(line, plugins):
    assert value_of(line.encode()) == plugins


def test_the_last_line_in_the_last_file_is_the_whole_list(root):
    configure(
        root, conf="sm-plugins=a\nsm-plugins=b\n", x10="sm-plugins=c\nlog=d", x20="sm-plugins=d\n#\n", x30="log=e"
    )

    found = sm_plugins(Host(str(root)))

    of_conf, of_x = "/etc/xapi.conf", "/etc/xapi.conf.d/x{}.conf"
    lists = [(of_conf, "a"), (of_conf, "b"), (of_x.format(10), "c"), (of_x.format(20), "d")]
    assert found == [Setting(path, (name,)) for path, name in lists]


def test_files_are_read_in_the_byte_order_of_their_names_whatever_their_suffix(root):
    names = [b"00", b".hidden", b"99-a.conf", b"99-a.conf.rpmsave", b"99-a.conf~", b"B", b"~", b"\xc3\xa9", b"\xff"]
    for name in names:
        with open(os.path.join(os.fsencode(str(root)), b"etc/xapi.conf.d", name), "wb") as file:
            file.write(b"sm-plugins=" + name + b"\n")

    found = sm_plugins(Host(str(root)))

    assert [os.fsencode(os.path.basename(setting.path)) for setting in found] == sorted(names)
    assert os.fsencode(found[-1].plugins[0]) == b"\xff"


@pytest.mark.parametrize(
    "plugins, name, accepted",
    [
        (STOCK, "lvmoiscsi", True),
        (STOCK, "relvmoiscsi", False),
        ("ext ReLVMoISCSI", "relvmoiscsi", True),
        ("ext *", "relvmoiscsi", True),
        ("relvmoiscsi*", "relvmoiscsi", False),
        ("", "relvmoiscsi", False),
        ("relvmoi\u017fcsi", "relvmoiscsi", False),
    ],
)
def test_a_driver_is_accepted_by_its_name_in_any_case_or_by_a_star(root, plugins, name, accepted):
    configure(root, conf="sm-plugins=" + plugins)

    assert sm_plugins(Host(str(root)))[-1].allows(name) is accepted


def test_without_a_line_no_driver_is_accepted_and_an_empty_list_is_a_list(tmp_path):
    assert sm_plugins(Host(str(tmp_path))) == [], "neither file nor directory need exist"
    (tmp_path / "etc").mkdir()
    configure(tmp_path, conf="log=all\n")
    assert sm_plugins(Host(str(tmp_path))) == []

    configure(tmp_path, conf="sm-plugins=ext")
    assert sm_plugins(Host(str(tmp_path)))[-1].plugins == ("ext",)
    (tmp_path / "etc/xapi.conf.d").mkdir()
    configure(tmp_path, x="sm-plugins=\n")
    assert sm_plugins(Host(str(tmp_path)))[-1] == Setting("/etc/xapi.conf.d/x.conf", ())


def test_what_xapi_cannot_read_is_named_and_does_not_hide_the_rest(root):
    configure(root, conf="sm-plugins=ext", y="sm-plugins=nfs")
    (root / "etc/xapi.conf.d/x").mkdir()
    (root / "etc/xapi.conf.d/.#y.conf").symlink_to("someone@somewhere")
    os.mkfifo(str(root / "etc/xapi.conf.d/pipe"))

    names = [".#y.conf", "pipe", "x"]
    assert conf.conf_files(Host(str(root)))[1] == ["/etc/xapi.conf.d/" + name for name in names]
    assert sm_plugins(Host(str(root)))[-1].plugins == ("nfs",)


def test_a_file_that_cannot_be_read_is_an_error_and_one_that_goes_meanwhile_is_empty(root, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", lambda _directory: [b"gone"])
        assert conf.conf_files(Host(str(root)))[0]["/etc/xapi.conf.d/gone"] == b""
    (root / "etc/xapi.conf").mkdir()

    with pytest.raises(NotFound, match=r"xapi\.conf cannot be read: Is a directory"):
        sm_plugins(Host(str(root)))


NAMES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, blacklist_characters="#\"'\\"), min_size=1)


@given(st.lists(NAMES), st.sampled_from([" ", "\t", "  "]), st.sampled_from(["", '"', "'"]), st.text(alphabet=" \t"))
def test_what_is_written_as_a_list_is_read_as_that_list(names, separator, quote, blanks):
    line = f"{blanks}sm-plugins{blanks}={blanks}{quote}{separator.join(names)}{quote}{blanks}# comment"

    assert value_of(line.encode()) == tuple(names)


@given(st.binary())
def test_any_bytes_are_a_line(line):
    plugins = value_of(line.replace(b"\n", b""))

    assert plugins is None or all(plugins)
