# SPDX-License-Identifier: LGPL-2.1-only
"""A cinder-volume whose database, manager, flows, LVM driver and connectors are the real ones.

On files, LVM itself is stood in for (a container may not activate volumes), and so is the network between target and
initiator.
"""

import contextlib
import io
import json
import os
import subprocess
import sys

import os_brick.privileged
from cinder import context, objects, privsep
from cinder.tests.unit import fake_constants, test
from cinder.tests.unit import utils as factory
from cinder.volume import configuration, manager
from cinder.volume.targets import fake
from oslo_config import cfg

from kit import golden
from relvmoiscsi import cli
from relvmoiscsi_cinder import lvm, resignature

CONF = cfg.CONF
#: the command, which takes a file for the block device that it stands for; test_rootwrap.py has the command as it is
ON_FILES = (
    'import runpy, sys; sys.argv[:] = [word for word in sys.argv if word != "--block-device"]; '
    'runpy.run_module("relvmoiscsi", run_name="__main__")'
)
TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EMPTY = (
    "The volume is empty: its first 65536 bytes are zero. Nothing was written. It is another LUN, or the array has not "
    "filled the clone yet."
)


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


class FileVolumeGroup:
    """In place of Cinder's calls of LVM: a volume is a file, a snapshot a copy of it."""

    supports_thin_provisioning = False

    def __init__(self, directory):
        self.directory = directory

    def path(self, name):
        return os.path.join(self.directory, name)

    def create_volume(self, name, size, lvm_type, mirror_count):
        with open(self.path(name), "xb") as volume:
            volume.truncate(int(size.rstrip("g")) << 30)

    def create_lv_snapshot(self, name, source, lvm_type):
        subprocess.run(["cp", "--sparse=always", self.path(source), self.path(name)], check=True)

    def activate_lv(self, name, is_snapshot=False, permanent=False):
        name = "_" + name if is_snapshot and name.startswith("snapshot") else name  # LVM keeps such names for itself
        assert os.path.exists(self.path(name)), name

    def get_volume(self, name):
        return {"name": name} if os.path.exists(self.path(name)) else None

    def lv_has_snapshot(self, name):
        return False

    def delete(self, name):
        os.unlink(self.path(name))


class LocalTarget(fake.FakeTarget):
    """Hands the volume out under its path on this host; os-brick's connector of that kind takes it."""

    exported = []
    directory = ""

    def create_export(self, context, volume, volume_path):
        self.exported.append(volume.id)
        return {"location": os.path.join(self.directory, os.path.basename(volume_path)), "auth": None}

    def initialize_connection(self, volume, connector):
        assert volume.provider_location
        return {"driver_volume_type": "local", "data": {"device_path": volume.provider_location}}

    def terminate_connection(self, volume, connector, **kwargs):
        pass

    def remove_export(self, context, volume):
        self.exported.remove(volume.id)


class Driver(lvm.ResignatureLVMVolumeDriver):
    """The driver as it is shipped."""

    #: the base class sets it, and takes from it at once
    target_mapping = property(lambda self: {"lioadm": f"{__name__}.LocalTarget"}, lambda self, mapping: None)

    def local_path(self, volume, vg=None):
        return self.vg.path(self._escape_snapshot(volume["name"]))


def copied(source, target, *more, **options):
    """In place of dd, which reads holes and cuts a file off, where a device keeps its size."""
    size_bytes = os.path.getsize(target)
    subprocess.run(["cp", "--sparse=always", source, target], check=True)
    os.truncate(target, size_bytes)


