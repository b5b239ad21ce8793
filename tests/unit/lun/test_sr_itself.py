# SPDX-License-Identifier: LGPL-2.1-only
"""An SR of the pool whose UUID is on a LUN with another SCSIid: the LUN is a copy, or it may be the SR itself.

A target gives a LUN a new serial number when its cluster fails over, an array does so in a migration, and people map
LUNs anew: the PBDs keep the old SCSIid.
"""

import pytest

from kit.pool.database import Database
from kit.sr_states import ATTACHED, INTRODUCED, NONE, OTHER, OTHER_LUN, STATES, UNPLUGGED, State, name_of
from relvmoiscsi.errors import Refused
from relvmoiscsi.lun.users import Question, verify_unused
from relvmoiscsi.sr_driver.codes import fault_of

SCSI_ID = "36001405993c87c37fa84d02b7fa62c40"
SR = "5d0d2b3a-7777-4a4a-9b9b-0123456789ab"


class Asked:
    """A pool of two hosts, and the question about a LUN."""

    def __init__(self):
        self.db = Database()
        self.hosts = [
            self.db.create("host", name_label=name, metrics=self.db.create("host_metrics", live=True))
            for name in ("xs1", "xs2")
        ]

    def put(self, state):
        return state.put(self.db, self.hosts, SR, SCSI_ID)

    def ask(self, **more):
        """The refusal of the LUN that holds the SR; "" if a run may write to the LUN."""
        question = Question(SCSI_ID, [SR])._replace(**{"look": lambda _path: None, **more})
        try:
            verify_unused(question, self.db)
        except Refused as refused:
            assert fault_of(refused).faultCode == 202, "16 would lose the text"
            assert ". Nothing was written." in str(refused)
            return str(refused)
        return ""


@pytest.fixture
def asked():
    return Asked()


@pytest.mark.parametrize("state", STATES, ids=name_of)
def test_a_lun_is_written_only_if_the_pool_has_its_sr_attached_on_another_lun_or_has_never_had_it(asked, state):
    asked.put(state)
    assert (asked.ask() == "") is state.is_written


def test_the_refusal_names_the_sr_its_pbds_with_hosts_and_scsiids_and_what_to_do(asked):
    asked.put(State(UNPLUGGED, OTHER))
    asked.db.set("host_metrics", asked.db.get("host", asked.hosts[1], "metrics"), "live", False)

    said = asked.ask()

    assert f"The LUN with the SCSIid {SCSI_ID} holds the SR {SR} ('production') of this pool." in said
    assert "No live host has that SR attached. This LUN may be that SR under a new SCSIid." in said
    assert f"The PBD of the host 'xs1' is detached, with the SCSIid {OTHER_LUN}." in said
    assert f"The PBD of the dead host 'xs2' is detached, with the SCSIid {OTHER_LUN}." in said
    for way_out in (f"give its PBDs the SCSIid {SCSI_ID}", "plug the SR on its own LUN first",
                    f"`xe sr-forget uuid={SR}`", f"device-config:clone-of={SR}"):  # fmt: skip
        assert way_out in said


def test_who_says_of_which_sr_the_lun_is_a_clone_is_believed_for_that_sr_alone(asked):
    asked.put(State(UNPLUGGED, OTHER))

    assert asked.ask(clone_of=SR) == ""
    assert asked.ask(clone_of="6" + SR[1:]) != ""


def test_the_word_is_none_against_an_sr_that_has_this_very_lun(asked):
    asked.put(State(UNPLUGGED, "this LUN"))
    assert "in use in this pool" in asked.ask(clone_of=SR)


def test_a_plug_under_way_is_told_because_it_will_show_whether_the_lun_is_a_copy(asked):
    sr = asked.put(State(UNPLUGGED, OTHER))
    assert "under way" not in asked.ask()
    asked.db.set("SR", sr, "current_operations", {"OpaqueRef:task": "plug"})
    assert "A plug of the SR is under way. Nothing was written. Try again when the plug has ended." in asked.ask()


def test_an_sr_with_a_vdi_was_attached_once_and_may_be_on_this_lun(asked):
    sr = asked.put(State(INTRODUCED))
    assert asked.ask() == ""
    asked.db.create("VDI", SR=sr)
    assert "The SR has no PBD." in asked.ask()


def test_a_forgotten_sr_whose_row_of_this_call_is_there_is_unknown(asked):
    """CloudStack's managed storage: no record of the SR but the temporary one that SR.create has made of its own."""
    sr = asked.db.create("SR", name_label="iqn", type="relvmoiscsi")
    for host in asked.hosts:
        asked.db.create("PBD", SR=sr, host=host, device_config={"SCSIid": SCSI_ID})
    assert asked.ask(own_sr=sr) == ""


