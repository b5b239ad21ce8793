# SPDX-License-Identifier: LGPL-2.1-only
"""Volumes that Cinder makes of volumes with an SR on them, as its own manager does it."""

import contextlib
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from unittest import mock

from cinder import objects
from cinder.tests.compliance import test_volume_drivers
from cinder.tests.unit import fake_constants, test
from cinder.tests.unit import utils as factory
from cinder.volume import api, group_types
from oslo_concurrency import processutils

from kit import cuts, golden
from kit.sparse import SparseDisk
from relvmoiscsi_cinder import cinder_log, command, lvm, resignature
from relvmoiscsi_cinder.place import on_this_host
from tests.kit_cinder import EMPTY, TOP, FileCase, LocalTarget, check, show


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
        assert (problem, made.status) == (None, "available")
        assert made.metadata == {"relvmoiscsi": f"resignatured as SR {made.id}"}
        found = show(self.path(made))
        assert (found["state"], found["sr"]) == ("resignatured", made.id)
        check(self.path(made), self.path(original))
        assert same(self.path(original), before)
        assert LocalTarget.exported == []

    def test_a_volume_made_from_a_resignatured_volume_has_identities_of_its_own(self):
        original = self.golden_volume(self.wanted())
        first, _ = self.made_of(original)
        second, _ = self.made_of(first, size=2)  # larger, as it may be
        assert os.path.getsize(self.path(second)) == 2 << 30
        assert show(self.path(second))["sr"] == second.id
        check(self.path(second), self.path(first))
        check(self.path(second), self.path(original))

    def test_one_vdi_where_the_type_asks_for_it(self):
        made, _ = self.made_of(self.golden_volume(self.wanted(**{resignature.VDIS: "one"}), "one"))
        assert show(self.path(made))["one_vdi"]["one_vdi_state"] == "is"

    def test_done_twice_it_changes_nothing_the_second_time(self):
        made, _ = self.made_of(self.golden_volume(self.wanted()))
        before = kept(self.path(made))
        self.manager.driver._resignatured(made, None, "all")
        assert same(self.path(made), before)
        assert self.calls() == ["show", "resignature", "show"]

    def test_a_type_that_does_not_ask_has_copies_and_so_has_the_backup_of_a_volume(self):
        for specs in ({}, {resignature.WANTED: "false"}):
            original = self.golden_volume(self.volume_type(**specs))
            made, _ = self.create(self.volume(original.volume_type_id, source_volid=original.id))
            assert same(self.path(made), self.path(original))
        original = self.golden_volume(self.wanted())
        copy = self.manager.driver._create_temp_cloned_volume(self.context, original)
        assert same(self.path(copy), self.path(original))
        assert self.calls() == []

    def test_a_cinder_that_encrypts_its_volumes_is_told_so(self):
        wanted = self.wanted()
        original = self.golden_volume(wanted)
        made = self.volume(wanted, source_volid=original.id, encryption_key_id=fake_constants.ENCRYPTION_KEY_ID)
        with self.assertRaisesRegex(resignature.ResignatureFailed, "Take another type"):
            self.manager.driver.create_cloned_volume(made, original)
        assert self.calls() == []

    def test_the_version_is_that_of_the_command(self):
        version = subprocess.check_output([sys.executable, "setup.py", "--version"], cwd=TOP).decode().strip()
        with open(os.path.join(TOP, "openstack", "setup.py")) as ours:
            assert f'VERSION = "{version}"' in ours.read()


