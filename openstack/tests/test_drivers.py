# SPDX-License-Identifier: LGPL-2.1-only
"""The mixin before drivers that call their own methods, and what it asks for. Nothing is attached."""

import threading
import uuid
from unittest import mock

from cinder import objects
from cinder.scheduler.filters import capabilities_filter
from cinder.tests.unit import utils as factory
from cinder.tests.unit.scheduler import fakes
from cinder.volume import driver
from cinder.volume.drivers import linstordrv

from relvmoiscsi_cinder import asking, command, resignature
from tests.kit_cinder import FileCase

EMPTY = command.Told("The volume is empty.")
DONE = ["snapshot of the original", "cloned", "snapshot deleted", "resignatured"]


class Array(driver.VolumeDriver):
    """A driver of an array, which writes down what it is asked for."""

    def __init__(self):
        self.done = []

    def create_volume_from_snapshot(self, volume, snapshot, cgsnapshot=False):
        self.done.append("cloned for a group" if cgsnapshot else "cloned")

    def create_group_from_src(self, context, group, volumes, group_snapshot=None, snapshots=None, *others):
        for volume, snapshot in zip(volumes, snapshots):
            self.create_volume_from_snapshot(volume, snapshot, cgsnapshot=True)
        return None, [{"id": volume.id, "provider_location": "there"} for volume in volumes]

    def get_volume_stats(self, refresh=False):
        return {"volume_backend_name": "array", "pools": [{"pool_name": "one"}, {"pool_name": "two"}]}


class OnLinstor(linstordrv.LinstorBaseDriver, Array):
    """Its way to clone is Cinder's own: by a snapshot, which is deleted afterwards."""

    def create_snapshot(self, snapshot):
        self.done.append("snapshot of the original")

    def create_volume_from_snapshot(self, volume, snapshot):
        self.done.append("cloned")

    def delete_snapshot(self, snapshot):
        self.done.append("snapshot deleted")


class Noted(resignature.ResignatureMixin):
    """Only writes down that it would resignature now."""

    problem = None

    def __init__(self):
        Array.__init__(self)

    def _resignature(self, volume, vdis):
        self.done.append("resignatured")
        if self.problem:
            raise self.problem


class WithResignature(Noted, Array):
    pass


class LinstorWithResignature(Noted, OnLinstor):
    pass


