# SPDX-License-Identifier: LGPL-2.1-only
"""`--without UUID` leaves a VDI that cannot be read behind: what goes is listed, asked for, and comes back by undo."""

import itertools
import random
import re
import shlex

import pytest

from kit import golden, reader
from kit.builder import AREA_DEFAULT, SMALL_BAT, build_sr, named, qcow2, raw, vhd
from kit.cuts import BROKEN
from kit.examples import seeds
from kit.shell import content, cut, patched
from kit.sm_recovery import recovery
from kit.spoiled import LABEL, Spoiled

UUIDS = BROKEN.truth.uuids
GOES = {UUIDS["broken"], UUIDS["child"]}
WITHOUT = ("--without", UUIDS["broken"])


@pytest.fixture
def image(tmp_path):
    """A LUN with a chain, a VDI that cannot be read, and a VDI that was made of it."""
    path = tmp_path / "clone.img"
    BROKEN.disk.to_file(str(path))
    return path


def test_without_it_the_lun_is_refused_and_the_message_has_the_command(image, unwritten):
    ran = unwritten(5, "resignature", image, "--yes", says="To go on without this VDI: ")

    assert f"`relvmoiscsi resignature {image} --without {UUIDS['broken']}`." in ran.err
    assert f"The command also deletes 1 other VDI, made of it: {UUIDS['child']}." in ran.err


@pytest.mark.parametrize("given, kept", [(["-y"], []), (["--json", "--yes"], []), (["-n", "-y"], ["-n"])])
def test_the_command_that_deletes_vdis_asks_whatever_the_refused_command_was(image, unwritten, given, kept):
    ran = unwritten(5, "resignature", image, *given)

    said = ran.json["error"]["advice"] if "--json" in given else ran.err
    assert f"`{' '.join(map(str, ['relvmoiscsi resignature', image, *kept, *WITHOUT]))}`" in said


def test_prompt_dry_run_and_json_list_what_goes(image, command, type_in, unwritten):
    planned = unwritten(0, "resignature", image, *WITHOUT, "--dry-run")
    facts = unwritten(0, "resignature", image, *WITHOUT, "--dry-run", "--json").json
    type_in("n\n")
    asked = unwritten(4, "resignature", image, *WITHOUT).err

    for said in (planned.out, asked):
        goes = [line.split()[1] for line in said.splitlines() if line.startswith("  deletes ")]
        assert set(goes) == GOES
        assert "`relvmoiscsi undo` brings these back until LVM next changes the volume group." in said.splitlines()
        assert "VHD footer copy at byte 0" in said and "was made of a VDI that is left behind" in said
    assert "Destroy 2 VDIs and keep 2 more? [y/N] " in asked
    problems = {row["uuid_in_name"]: row["problem"] for row in facts["dropped"]}
    assert set(problems) == GOES and "begins with" in problems[UUIDS["broken"]] and problems[UUIDS["child"]] is None
    assert not GOES.intersection(vdi["old_vdi"] for vdi in facts["vdi_pairs"])


@pytest.mark.parametrize("words", [WITHOUT, ("--vdis", "one", "--vdi", UUIDS["disk"])], ids=["without", "one VDI"])
def test_a_dry_run_says_the_state_that_show_says(image, command, unwritten, words):
    planned = unwritten(0, "resignature", image, *words, "--dry-run", "--json").json
    assert planned["state"] == command("show", image, "--json").json["state"] == "damaged"


def test_the_rest_is_resignatured_and_undo_brings_the_broken_vdi_back(image, command):
    done = command("resignature", image, *WITHOUT, "--yes", "--json").json

    assert {row["uuid_in_name"] for row in done["dropped"]} == GOES
    rows = [line for line in command("map", "--device", image).out.splitlines() if any(uuid in line for uuid in GOES)]
    assert len(rows) == len(GOES) and all(row.endswith("  [no VDI]") for row in rows)
    shown = command("show", image, "--json").json
    assert shown["state"] == "resignatured" and [vdi["old_vdi"] for vdi in done["vdi_pairs"]] == [
        UUIDS["base"],
        UUIDS["disk"],
    ]
    assert [vdi["vdi"] for vdi in shown["vdis"]] == [vdi["new_vdi"] for vdi in done["vdi_pairs"]]
    assert not any("no volume" in note for note in shown["notes"])  # no record in MGT is left

    resignatured = content(image)[0]
    undone = command("undo", image, "--yes", "--json").json
    assert (undone["state"], command("show", image, "--json").json["state"]) == ("damaged", "damaged")
    resignatured.to_file(str(image))
    leads_to_its_end(command, command("undo", image, "--yes"))


