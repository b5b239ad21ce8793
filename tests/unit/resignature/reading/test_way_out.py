# SPDX-License-Identifier: LGPL-2.1-only
"""What a LUN calls its volumes is no option, no configuration and no filter of the command that a message prints."""

import shlex

import pytest

from kit.judges import dice
from kit.refusals import GONE, ROWS, text
from relvmoiscsi import engine
from relvmoiscsi.errors import Place, Unsupported, WayOut
from relvmoiscsi.formats.lvm.text_format import parse
from relvmoiscsi.formats.lvm.vg import _refuse_unknown
from relvmoiscsi.resignature.reading.way_out import PLACEHOLDER, told, without

SYSTEM_ID = 'vg {{ system_id = "{}"\n}}\n'


def way_out_of(system_id):
    with pytest.raises(Unsupported, match="it has a system_id") as refused:
        _refuse_unknown(parse(SYSTEM_ID.format(system_id), Place("/dev/sdc", 0)).section("vg"))
    return refused.value.way_out


def test_the_system_id_of_a_host_is_in_the_command():
    assert 'local { system_id="host.a-1" }' in told(way_out_of("host.a-1"), "/dev/sdc")[1]


def test_a_command_that_removes_data_is_told_and_is_no_next_step():
    sentence, command = told(WayOut(("lvremove",), ("VG_XenStorage-x/MGT",)), "/dev/sdc")
    assert "lvremove --config" in sentence and command == ""


def test_a_command_that_leaves_vdis_behind_names_a_few_of_those_that_go_too_and_asks():
    words = ["relvmoiscsi", "resignature", "-vyn", "-y", "--", "-y"]
    assert without(words, ["a", "b"], list("cdefgh")) == (
        "To go on without these 2 VDIs: `relvmoiscsi resignature -vn --without a --without b -- -y`. "
        "The command also deletes 6 other VDIs, made of them: c, d, e, f and 2 more."
    )


@pytest.mark.parametrize(
    "system_id", [r"x\" } devices { filter=[\"a|.*|\"] } local { system_id=\"x", "a b", "x" * 128, r"\\"]
)
def test_a_system_id_cannot_set_the_configuration_of_lvm(system_id):
    """The filter keeps LVM away from the original, and other settings name programs that LVM starts."""
    assert told(way_out_of(system_id), "/dev/sdc") == ("", "")


@pytest.mark.parametrize(
    "name",
    [
        "-f",
        "--config",
        "--uuid",
        "--deltag",
        "",
        "vg/--yes",
        "../etc",
        "a/b/c",
        "vg;id",
        "vg\n",
        "vg|x",
        "\\",
        "/dev/sdd",
    ],
)
def test_a_name_that_lvm_does_not_give_is_in_no_command(name):
    assert told(WayOut(("vgimport",), (name,)), "/dev/sdc") == ("", "")
    assert told(WayOut(("lvremove",), (f"-{name}/lv",)), "/dev/sdc") == ("", "")


@pytest.mark.parametrize(
    ("disk", "pattern"),
    [
        ("/dev/sdc", "/dev/sdc"),
        ("/dev/disk/by-id/scsi-3600", "/dev/disk/by-id/scsi-3600"),
        ("/dev/disk/by-scsid/3600/mapper", "/dev/disk/by-scsid/3600/mapper"),
        ("/dev/mapper/1x.+y", "/dev/mapper/1x[.][+]y"),
        ("/dev/disk/by-id/wwn-0x6001", "/dev/disk/by-id/wwn-0x6001"),
        ("/dev/disk/by-id/dm-uuid-mpath-3600", "/dev/disk/by-id/dm-uuid-mpath-3600"),
        ("/dev/disk/by-path/ip-10.0.0.6:3260-lun-1", "/dev/disk/by-path/ip-10[.]0[.]0[.]6:3260-lun-1"),
        *(
            (disk, PLACEHOLDER)
            for disk in ("/dev/mapper/1x.*", "/dev/mapper/1|a|", '/dev/mapper/1"', "/dev/x\\", "/root/image")
        ),
        *(
            (place, PLACEHOLDER)
            for place in (
                "/dev/shm/user/x", "/dev/shm/x", "/dev/mqueue/x", "/dev/fd/3", "/dev/stdin", "/dev/../home/user/x",
                "/dev/disk/../shm/x", "/dev/disk/by-id/../../shm/x", "/dev/disk/by-id/x/../../shm/x", "/dev//shm/x",
                "/dev/mapper/../shm", "/dev/mapper/../shm/x",
            )
        ),
        *(
            (name_in_the_content, PLACEHOLDER)  # the original has the same
            for name_in_the_content in (
                "/dev/disk/by-id/lvm-pv-uuid-0dUHqe", "/dev/disk/by-id/dm-name-vg-lv", "/dev/disk/by-label/prod",
                "/dev/disk/by-uuid/x", "/dev/disk/by-partuuid/x", "/dev/disk/by-partlabel/x", "/dev/mapper/vg-lv",
                "/dev/disk/by-path/pci-part/by-label/x",
            )
        ),
    ],
)  # fmt: skip
def test_the_filter_lets_the_clone_through_and_no_other_disk(disk, pattern):
    words = shlex.split(told(WayOut(("vgimport",), ("vg",)), disk)[0].split("`")[1])
    assert words[0] == "vgimport" and words[-1] == "vg"
    assert f'filter=["a|^{pattern}$|","r|.*|"] global_filter=["a|^{pattern}$|","r|.*|"]' in words[2]


@pytest.mark.parametrize(
    ("name", "status", "removed"),
    [
        ("extra", '"READ", "VISIBLE"', "extra"),
        ("pvmove0", '"READ", "PVMOVE", "LOCKED"', ""),  # LVM says: Can't remove locked logical volume
        ("MGT_mimage_0", '"READ", "WRITE"', ""),
        (f"VHD-{GONE}", '"READ", "VISIBLE"', ""),
        (f"LV-{GONE}", '"READ", "VISIBLE"', ""),
        (f"QCOW2-{GONE}", '"READ", "VISIBLE"', ""),
    ],
)
def test_no_command_removes_a_volume_of_the_sr_that_lvm_has_mirrored(name, status, removed):
    """lvremove asks nobody about a volume that is not active, and a later run would succeed without the data."""
    lv = f'{name} {{\nid = "aaaaaa-aaaa-aaaa-aaaa-aaaa-aaaa-aaaaaa"\nstatus = [{status}]\nsegment_count = 1\n'
    lv += 'segment1 {\nstart_extent = 0\nextent_count = 1\ntype = "mirror"\n}\n}\n'
    disk = text("logical_volumes {\n", "logical_volumes {\n" + lv)().disk
    with pytest.raises(Unsupported, match="is not linear") as raised:
        engine.prepare(disk, dice("ids"))
    said = str(raised.value)
    if removed:
        assert f"removes {removed} and all its data, and changes nothing but the clone" in said
    else:
        assert "lvremove --config" not in said and "lvremove would destroy data of the SR" in said


@pytest.mark.parametrize("name", ["LV of another type", "striped LV"])
def test_no_command_removes_mgt(name):
    with pytest.raises(
        Unsupported, match=r"Logical volume MGT .* is not linear.* lvremove would destroy data of the SR"
    ):
        engine.prepare(ROWS[name].make().disk, dice("ids"))