class DriversCase(FileCase):
    """Who calls whom."""

    def pair(self, type_id):
        original = self.volume(type_id)
        return self.volume(type_id, source_volid=original.id), original

    def of_snapshots(self, *types):
        """Volumes to be made, and the snapshots that they are made of."""
        snapshots = [factory.create_snapshot(self.context, self.volume(one).id, volume_type_id=one) for one in types]
        return [self.volume(one, snapshot_id=two.id) for one, two in zip(types, snapshots)], snapshots

    def test_what_a_driver_calls_of_itself_on_the_way_is_left_alone_and_no_snapshot_stays(self):
        for problem in (None, EMPTY):
            array = LinstorWithResignature()
            array.problem = problem
            if problem:
                self.assertRaises(resignature.ResignatureFailed, array.create_cloned_volume, *self.pair(self.wanted()))
            else:
                array.create_cloned_volume(*self.pair(self.wanted()))
            assert array.done == DONE

    def test_after_a_failure_the_next_volume_is_resignatured(self):
        pair, array = self.pair(self.wanted()), LinstorWithResignature()
        with mock.patch.object(OnLinstor, "create_snapshot", side_effect=RuntimeError):
            self.assertRaises(RuntimeError, array.create_cloned_volume, *pair)
        array.create_cloned_volume(*pair)
        assert array.done[-1] == "resignatured"

    def test_another_volume_meanwhile_is_resignatured(self):
        wanted = self.wanted()
        array, other = LinstorWithResignature(), LinstorWithResignature()
        pair, another_pair = self.pair(wanted), self.pair(wanted)

        def meanwhile(snapshot):
            thread = threading.Thread(target=other.create_cloned_volume, args=another_pair)
            thread.start()
            thread.join()

        array.create_snapshot = meanwhile
        array.create_cloned_volume(*pair)
        assert (array.done, other.done) == (DONE[1:], DONE)

    def test_a_group_that_the_array_makes_is_resignatured_when_it_is_made(self):
        wanted = self.wanted()
        made, snapshots = self.of_snapshots(wanted, self.volume_type(), wanted)
        array = WithResignature()
        update, of_volumes = array.create_group_from_src(self.context, mock.Mock(), made, mock.Mock(), snapshots)
        assert array.done == ["cloned for a group"] * 3 + ["resignatured"] * 2
        assert of_volumes == [{"id": volume.id, "provider_location": "there"} for volume in made]

    def test_of_a_group_that_fails_is_known_where_its_volumes_are(self):
        made, snapshots = self.of_snapshots(*[self.wanted()] * 2)
        array = WithResignature()
        array.problem = EMPTY
        arguments = (self.context, mock.Mock(), made, mock.Mock(), snapshots)
        self.assertRaises(resignature.ResignatureFailed, array.create_group_from_src, *arguments)
        known = [objects.Volume.get_by_id(self.context, volume.id) for volume in made]
        assert [volume.provider_location for volume in known] == ["there", "there"]
        assert [volume.metadata for volume in known] == [{"relvmoiscsi": "The volume is empty."}, {}]

    def test_the_scheduler_hears_which_back_ends_can(self):
        asks = {"capabilities:" + resignature.CAPABILITY: "<is> True"}
        properties = {"context": self.context, "resource_type": {"name": "sr", "extra_specs": asks}}

        def passes(stats):
            state = fakes.FakeBackendState("host", {"capabilities": stats})
            return capabilities_filter.CapabilitiesFilter().backend_passes(state, properties)

        for back_end, can in ((WithResignature(), True), (Array(), False)):
            assert [passes(pool) for pool in back_end.get_volume_stats()["pools"]] == [can, can]


class AskingCase(FileCase):
    """For which volumes new identities are asked."""

    def asked(self, word):
        wanted = self.volume_type(**{asking.WANTED: word})
        original = self.volume(wanted)
        return asking.vdis_wanted(self.volume(wanted, source_volid=original.id, display_name="name"), original)

    def test_words_of_a_boolean_and_any_other_word_is_refused(self):
        found = {word: self.asked(word) for word in ("true", "True", "<is> True", "yes", "1", "false", "<is> False")}
        assert list(found.values()) == ["all"] * 5 + [None] * 2, found
        for word in ("ture", "", "<IS> True", "<is> <is> True"):
            with self.assertRaisesRegex(command.Told, "can be true or false"):
                self.asked(word)

    def test_a_volume_of_a_user_with_the_name_of_an_image(self):
        wanted = self.wanted()
        original = self.volume(wanted)
        made = self.volume(wanted, source_volid=original.id, display_name=f"image-{uuid.uuid4()}")
        found = []
        for original.status in ("available", "in-use", "uploading", "downloading", "creating"):
            found.append(asking.vdis_wanted(made, original))
        assert found == ["all", "all", None, None, None]

    def test_the_path_on_the_host_is_in_no_sentence(self):
        said = {
            "/dev/sdb: nothing was written.": "The volume: nothing was written.",
            "Run `relvmoiscsi recover /dev/sdb` first.": "Run `relvmoiscsi recover DEVICE` first.",
            "It is done. /dev/sdb is new.": "It is done. The volume is new.",
            "Name it (`--vdi`), or ask for all (`--vdis all`).": "Ask for all (`relvmoiscsi:vdis=all`).",
            "The label of /dev/sdb is torn, not /dev/sdb1.": "The label of the volume is torn, not /dev/sdb1.",
        }
        assert [command.of_the_volume(sentence, "/dev/sdb") for sentence in said] == list(said.values())