def leads_to_its_end(command, ran):
    """The next step is a command that works as it stands."""
    step = re.findall("^If this is the clone, `relvmoiscsi (.*)` gives it", ran.out.splitlines()[-1])[0]
    assert ran.status == 0
    again = command(*shlex.split(step), "--yes")
    assert again.status == 0, again.err


@pytest.mark.parametrize("words", [["recover", "--yes"], ["undo", "--yes"]])
@pytest.mark.parametrize("request_of", [WITHOUT, ("--vdis", "one", "--vdi", UUIDS["disk"])])
def test_a_run_without_a_vdi_that_was_rolled_back_leads_to_the_same_run(image, command, monkeypatch, request_of, words):
    plan = command("resignature", image, *request_of, "--dry-run", "--json").json["plan"]
    with monkeypatch.context() as patch:
        cut(patch, len(plan) - 3)  # before the commit
        command("resignature", image, *request_of, "--yes")
    assert command("show", image, "--json").json["state"] == "unfinished"
    ran = command(words[0], image, *words[1:])
    leads_to_its_end(command, ran)
    assert all(option in ran.out for option in request_of[:1])


def test_the_same_command_again_has_nothing_to_do_and_another_vdi_is_refused(image, command, unwritten):
    command("resignature", image, *WITHOUT, "--yes")

    assert "was already resignatured" in unwritten(0, "resignature", image, *WITHOUT, "--yes").out
    ran = unwritten(4, "resignature", image, "--without", UUIDS["disk"], "--yes", says="which was to be left behind.")
    (again,) = re.findall("run `relvmoiscsi (.*?)`", ran.err)

    last = command(*shlex.split(again), "--yes")
    assert last.status == 2
    assert " would be left. Nothing was written. Leave fewer VDIs behind (`--without`)." in last.err


@pytest.mark.parametrize("is_finished", [False, True])
@pytest.mark.parametrize("more", [("--yes",), ("--dry-run",)])
def test_a_uuid_that_no_volume_has_is_refused_before_and_after_a_run(image, command, unwritten, is_finished, more):
    """A finished LUN gives no success for a request that no run has carried out."""
    gone = "0a0b0c0d-0000-4000-8000-000000000001"
    if is_finished:
        command("resignature", image, *WITHOUT, "--yes")

    for uuid in (gone, UUIDS["sr"]):
        both = (*WITHOUT, "--without", uuid)
        ran = unwritten(3, "resignature", image, *both, *more, says=f"has no volume of VDI {uuid}")
        assert f"`relvmoiscsi show {image}` lists the VDIs." in ran.err
    if not is_finished:
        ran = unwritten(3, "resignature", image, "--vdis", "one", "--vdi", gone, *more, says=f"has no VDI {gone}. ")
        assert UUIDS["disk"] in ran.err
    unwritten(2, "resignature", image, "--without", "disk", *more, says="'disk'")


def test_a_repeated_request_for_one_vdi_without_another_has_nothing_to_do(image, command, unwritten):
    asked = ("resignature", image, *WITHOUT, "--vdis", "one", "--vdi", UUIDS["disk"], "--yes")
    command(*asked)

    assert "was already resignatured" in unwritten(0, *asked).out


def test_one_vdi_of_a_healthy_disk_drops_a_broken_one_and_says_so(image, command, unwritten):
    """A broken disk counts as a live one: which stays must be named."""
    unwritten(4, "resignature", image, "--vdis", "one", "--yes", says="2 live VDIs, and one is wanted")
    one = ("--vdis", "one", "--vdi", UUIDS["disk"])
    facts = command("resignature", image, *one, "--dry-run", "--json").json
    assert {row["uuid_in_name"]: bool(row["problem"]) for row in facts["dropped"] if row["is_vdi"]}[
        UUIDS["broken"]
    ] is True

    ran = command("resignature", image, *one, "--dry-run")
    assert f"  deletes  {UUIDS['broken']}  'broken' [has a defect]" in ran.out.splitlines()
    assert command("resignature", image, *one, "--yes").status == 0
    assert len(command("show", image, "--json").json["vdis"]) == 1


