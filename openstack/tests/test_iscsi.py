# SPDX-License-Identifier: LGPL-2.1-only
"""Volumes behind iSCSI: the command logs in to tgt on loopback itself, and nothing comes to this host."""

import os
import tempfile
from pathlib import Path
from unittest import mock, skipIf

from rtslib_fb.utils import normalize_wwn

from kit.iscsi.options import Chap
from kit.iscsi.programs import Tgt, free_port, missing
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.lun import url_login as login
from relvmoiscsi_cinder import resignature
from relvmoiscsi_cinder.place import place_of
from tests.kit_cinder import EMPTY, Driver, FileCase, LocalTarget, check, show

CHAP = Chap("cinder", "sesamesesame")
ME = "iqn.2026-01.test:me"


class TgtTarget(LocalTarget):
    """In place of LIO: each volume is the LUN 1 behind tgt, for as long as it is exported."""

    tgt = None
    dead_portals = ()  #: that are told before the one that answers
    initiators = []  #: that were told to the back end

    def create_export(self, context, volume, volume_path):
        path = super().create_export(context, volume, volume_path)["location"]
        self.tgt.admin("--op", "new", "-m", "logicalunit", "-t", "1", "-l", "1", "-b", path)
        return {"location": f"{self.tgt.portal},1 {self.tgt.iqn} 1", "auth": None}

    def initialize_connection(self, volume, connector):
        self.initiators.append(connector["initiator"])
        data = {"auth_method": "CHAP", "auth_username": CHAP.user, "auth_password": CHAP.secret}
        portals = [*self.dead_portals, self.tgt.portal]
        data.update(target_portals=portals, target_iqns=[self.tgt.iqn] * len(portals), target_luns=[1] * len(portals))
        return {"driver_volume_type": "iscsi", "data": data}

    def remove_export(self, context, volume):
        super().remove_export(context, volume)
        self.tgt.admin("--op", "delete", "-m", "logicalunit", "-t", "1", "-l", "1")


class IscsiDriver(Driver):
    """The same back end, exported by iSCSI."""

    target_mapping = property(lambda self: {"lioadm": f"{__name__}.TgtTarget"}, lambda self, mapping: None)


@skipIf(missing("tgtd", "tgtadm", "setpriv") and os.environ.get("CI") != "true", "tgt is not installed")
class IscsiCase(FileCase):
    """What becomes of the volume, of this host, and of the password."""

    driver = f"{__name__}.IscsiDriver"

    def setUp(self):
        super().setUp()
        place = self.enterContext(tempfile.TemporaryDirectory())
        TgtTarget.tgt = self.enterContext(Tgt(Path(place), [], chap=CHAP))
        TgtTarget.dead_portals, TgtTarget.initiators = (), []
        self.stub_out("cinder.utils.get_root_helper", lambda: "false")  # nobody becomes root
        self.stub_out("cinder.volume.volume_utils.brick_get_connector", mock.Mock(side_effect=AssertionError))

    def test_a_volume_has_new_identities_without_a_device_without_os_brick_and_without_root(self):
        original = self.golden_volume(self.wanted())
        made, says = self.made_of(original)
        assert (made.status, says) == ("available", f"resignatured as SR {made.id}")
        assert show(self.path(made))["sr"] == made.id
        check(self.path(made), self.path(original))
        assert LocalTarget.exported == []
        argv = Path(self.directory, "calls").read_text()
        assert f"resignature iscsi://{TgtTarget.tgt.portal}/{TgtTarget.tgt.iqn}/1 --json --initiator-name" in argv
        assert CHAP.secret not in argv and CHAP.user not in argv
        (told,) = TgtTarget.initiators  # whom the back end was told
        assert {line.split("--initiator-name ")[1].split()[0] for line in argv.splitlines()} == {told}

    def test_another_portal_where_the_first_does_not_answer(self):
        TgtTarget.dead_portals = (f"127.0.0.1:{free_port()}",)
        made, _ = self.made_of(self.golden_volume(self.wanted()))
        assert made.status == "available"
        assert show(self.path(made))["sr"] == made.id

    def test_a_target_that_lets_nobody_in_is_for_the_log_alone(self):
        with mock.patch(f"{__name__}.CHAP", CHAP._replace(secret="wrongwrongwrong")):
            made, says = self.made_of(self.golden_volume(self.wanted()))
        assert made.status == "error"
        wanted = "The volume has no new identities: the host of cinder-volume could not log in to the volume; "
        assert says == wanted + "its log gives the cause."
        assert LocalTarget.exported == []

    def test_what_the_command_says_of_the_volume_is_told_and_what_it_says_of_the_back_end_is_not(self):
        wanted = self.wanted()
        made, says = self.made_of(self.empty_volume(wanted))
        assert (made.status, says) == ("error", EMPTY)
        error = (
            '{{"error": {{"message": "127.0.0.1 answers no more.", "disk_state": "", "advice": ""}}}}'  # for str.format
        )
        self.command_ends("resignature", f"echo '{error}'; exit 6")
        _, says = self.made_of(self.golden_volume(wanted))
        assert says.endswith("The volume still has the identities of its source.") and "127.0.0.1" not in says

    def test_other_work_with_a_volume_is_os_bricks(self):
        conn = {"driver_volume_type": "iscsi", "data": {"target_portal": "a", "target_iqn": "iqn.a", "target_lun": 1}}
        self.assertRaises(AssertionError, self.manager.driver._connect_device, conn)