class FailureCase(FileCase):
    """What a user reads where something fails, and what state the volume is in."""

    def test_a_volume_without_an_sr_goes_into_error_and_says_why(self):
        original = self.empty_volume(self.wanted())
        made, problem = self.create(self.volume(original.volume_type_id, source_volid=original.id))
        assert isinstance(problem, resignature.ResignatureFailed)
        assert (made.status, made.metadata) == ("error", {"relvmoiscsi": EMPTY})
        assert self.rescheduled == []  # a second one elsewhere would leave this one behind
        assert LocalTarget.exported == []
        assert same(self.path(made), self.path(original))

    def test_a_type_with_a_word_that_is_none_is_refused_before_anything_is_attached(self):
        made, says = self.made_of(self.golden_volume(self.wanted(**{resignature.VDIS: "two"})))
        assert made.status == "error" and "'two'" in says
        made, says = self.made_of(self.golden_volume(self.volume_type(**{resignature.WANTED: "ture"})))
        assert says.endswith("relvmoiscsi:resignature='ture'; it can be true or false. No volume was made.")
        assert made.status == "error" and not os.path.exists(self.path(made))
        assert self.calls() == []

    def test_a_host_without_the_command_says_so(self):
        os.unlink(os.path.join(self.directory, "bin", "relvmoiscsi"))
        made, says = self.made_of(self.golden_volume(self.wanted()))
        assert made.status == "error" and "relvmoiscsi" in says
        assert LocalTarget.exported == []

    def test_a_source_whose_resignature_was_cut_is_finished_first(self):
        made, says = self.made_of(self.volume(self.wanted(), cuts.cut_before(golden.load("chain").disk, 4)))
        assert says == f"resignatured as SR {made.id}"
        assert show(self.path(made))["sr"] == made.id
        assert self.calls() == ["show", "recover", "show", "resignature"]

    def test_done_and_not_printed_is_done(self):
        self.command_ends("resignature", "{} >/dev/full; exit")
        made, says = self.made_of(self.golden_volume(self.wanted()))
        assert (made.status, says) == ("available", f"resignatured as SR {made.id}")
        assert self.calls() == ["show", "resignature", "show"]

    def test_one_that_was_killed_says_what_the_volume_is(self):
        self.command_ends("resignature", "kill -9 $$")
        made, says = self.made_of(self.golden_volume(self.wanted()))
        assert made.status == "error"
        assert says.endswith("The volume still has the identities of its source.")

    def test_a_host_that_does_not_let_go_of_the_volume_is_told_unless_something_failed_before(self):
        wanted = self.wanted()
        with mock.patch.object(LocalTarget, "terminate_connection", side_effect=RuntimeError("array busy")):
            made, says = self.made_of(self.golden_volume(wanted))
            _, says_of_empty = self.made_of(self.empty_volume(wanted))
        assert made.status == "error"
        assert says.startswith("The volume has its new identities, but the host of cinder-volume could not detach")
        assert show(self.path(made))["sr"] == made.id
        assert says_of_empty == EMPTY

    def test_what_a_back_end_says_is_for_the_log_alone(self):
        original = self.golden_volume(self.wanted())
        secret = RuntimeError("401 for https://admin:hunter2@192.0.2.7/api/igroups")
        with mock.patch.object(LocalTarget, "initialize_connection", side_effect=secret):
            made, problem = self.create(self.volume(original.volume_type_id, source_volid=original.id))
        says = "The volume has no new identities: the host of cinder-volume could not attach the volume; "
        says += "its log gives the cause."
        assert (made.metadata["relvmoiscsi"], str(problem)) == (says, says)

    def test_a_property_that_a_user_sets_meanwhile_stays(self):
        exported = LocalTarget.create_export

        def meanwhile(target, context, volume, path):
            known = objects.Volume.get_by_id(self.context, volume.id)
            api.API(image_service=mock.Mock()).update_volume_metadata(self.context, known, {"owner": "anna"})
            return exported(target, context, volume, path)

        with mock.patch.object(LocalTarget, "create_export", meanwhile):
            made, _ = self.made_of(self.empty_volume(self.wanted()))
        assert made.metadata == {"owner": "anna", "relvmoiscsi": EMPTY}


class LogCase(test.TestCase):
    """What a user writes into his volume, or a driver says, gets no line of its own in Cinder's log, and no escape."""

    def test_a_message_is_one_line_of_printable_characters(self):
        said = {
            "error": {
                "message": "The status 'x\n2026-11-28 ERROR forged\u009b2J\u202e' is unknown.",
                "disk_state": "",
                "advice": "",
            }
        }

        def execute(*argv, **how):
            raise processutils.ProcessExecutionError(stdout=json.dumps(said), exit_code=5)

        with self.assertLogs("relvmoiscsi_cinder") as logged, self.assertRaises(command.Told) as told:
            command.give_identities(execute, on_this_host("/dev/x"), str(uuid.uuid4()), "all")
        for text in (*logged.output, told.exception.sentence):
            assert text.isprintable(), text
        assert "forged" in told.exception.sentence

    def test_each_line_of_a_traceback_is_printable(self):
        try:
            try:
                raise OSError("x\r2026-11-28 ERROR forged\u009b2J\u202e")
            except OSError as cause:
                raise command.Told("a\nb\x1b[2J") from cause
        except command.Told as problem:
            with self.assertLogs("relvmoiscsi_cinder") as logged:
                cinder_log.error("Volume x\ny could not be detached.", problem)
        assert all(text.isprintable() for text in logged.output), logged.output
        assert all(record.exc_info is None for record in logged.records)
        assert [text for text in logged.output if "OSError" in text and text.endswith("x")]

    def test_one_module_logs(self):
        for path in Path(command.__file__).parent.glob("*.py"):
            if path.name != "cinder_log.py":
                assert "logging" not in path.read_text() and "exc_info" not in path.read_text(), path


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
        copy, _ = self.made_of(made)
        assert show(self.path(copy))["sr"] == copy.id

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
        kind = group_types.create(self.context, f"group type {uuid.uuid4()}", {})["id"]
        options = {"group_type_id": kind, "volume_type_ids": [type_id], **more}
        return factory.create_group(self.context, host=self.manager.host, **options)

    def copied(self, original):
        source = self.group(original.volume_type_id, status="available")
        original.group_id = source.id
        original.save()
        target = self.group(original.volume_type_id, status="creating", source_group_id=source.id)
        made = self.volume(original.volume_type_id, source_volid=original.id, group_id=target.id)
        with contextlib.suppress(resignature.ResignatureFailed):
            self.manager.create_group_from_src(self.context, target, source_group=source)
        return objects.Volume.get_by_id(self.context, made.id), objects.Group.get_by_id(self.context, target.id)

    def test_volumes_of_a_group_have_new_identities_and_one_that_fails_is_in_error_as_its_group_is(self):
        wanted = self.wanted()
        made, group = self.copied(self.golden_volume(wanted))
        assert (made.status, group.status) == ("available", "available")
        assert show(self.path(made))["sr"] == made.id
        made, group = self.copied(self.empty_volume(wanted))
        assert (made.status, group.status) == ("error", "error")
        assert made.metadata == {"relvmoiscsi": EMPTY}


class ComplianceCase(test_volume_drivers.TestVolumeDrivers):
    """Cinder's own, which asks the same of every driver that it knows."""

    def test_ours_is_among_them(self):
        self.assertIn(lvm.ResignatureLVMVolumeDriver, [one.cls for one in test_volume_drivers.VOLUME_DRIVERS])
