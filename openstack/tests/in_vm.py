# SPDX-License-Identifier: LGPL-2.1-only
"""Run by tests/vm/test_cinder.py as root in its VM: thin volumes of real LVM, exported by LIO, attached by open-iscsi.

The volume group `cinder-volumes` is there, and LVM_CONF in the environment is its lvm.conf.
"""

import os
import subprocess
from unittest import mock

from oslo_concurrency import processutils

from tests.kit_cinder import CinderCase
from tests.test_cinder import check, show


class Popen(processutils.subprocess.Popen):
    """Without a function to call in the child, which restores signals as Python does by itself: then the process, which
    is large, is not copied first. In User-mode Linux that alone takes half a second.
    """

    def __init__(self, *args, preexec_fn=None, **more):
        super().__init__(*args, **more)


class RealCase(CinderCase):
    """The driver as it is shipped, as cinder.conf names it."""

    driver = "relvmoiscsi_cinder.lvm.ResignatureLVMVolumeDriver"

    def setUp(self):
        self.enterContext(mock.patch.object(processutils.subprocess, "Popen", Popen))
        super().setUp()

    def settings(self):
        return {
            **super().settings(),
            "lvm_type": "thin",
            "lvm_conf_file": os.environ["LVM_CONF"],
            "target_ip_address": "127.0.0.1",
        }

    def set_up_back_end(self, driver):
        driver.check_for_setup_error()

    def path(self, volume):
        return f"/dev/cinder-volumes/{volume.name}"

    def fill(self, volume, disk):
        self.manager.driver.create_volume(volume)
        image = os.path.join(self.directory, "image")
        disk.to_file(image)
        subprocess.run(["dd", f"if={image}", f"of={self.path(volume)}", "bs=1M", "conv=sparse,fsync"], check=True)

    def test_a_snapshot_becomes_a_volume_with_new_identities(self):
        wanted = self.wanted()
        original = self.golden_volume(wanted)
        snapshot = self.snapshot(original)
        made, problem = self.create(self.volume(wanted, snapshot_id=snapshot.id))
        self.assertIsNone(problem)
        self.assertEqual(made.status, "available")
        self.assertEqual(show(self.path(made))["sr"]["uuid"], made.id)
        check(self.path(made), self.path(original), "--identities-only")  # data: on files, in test_cinder.py
        self.manager.driver.delete_volume(made)
        self.manager.driver.delete_snapshot(snapshot)
        self.manager.driver.delete_volume(original)