def test_one_vdi_of_the_broken_disk_itself_is_refused_and_the_other_vdis_are_named(image, unwritten):
    said = unwritten(5, "resignature", image, "--vdis", "one", "--vdi", UUIDS["child"], "--yes").err

    assert f"VDI {UUIDS['child']} is the VDI to keep. No command mends that on the clone." in said
    assert f"These VDIs can be kept: {UUIDS['disk']}." in said and "`" not in said


@pytest.mark.parametrize("left, why", [("child", ""), ("broken", ", because it was made of a VDI")])
def test_a_vdi_that_is_kept_and_left_behind_is_a_contradiction(image, unwritten, left, why):
    one = ("--vdis", "one", "--vdi", UUIDS["child"], "--without", UUIDS[left])

    said = unwritten(2, "resignature", image, *one, "--yes").err

    assert f"VDI {UUIDS['child']} cannot be kept (`--vdi`) and be left behind (`--without`){why}" in said


# --- a person in a hurry, who runs what is printed

NOTHING_HELPS = "No command mends that on the clone."
COMMAND = re.compile("`(relvmoiscsi resignature [^`]*)`")


def spoiled_lun(seed, path):
    """A LUN with several disks, of which chance has spoiled some or all; as an image file with a blank in its name."""
    chance = random.Random(f"in a hurry {seed}")
    disks = []
    for number in range(chance.randint(2, 6)):
        parent = chance.choice([None, *(disk.key for disk in disks if disk.kind == "vhd")])
        key = f"d{number}"
        made = [raw(key), qcow2(key)] if parent is None else []
        disks.append(chance.choice([*made, vhd(key, parent, bat_entries=SMALL_BAT)]))
    lun = Spoiled(build_sr(disks, area=AREA_DEFAULT, free_extents=4))
    readable = [disk.key for disk in disks if disk.kind != "raw"]
    spoiled = chance.sample(readable, chance.randint(min(1, len(readable)), len(readable)))
    for key in spoiled:
        lun.poke((key, 0), bytes(8192))
    lun.disk.to_file(str(path))
    return lun.truth, [lun.truth.uuids[disk.key] for disk in disks]


def options_of(chance, uuids):
    return [
        *chance.choice(([], ["--sr-uuid", "0a0b0c0d-0000-4000-8000-00000000000e"], ["--clear-metadata-vdi"])),
        *chance.choice(([], [], ["--vdis", "one"], ["--vdis", "one", "--vdi", chance.choice(uuids)])),
        *chance.choice(([], [], ["--without", chance.choice(uuids)])),
        *chance.choice(([], ["--not-in-use"])),
    ]


@pytest.mark.parametrize("seed", seeds(range(400), 20))
@pytest.mark.parametrize("first", ["resignature", "check"])
def test_what_a_message_prints_leads_to_the_end_in_one_more_run(first, seed, tmp_path, command):
    path = tmp_path / "my clone.img"
    _truth, uuids = spoiled_lun(seed, path)
    options = ["--yes", *options_of(random.Random(f"options {seed}"), uuids)] if first == "resignature" else []
    before = content(path)

    ran = command(first, path, *options)

    told = list(dict.fromkeys(COMMAND.findall(ran.out + ran.err)))
    if ran.status == 5 and told:
        assert content(path) == before
        (printed,) = told
        words = shlex.split(printed)
        assert words[:3] == ["relvmoiscsi", "resignature", str(path)]
        given = options[1:] if first == "resignature" else []
        assert words[3 : 3 + len(given)] == given and set(words[3 + len(given) :: 2]) == {"--without"}
        ran = command(*words[1:], "--yes")
        assert ran.status == 0, (printed, ran.err)
    elif ran.status == 5:
        assert NOTHING_HELPS in ran.out + ran.err
    else:  # done, or the options contradict each other or name no VDI, and the message prints no command
        assert ran.status == 0 or ran.status in (2, 3, 4) and not told, ran.err


def test_all_that_is_spoiled_is_named_at_once_with_what_was_given(image, tmp_path, unwritten):
    """Spoiled: three disks. One command names them, after what was left behind before."""
    keys = ["a", "b", "c", "d", "e"]
    lun = Spoiled(build_sr([vhd(key, bat_entries=SMALL_BAT) for key in keys], area=AREA_DEFAULT))
    for key in keys[:4]:
        lun.poke((key, 0), bytes(8192))
    path = tmp_path / "x.img"
    lun.disk.to_file(str(path))
    uuids = lun.truth.uuids
    given = ["--without", uuids["b"], "--sr-uuid", "0a0b0c0d-0000-4000-8000-00000000000e"]

    said = unwritten(5, "resignature", path, *given, "--yes", says="To go on without these 3 VDIs: ").err

    more = " ".join(f"--without {uuids[key]}" for key in "acd")
    assert COMMAND.findall(said) == [f"relvmoiscsi resignature {path} {' '.join(given)} {more}"]