class PlaceCase(FileCase):
    """What the connection information decides."""

    def place(self, kind="iscsi", **data):
        return place_of({"driver_volume_type": kind, "data": data}, ME)

    def test_one_path_or_several_each_with_its_own_name_of_the_target(self):
        found = self.place(target_portal="10.0.0.1:3260", target_iqn="iqn.test:a", target_lun=7, auth_method=None)
        assert found.devices == ("iscsi://10.0.0.1:3260/iqn.test:a/7",)
        assert found.options == ("--initiator-name", ME)
        found = self.place(
            target_portal="10.0.0.1:3260", target_iqn="iqn.a", target_lun=1,
            target_portals=["10.0.0.1:3260", "[fd00::1]:3261"], target_iqns=["iqn.a", "iqn.b"], target_luns=["1", 2],
        )  # fmt: skip
        assert found.devices == ("iscsi://10.0.0.1:3260/iqn.a/1", "iscsi://[fd00::1]:3261/iqn.b/2")

    def test_what_is_left_to_os_brick(self):
        one = {"target_portal": "a:3260", "target_iqn": "iqn.a", "target_lun": 1}
        assert self.place(**one) is not None
        several = {"target_portals": ["a", "b"], "target_iqns": ["iqn.a", "iqn.a"], "target_luns": [1]}
        others = [
            {**one, **several}, {**one, "target_iqn": None}, {**one, "target_lun": None}, {**one, "target_portal": ""},
            {**one, "auth_method": "SRP"}, {"target_portal": "a:3260"}, {**one, "target_portal": "a?b"},
        ]  # fmt: skip
        assert [self.place(**other) for other in others] == [None] * len(others)
        for kind in ("iser", "fibre_channel", "rbd", "local"):
            assert self.place(kind, **one) is None

    def test_a_password_is_in_the_environment_alone_and_no_other_one_is(self):
        one = {"target_portal": "a", "target_iqn": "iqn.a", "target_lun": 1}
        chap = {"auth_method": "CHAP", "auth_username": "u", "auth_password": "secretsecret"}
        with mock.patch.dict(os.environ, LIBISCSI_CHAP_TARGET_PASSWORD="of somebody else"):
            plain, proven = self.place(**one), self.place(**one, **chap)
            assert [name for name in plain.how()["env_variables"] if name.startswith("LIBISCSI")] == []
            assert proven.how()["env_variables"]["LIBISCSI_CHAP_PASSWORD"] == "secretsecret"
            assert "LIBISCSI_CHAP_TARGET_PASSWORD" not in proven.how()["env_variables"]
        assert "secret" not in " ".join((*proven.devices, *proven.options))

    def test_the_name_of_a_machine_without_open_iscsi_is_one_that_targetcli_takes(self):
        with mock.patch.object(login, "THIS_HOST", Host("/nowhere")):
            name = login.initiator_name(None)
            properties = {}
            with resignature._attaching(properties):
                assert properties == {"initiator": name}
        assert normalize_wwn(("iqn", "naa", "eui"), name) == (name, "iqn")
