# SPDX-License-Identifier: LGPL-2.1-only
"""Volumes that Cinder makes of volumes with an SR on them, as its own manager does it."""

import contextlib
import io
import json
import os
import subprocess
import sys
import uuid
from unittest import mock

from cinder import objects
from cinder.tests.compliance import test_volume_drivers
from cinder.tests.unit import fake_constants
from cinder.tests.unit import utils as factory
from cinder.volume import api, group_types

from kit import cuts, golden
from kit.sparse import SparseDisk
from relvmoiscsi import cli
from relvmoiscsi_cinder import lvm, resignature
from tests.kit_cinder import TOP, FileCase, LocalTarget

EMPTY = "The volume is empty: its first 65536 bytes are zero. Nothing was written."


def show(path):
    return json.loads(told("show", path, "--json"))


def check(path, original):
    told("check", path, "--original", original)


def told(*words):
    """What the command prints when it does that."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert cli.main(words) == 0, words
    return out.getvalue()


def same(path, other):
    """Byte for byte; what is a hole in both is not read, and of a GiB most is."""
    return SparseDisk.from_file(path) == SparseDisk.from_file(other)


def kept(path):
    """A copy to compare with later."""
    subprocess.run(["cp", "--sparse=always", path, path + ".kept"], check=True)
    return path + ".kept"


class ResignatureCase(FileCase):
    """Whether the type asks for it, what becomes of the volume, and of its source."""

    def test_a_volume_made_from_a_snapshot_has_new_identities(self):
        wanted = self.wanted()
        original = self.golden_volume(wanted)
        before = kept(self.path(original))
        made, problem = self.create(self.volume(wanted, snapshot_id=self.snapshot(original).id))
        assert problem is None
        assert made.status == "available"
        assert made.metadata == {"relvmoiscsi": f"resignatured as SR {made.id}"}
        found = show(self.path(made))
        assert (found["state"], found["sr"]["uuid"]) == ("resignatured", made.id)
        check(self.path(made), self.path(original))
        assert same(self.path(original), before)
        assert LocalTarget.exported == []

    def test_a_volume_made_from_a_resignatured_volume_has_identities_of_its_own(self):
        wanted = self.wanted()
        original = self.golden_volume(wanted)
        first, problem = self.create(self.volume(wanted, source_volid=original.id))
        assert problem is None
        second, problem = self.create(self.volume(wanted, source_volid=first.id, size=2))  # larger, as it may be
        assert problem is None
        assert os.path.getsize(self.path(second)) == 2 << 30
        assert show(self.path(second))["sr"]["uuid"] == second.id
        check(self.path(second), self.path(first))
        check(self.path(second), self.path(original))

    def test_one_vdi_where_the_type_asks_for_it(self):
        wanted = self.wanted(**{resignature.VDIS: "one"})
        made, problem = self.create(self.volume(wanted, source_volid=self.golden_volume(wanted, "one").id))
        assert problem is None
        assert show(self.path(made))["one_vdi"]["state"] == "is"

    def test_done_twice_it_changes_nothing_the_second_time(self):
        wanted = self.wanted()
        made, problem = self.create(self.volume(wanted, source_volid=self.golden_volume(wanted).id))
        assert problem is None
        before = kept(self.path(made))
        self.manager.driver._resignatured(made, None, "all")
        assert same(self.path(made), before)
        assert self.calls() == ["show", "resignature", "show"]

    def test_a_type_that_does_not_ask_has_copies(self):
        for specs in ({}, {resignature.WANTED: "false"}):
            plain = self.volume_type(**specs)
            original = self.golden_volume(plain)
            made, problem = self.create(self.volume(plain, source_volid=original.id))
            assert problem is None
            assert same(self.path(made), self.path(original))
        assert self.calls() == []

    def test_the_copy_that_cinder_makes_to_back_a_volume_up_stays_a_copy(self):
        wanted = self.wanted()
        original = self.golden_volume(wanted)
        copy = self.manager.driver._create_temp_cloned_volume(self.context, original)
        assert same(self.path(copy), self.path(original))
        assert self.calls() == []

    def test_a_volume_without_an_sr_goes_into_error_and_says_why(self):
        wanted = self.wanted()
        original = self.empty_volume(wanted)
        made, problem = self.create(self.volume(wanted, source_volid=original.id))
        assert isinstance(problem, resignature.ResignatureFailed)
        assert made.status == "error"
        assert made.metadata == {"relvmoiscsi": EMPTY}
        assert self.rescheduled == []  # a second one elsewhere would leave this one behind
        assert LocalTarget.exported == []
        assert same(self.path(made), self.path(original))

    def test_a_type_with_a_word_that_is_none_is_refused_before_anything_is_attached(self):
        wanted = self.wanted(**{resignature.VDIS: "two"})
        made, problem = self.create(self.volume(wanted, source_volid=self.golden_volume(wanted).id))
        assert isinstance(problem, resignature.ResignatureFailed)
        assert "'two'" in made.metadata["relvmoiscsi"]
        assert self.calls() == []

    def test_a_cinder_that_encrypts_its_volumes_is_told_so(self):
        wanted = self.wanted()
        original = self.golden_volume(wanted)
        made = self.volume(wanted, source_volid=original.id, encryption_key_id=fake_constants.ENCRYPTION_KEY_ID)
        with self.assertRaisesRegex(resignature.ResignatureFailed, "Take another type"):
            self.manager.driver.create_cloned_volume(made, original)
        assert self.calls() == []

    def test_the_version_is_that_of_the_command(self):
        setup = subprocess.run([sys.executable, "setup.py", "--version"], cwd=TOP, stdout=subprocess.PIPE, check=True)
        with open(os.path.join(TOP, "openstack", "setup.py")) as ours:
            assert f'VERSION = "{setup.stdout.decode().strip()}"' in ours.read()

    def test_a_host_without_the_command_says_so(self):
        wanted = self.wanted()
        os.unlink(os.path.join(self.directory, "bin", "relvmoiscsi"))
        made, problem = self.create(self.volume(wanted, source_volid=self.golden_volume(wanted).id))
        assert isinstance(problem, resignature.ResignatureFailed)
        assert made.status == "error"
        assert "relvmoiscsi" in made.metadata["relvmoiscsi"]
        assert LocalTarget.exported == []


class FailureCase(FileCase):
    """What a user reads where something fails, and what state the volume is in."""

    def made_of(self, original):
        made, _ = self.create(self.volume(original.volume_type_id, source_volid=original.id))
        return made, made.metadata["relvmoiscsi"]

    def test_a_word_that_is_no_boolean_is_no_plain_copy(self):
        made, says = self.made_of(self.golden_volume(self.volume_type(**{resignature.WANTED: "ture"})))
        assert made.status == "error"
        assert says.endswith("relvmoiscsi:resignature='ture'; it can be true or false. No volume was made.")
        assert not os.path.exists(self.path(made))

    def test_a_source_whose_resignature_was_cut_is_finished_first(self):
        made, says = self.made_of(self.volume(self.wanted(), cuts.cut_before(golden.load("chain").disk, 4)))
        assert says == f"resignatured as SR {made.id}"
        assert show(self.path(made))["sr"]["uuid"] == made.id
        assert self.calls() == ["show", "recover", "show", "resignature"]

    def test_done_and_not_printed_is_done(self):
        original = self.golden_volume(self.wanted())
        self.command_ends("resignature", "{} >/dev/full; exit")
        made, says = self.made_of(original)
        assert (made.status, says) == ("available", f"resignatured as SR {made.id}")
        assert self.calls() == ["show", "resignature", "show"]

    def test_one_that_was_killed_says_what_the_volume_is(self):
        original = self.golden_volume(self.wanted())
        self.command_ends("resignature", "kill -9 $$")
        made, says = self.made_of(original)
        assert made.status == "error"
        assert says.endswith("The volume still has the identities of its source.")

    def test_a_host_that_does_not_let_go_of_the_volume(self):
        original = self.golden_volume(self.wanted())
        with mock.patch.object(LocalTarget, "terminate_connection", side_effect=RuntimeError("array busy")):
            made, says = self.made_of(original)
        assert made.status == "error"
        assert says.startswith("The volume has its new identities, but the host of cinder-volume could not detach")
        assert show(self.path(made))["sr"]["uuid"] == made.id

    def test_two_failures_are_told_by_the_first(self):
        original = self.empty_volume(self.wanted())
        with mock.patch.object(LocalTarget, "terminate_connection", side_effect=RuntimeError("array busy")):
            _, says = self.made_of(original)
        assert says == EMPTY

    def test_what_a_back_end_says_is_for_the_log_alone(self):
        original = self.golden_volume(self.wanted())
        secret = RuntimeError("401 for https://admin:hunter2@192.0.2.7/api/igroups")
        with mock.patch.object(LocalTarget, "initialize_connection", side_effect=secret):
            made, problem = self.create(self.volume(original.volume_type_id, source_volid=original.id))
        says = (
            "The volume has no new identities: the host of cinder-volume could not attach the volume; "
            "its log gives the cause."
        )
        assert (made.metadata["relvmoiscsi"], str(problem)) == (says, says)

    def test_a_property_that_a_user_sets_meanwhile_stays(self):
        original = self.empty_volume(self.wanted())
        exported = LocalTarget.create_export

        def meanwhile(target, context, volume, path):
            known = objects.Volume.get_by_id(self.context, volume.id)
            api.API(image_service=mock.Mock()).update_volume_metadata(self.context, known, {"owner": "anna"})
            return exported(target, context, volume, path)

        with mock.patch.object(LocalTarget, "create_export", meanwhile):
            made, says = self.made_of(original)
        assert made.metadata == {"owner": "anna", "relvmoiscsi": EMPTY}


class ImageCase(FileCase):
    """What Cinder makes of volumes and images for Glance and for its cache; only Glance itself is stood in for."""

    def settings(self):
        return {**super().settings(), "image_upload_use_cinder_backend": True}

    def glance(self, **answers):
        service = mock.Mock(**{f"{name}.return_value": answer for name, answer in answers.items()})
        self.stub_out("cinder.image.glance.get_remote_image_service", lambda context, image: (service, image))
        return service

    def test_a_volume_that_is_uploaded_becomes_an_image_of_it(self):
        wanted = self.wanted(**{resignature.VDIS: "one"})
        original = self.golden_volume(wanted, "one")
        original.status = "uploading"
        original.save()
        service = self.glance(add_location=True)
        image = {"id": str(uuid.uuid4()), "disk_format": "raw", "container_format": "bare"}
        self.manager.copy_volume_to_image(self.context, original.id, image)
        made = objects.Volume.get_by_id(self.context, service.add_location.call_args[0][2].rpartition("/")[2])
        assert (made.status, made.volume_type_id, made.use_quota) == ("available", wanted, True)
        assert same(self.path(made), self.path(original))
        assert self.calls() == []
        copy, problem = self.create(self.volume(wanted, source_volid=made.id))
        assert problem is None
        assert show(self.path(copy))["sr"]["uuid"] == copy.id

    def test_a_volume_of_an_image_is_that_image_also_where_it_comes_from_the_cache(self):
        wanted = self.wanted()
        cached = self.golden_volume(wanted)
        for name in ("project", "user"):
            self.override_config(f"cinder_internal_tenant_{name}_id", str(uuid.uuid4()))
        self.manager.image_volume_cache = mock.Mock(**{"get_entry.return_value": {"volume_id": cached.id}})
        image = {"id": str(uuid.uuid4()), "size": 1 << 20, "disk_format": "raw", "container_format": "bare"}
        self.glance(get_location=(None, None), show=image)
        made, problem = self.create(self.volume(wanted), image_id=image["id"])
        assert problem is None
        assert same(self.path(made), self.path(cached))
        assert self.calls() == []


class GroupCase(FileCase):
    """Groups of a driver that has no way of its own to copy one, which Cinder's LVM driver is."""

    def group(self, type_id, **more):
        kind = group_types.create(self.context, f"group type {uuid.uuid4()}", {})
        return factory.create_group(
            self.context, host=self.manager.host, group_type_id=kind["id"], volume_type_ids=[type_id], **more
        )

    def copied(self, original):
        source = self.group(original.volume_type_id, status="available")
        original.group_id = source.id
        original.save()
        target = self.group(original.volume_type_id, status="creating", source_group_id=source.id)
        made = self.volume(original.volume_type_id, source_volid=original.id, group_id=target.id)
        with contextlib.suppress(resignature.ResignatureFailed):
            self.manager.create_group_from_src(self.context, target, source_group=source)
        return objects.Volume.get_by_id(self.context, made.id), objects.Group.get_by_id(self.context, target.id)

    def test_a_volume_that_fails_is_not_available_and_nor_is_its_group(self):
        made, group = self.copied(self.empty_volume(self.wanted()))
        assert (made.status, group.status) == ("error", "error")
        assert made.metadata == {"relvmoiscsi": EMPTY}

    def test_volumes_of_a_group_have_new_identities(self):
        made, group = self.copied(self.golden_volume(self.wanted()))
        assert (made.status, group.status) == ("available", "available")
        assert show(self.path(made))["sr"]["uuid"] == made.id


class ComplianceCase(test_volume_drivers.TestVolumeDrivers):
    """Cinder's own, which asks the same of every driver that it knows."""

    def test_ours_is_among_them(self):
        self.assertIn(lvm.ResignatureLVMVolumeDriver, [one.cls for one in test_volume_drivers.VOLUME_DRIVERS])