def test_nothing_helps_when_each_vdi_is_spoiled(tmp_path, unwritten):
    lun = Spoiled(build_sr([vhd(key, bat_entries=SMALL_BAT) for key in "ab"], area=AREA_DEFAULT))
    for key in "ab":
        lun.poke((key, 0), bytes(8192))
    path = tmp_path / "x.img"
    lun.disk.to_file(str(path))
    every = list(itertools.chain.from_iterable(("--without", lun.truth.uuids[key]) for key in "ab"))

    said = unwritten(5, "resignature", path, "--yes").err
    assert f"No VDI of the clone would be left. {NOTHING_HELPS}" in said and "--without" not in said
    says = "would be left. Nothing was written. Leave fewer VDIs behind (`--without`)."
    unwritten(2, "resignature", path, "--yes", *every, says=says)


def test_a_command_of_lvm_and_the_vdis_to_leave_are_told_in_one_run(tmp_path, unwritten):
    """The other problem behind the first one would be a third run."""
    other = "0a0b0c0d-0000-4000-8000-00000000000f"
    volumes = [named(other + "_trim_lv"), vhd("a", bat_entries=SMALL_BAT), raw("data")]
    lun = Spoiled(build_sr(volumes, area=AREA_DEFAULT)).poke(("a", 0), bytes(8192))
    path = tmp_path / "x.img"
    lun.disk.to_file(str(path))

    said = unwritten(5, "resignature", path, "--yes").err

    assert "`lvremove --config" in said and f"--without {lun.truth.uuids['a']}`" in said


def test_what_nothing_mends_is_said_at_once(tmp_path, unwritten):
    lun = Spoiled(build_sr([vhd("a", bat_entries=SMALL_BAT), raw("data")], area=AREA_DEFAULT))
    lun.poke(("a", 0), bytes(8192)).poke(LABEL + 32, b"x" * 32).sealed_label()
    path = tmp_path / "x.img"
    lun.disk.to_file(str(path))

    said = unwritten(5, "resignature", path, "--yes").err

    assert "its PV id is not the one in the metadata text" in said and NOTHING_HELPS in said and "--without" not in said


def test_a_volume_without_a_vhd_is_named_as_what_it_is_and_left_behind(tmp_path, command, unwritten):
    """SM's VDI.create was cut between lvcreate and `vhd-util create`."""
    spoiled = Spoiled(build_sr([raw("data"), vhd("new", bat_entries=SMALL_BAT, in_mgt=False)], area=AREA_DEFAULT))
    spoiled.poke(("new", 0), bytes(8192))
    path = tmp_path / "clone.img"
    spoiled.disk.to_file(str(path))
    before = content(path)

    said = unwritten(5, "resignature", path, "--yes", says="The storage manager had not finished creating the VDI").err
    assert "it holds no VHD, and MGT has no record of its VDI" in said and content(path) == before

    assert command("resignature", path, "--yes", "--without", spoiled.truth.uuids["new"]).status == 0
    assert len(command("show", path, "--json").json["vdis"]) == 1


# --- what a real storage manager has made, with one volume damaged


def damaged(disk, lv_name):
    """A copy with another byte in the header of this volume."""
    vg, copy = reader.read_vg(disk), disk.copy()
    ((at, _length),) = reader.device_ranges(vg, vg.lv(lv_name), 8, 1)
    copy.poke(at, bytes([copy.peek(at, 1)[0] ^ 0x55]))
    return copy


def places_beside(disk, lv_name):
    """The volumes whose chain does not need this volume, once the storage manager has ended its work: by their place,
    whether they are hidden.
    """
    after = recovery(disk)
    vg, places = reader.read_vg(disk), {}
    for name in after.volumes:
        chain = [name]
        while after.parents.get(chain[-1]) in after.volumes:
            chain.append(after.parents[chain[-1]])
        if lv_name not in {after.volumes[each].found for each in chain}:
            places[vg.lv(after.volumes[name].found).segments] = after.volumes[name].hidden
    return places