class FileCase(test.TestCase):
    """A cinder-volume of one back end, whose volumes are files."""

    driver = f"{__name__}.Driver"  #: volume_driver in cinder.conf

    def setUp(self):
        super().setUp()
        for one in (os_brick.privileged.default, privsep.sys_admin_pctxt):
            one.set_client_mode(False)
            self.addCleanup(one.set_client_mode, True)
        self.directory = self.useFixture(test.fixtures.TempDir()).path
        self.context = context.RequestContext(fake_constants.USER_ID, fake_constants.PROJECT_ID, is_admin=True)
        for name, value in self.settings().items():
            self.override_config(name, value, group=configuration.SHARED_CONF_GROUP)
        self.use_command()
        LocalTarget.exported, LocalTarget.directory = [], self.directory
        self.stub_out("cinder.volume.volume_utils.copy_volume", copied)
        self.manager = manager.VolumeManager()
        self.manager.driver.vg = FileVolumeGroup(self.directory)
        self.manager.driver._sparse_copy_volume = True
        self.manager.driver.set_initialized()
        self.manager.stats = {"allocated_capacity_gb": 0, "pools": {}}
        self.rescheduled, self.types = [], []
        self.stub_out("cinder.scheduler.rpcapi.SchedulerAPI.create_volume", self._reschedule)

    def _reschedule(self, *arguments, **options):
        self.rescheduled.append(arguments)

    def settings(self):
        """Of the back end, in cinder.conf."""
        return {"volume_driver": self.driver, "target_helper": "lioadm", "volume_clear": "none"}

    def path(self, volume):
        """Of the file, which needs no connection."""
        return os.path.join(self.directory, volume.name)

    def use_command(self):
        """`relvmoiscsi` is that of this tree; nothing asks for root."""
        directory = os.path.join(self.directory, "bin")
        os.mkdir(directory)
        command = os.path.join(directory, "relvmoiscsi")
        with open(command, "w") as script:
            script.write(f'#!/bin/sh\necho "$*" >>{self.directory}/calls\n')
            script.write(f"PYTHONPATH={TOP} exec {sys.executable} -c '{ON_FILES}' \"$@\"\n")
        os.chmod(command, 0o755)
        self.useFixture(test.fixtures.EnvironmentVariable("PATH", directory + ":" + os.environ["PATH"]))
        self.stub_out("cinder.utils.get_root_helper", lambda: "env")

    def command_ends(self, action, how):
        """From now on, and in place of that action or around it ("$@"), the command does this."""
        command = os.path.join(self.directory, "bin", "relvmoiscsi")
        with open(command) as script:
            first, noted, does = script.read().splitlines()
        does = does.replace("exec ", "")
        with open(command, "w") as script:
            script.write("\n".join([first, noted, f'case "$1" in {action}) {how.format(does)};; esac', does, ""]))

    def calls(self):
        path = os.path.join(self.directory, "calls")
        if not os.path.exists(path):
            return []
        with open(path) as calls:
            return [line.split()[0] for line in calls]

    def volume_type(self, **specs):
        name = f"type {len(self.types)}"
        self.types.append(name)
        return factory.create_volume_type(self.context, name=name, extra_specs=specs, is_public=True).id

    def wanted(self, **more):
        return self.volume_type(**{resignature.WANTED: "true", **more})

    def volume(self, type_id, content=None, **more):
        """A volume that Cinder knows; with content it is there."""
        made = factory.create_volume(
            self.context, host=CONF.host, volume_type_id=type_id, status="creating", **{"size": 1, **more}
        )
        if content is not None:
            content.to_file(self.path(made))
            made.status = "available"
            made.save()
        return made

    def empty_volume(self, type_id):
        """One without an SR, as which each resignature fails."""
        disk = golden.load("one").disk
        disk.poke(0, bytes(1 << 20))
        return self.volume(type_id, disk)

    def golden_volume(self, type_id, name="chain"):
        return self.volume(type_id, golden.load(name).disk)

    def snapshot(self, volume):
        made = factory.create_snapshot(self.context, volume.id, volume_type_id=volume.volume_type_id)
        made.volume_size = 1
        self.manager.driver.create_snapshot(made)
        return made

    def create(self, volume, **more):
        """As cinder-volume does it on a request; the volume as the database has it then, and the exception."""
        problem = None
        request = {"volume_id": volume.id, "snapshot_id": volume.snapshot_id, "source_volid": volume.source_volid}
        spec = objects.RequestSpec(context=self.context, volume=volume, **request, **more)
        try:
            self.manager.create_volume(self.context, volume, spec, {"retry": {"num_attempts": 1, "hosts": []}})
        except Exception as raised:  # noqa: BLE001 - Cinder's flows raise what their tasks did
            problem = raised
        return objects.Volume.get_by_id(self.context, volume.id), problem

    def made_of(self, original, **more):
        """As `create`, of that volume; the volume then, and what a user reads of it."""
        made, _ = self.create(self.volume(original.volume_type_id, source_volid=original.id, **more))
        return made, made.metadata["relvmoiscsi"]