@pytest.mark.parametrize(
    "device, leads_to, sm_config, is_written",
    [
        ("/dev/disk/by-id/scsi-" + OTHER_LUN, None, {}, True),
        ("/dev/disk/by-scsid/" + OTHER_LUN, None, {}, True),
        ("/dev/disk/by-id/wwn-0x600140500000000000000000000000aa-part3", None, {}, True),
        ("/dev/sdz3", OTHER_LUN, {}, True),
        ("/dev/sdz3", None, {"devserial": "scsi-" + OTHER_LUN}, True),
        ("/dev/sdz3", None, {"allocation": "thick"}, False),
        ("/dev/sdz3", SCSI_ID, {}, False),
    ],
)
def test_a_pbd_with_a_device_path_proves_a_copy_where_the_path_or_sm_names_another_lun(
    asked, device, leads_to, sm_config, is_written
):
    sr = asked.put(State(ATTACHED, NONE))
    asked.db.set("SR", sr, "sm_config", sm_config)
    for pbd in asked.db.get("SR", sr, "PBDs"):
        asked.db.set("PBD", pbd, "device_config", {"device": device})

    said = asked.ask(here=asked.hosts[0], look=lambda path: leads_to if path == device else None)

    assert (said == "") is is_written
    if not is_written and leads_to is None:
        assert "The attached PBD of the host 'xs1' names no SCSIid." in said
        assert "sr-forget" not in said, "nobody forgets an SR that a host uses"


def test_hosts_are_asked_for_only_where_the_pool_has_the_sr(asked):
    read = []
    records = asked.db.records
    asked.db.records = lambda kind: read.append(kind) or records(kind)
    asked.ask()
    assert "host" not in read

    asked.put(State(ATTACHED, OTHER))
    asked.ask()
    assert "host" in read and "host_metrics" in read


@pytest.mark.parametrize("more", [{}, {"clone_of": SR}])
def test_an_attached_sr_whose_disk_answers_with_the_new_scsi_id_is_that_lun(asked, more):
    """The target has failed over in mid-use: the SR stays attached, and the kernel keeps the old SCSIid of its disk."""
    asked.put(State(ATTACHED, OTHER))
    answers = {OTHER_LUN: [SCSI_ID]}

    said = asked.ask(answers=lambda scsi_id: answers.get(scsi_id, []), **more)
    assert "is the SR" in said and "answers with that SCSIid now" in said
    assert asked.ask(answers=lambda _scsi_id: [OTHER_LUN]) == "", "a copy beside its original"


# --- a LUN that says that it was resignatured: each writer of the raw LUN can write that


@pytest.mark.parametrize("state", STATES, ids=name_of)
def test_a_finished_run_is_believed_if_the_pool_has_no_such_sr_or_has_it_on_this_lun(asked, state):
    asked.put(state)
    assert (asked.ask(is_finished=True) == "") is state.is_believed
    assert (asked.ask(is_finished=True, clone_of=SR) == "") is state.is_believed


def test_the_refusal_of_a_finished_run_names_the_sr_its_lun_and_both_ways_out(asked):
    asked.put(State(ATTACHED, OTHER))

    said = asked.ask(is_finished=True)

    assert f"The label of the LUN with the SCSIid {SCSI_ID} says that the LUN was resignatured." in said
    assert f"the SR {SR} ('production') of this pool, which is not on this LUN." in said
    assert f"The PBD of the host 'xs1' is attached, with the SCSIid {OTHER_LUN}." in said
    assert "`relvmoiscsi resignature --again`" in said and f"give its PBDs the SCSIid {SCSI_ID}" in said


@pytest.mark.parametrize(
    "sm_config, config, is_believed",
    [
        ({"devserial": "scsi-" + SCSI_ID}, None, True),  # the PBDs were destroyed
        ({"devserial": "scsi-" + SCSI_ID}, {"SCSIid": OTHER_LUN}, False),
        ({"devserial": "scsi-" + SCSI_ID}, {"device": "/dev/sdz3"}, True),
        ({}, {"device": "/dev/disk/by-id/scsi-" + SCSI_ID}, True),
        ({}, {"device": "/dev/disk/by-id/scsi-" + OTHER_LUN}, False),
    ],
)
def test_what_sm_has_noted_of_the_sr_counts_where_no_pbd_names_another_lun(asked, sm_config, config, is_believed):
    sr = asked.put(State(INTRODUCED))
    asked.db.set("SR", sr, "sm_config", sm_config)
    if config is not None:
        asked.db.create("PBD", SR=sr, host=asked.hosts[0], device_config=config)
    assert (asked.ask(is_finished=True) == "") is is_believed


def test_one_host_with_the_sr_on_another_lun_is_enough(asked):
    sr = asked.put(State(ATTACHED, "this LUN"))
    assert asked.ask(is_finished=True) == ""
    asked.db.create("PBD", SR=sr, host=asked.hosts[1], device_config={"SCSIid": OTHER_LUN})
    assert "which is not on this LUN" in asked.ask(is_finished=True)