@pytest.mark.states("name", few=2)
@pytest.mark.parametrize("name", [*golden.NAMES, *golden.LIVE_NAMES])
def test_the_printed_command_keeps_every_vdi_that_does_not_need_the_damaged_volume(name, tmp_path, command):
    """The storage manager may have been at work: then a volume has the name of another VDI than it will have."""
    disk, path, tried = (golden.load if name in golden.NAMES else golden.load_live)(name).disk, tmp_path / "x.img", 0
    for lv_name in [lv.name for lv in reader.read_vg(disk).lvs if reader.kind_of(lv.name) == "vhd"]:
        clone = damaged(disk, lv_name)
        clone.to_file(str(path))
        told = command("check", path).out
        printed = ["relvmoiscsi resignature " + str(path)] if "damaged" not in told else COMMAND.findall(told)
        expected = places_beside(clone if "damaged" not in told else disk, lv_name)
        if not printed:
            assert NOTHING_HELPS in told and all(expected.values()), lv_name
            continue
        tried += 1
        (words,) = map(shlex.split, printed)

        ran = command(*words[1:], "--yes")

        assert ran.status == 0, (lv_name, ran.err)
        after = reader.read_vg(content(path)[0])
        kept = {lv.segments for lv in after.lvs if reader.kind_of(lv.name) in ("vhd", "raw", "qcow2")}
        assert kept == set(expected), lv_name
        assert command("check", path).status == 0, lv_name
    assert tried or name == "one"


# --- check against the original


@pytest.mark.parametrize("more", [(), ("--identities-only",)])
def test_a_clone_without_a_vdi_is_compared_with_its_damaged_original(image, tmp_path, command, more):
    original = tmp_path / "original.img"
    BROKEN.disk.to_file(str(original))
    command("resignature", image, *WITHOUT, "--yes")

    ran = command("check", image, "--original", original, *more)
    told = command("check", image, "--original", original, *more, "--json").json

    assert ran.status == 0 and "shares no identity with" in ran.out
    assert all(f"note: the clone does not hold VDI {uuid} of the original." in ran.out for uuid in GOES)
    assert (set(told["left_behind"]), told["shares_nothing"]) == (GOES, True)


def test_a_difference_in_the_rest_of_a_clone_without_a_vdi_is_told(image, tmp_path, command):
    original = tmp_path / "original.img"
    BROKEN.disk.to_file(str(original))
    command("resignature", image, *WITHOUT, "--yes")
    volume = BROKEN.truth.volume("disk")
    at = BROKEN.truth.device_ranges("disk", volume.size - 65536, 1)[0].offset
    patched(image, at, b"other")
    gone = BROKEN.truth.device_ranges("broken", volume.size // 2, 1)[0].offset
    patched(original, gone, b"nobody's")

    ran = command("check", image, "--original", original)

    assert ran.status == 4 and ran.out.splitlines()[1:-1] == [f"{image} differs from what is expected at byte {at}."]


def test_the_original_of_another_sr_is_still_another_sr(image, tmp_path, command):
    other = tmp_path / "other.img"
    build_sr([raw("data"), raw("more")], area=AREA_DEFAULT, seed=7).disk.to_file(str(other))
    command("resignature", image, *WITHOUT, "--yes")

    assert command("check", image, "--original", other).status == 4


@pytest.mark.states("name", few=2)
@pytest.mark.parametrize("name", ["chain", *golden.LIVE_NAMES])
def test_a_clone_without_any_vdi_is_compared_with_an_original_where_the_storage_manager_was_at_work(
    name, tmp_path, command
):
    disk, image, original = (
        (golden.load if name == "chain" else golden.load_live)(name).disk,
        tmp_path / "x",
        tmp_path / "o",
    )
    disk.to_file(str(original))
    compared = 0
    for lv_name in [lv.name for lv in reader.read_vg(disk).lvs if reader.kind_of(lv.name) == "vhd"]:
        disk.to_file(str(image))
        uuid = lv_name[-36:]
        if command("resignature", image, "--yes", "--without", uuid).status:
            continue  # no VDI would be left

        told = command("check", image, "--original", original, "--json")

        assert (told.status, told.json["shares_nothing"]) == (0, True), (lv_name, told.out)
        assert uuid in told.json["left_behind"] or not set(places_beside(disk, lv_name)), lv_name
        compared += 1
    assert compared > 1
