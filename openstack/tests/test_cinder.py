# SPDX-License-Identifier: LGPL-2.1-only
"""Volumes that Cinder makes of volumes with an SR on them, as its own manager does it."""

import json
import os
import subprocess
import sys

from cinder.tests.compliance import test_volume_drivers
from cinder.tests.unit import fake_constants

from kit import golden
from relvmoiscsi_cinder import lvm, resignature
from tests.kit_cinder import TOP, FileCase, LocalTarget


def show(path):
    argv = [sys.executable, "-m", "relvmoiscsi", "show", path, "--json"]
    return json.loads(subprocess.run(argv, cwd=TOP, stdout=subprocess.PIPE, check=True).stdout)


def check(path, original, *options):
    argv = [sys.executable, "-m", "relvmoiscsi", "check", path, "--original", original, *options]
    subprocess.run(argv, cwd=TOP, stdout=subprocess.DEVNULL, check=True)


def same(path, other):
    return subprocess.run(["cmp", "--silent", path, other], check=False).returncode == 0


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
        second, problem = self.create(self.volume(wanted, source_volid=first.id))
        assert problem is None
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
        self.manager.driver._resignatured(made, None)
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
        blank = golden.load("one").disk
        blank.poke(0, bytes(1 << 20))
        original = self.volume(wanted, blank)
        made, problem = self.create(self.volume(wanted, source_volid=original.id))
        assert isinstance(problem, resignature.ResignatureFailed)
        assert made.status == "error"
        says = "The volume is empty: its first 65536 bytes are zero. Nothing was written."
        assert made.metadata == {"relvmoiscsi": says}
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
        with self.assertRaisesRegex(resignature.ResignatureFailed, "a type without encryption"):
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


class ComplianceCase(test_volume_drivers.TestVolumeDrivers):
    """Cinder's own, which asks the same of every driver that it knows."""

    def test_ours_is_among_them(self):
        self.assertIn(lvm.ResignatureLVMVolumeDriver, [one.cls for one in test_volume_drivers.VOLUME_DRIVERS])
