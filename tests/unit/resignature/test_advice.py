# SPDX-License-Identifier: LGPL-2.1-only
"""An error's message makes sense to a program: commands and options are in the advice, which people see behind it."""

import re

import pytest

from kit.builder import SMALL_BAT, build_sr, raw, vhd
from kit.outcome import entropy_of
from kit.shell import OTHER_SCSI_ID, SCSI_ID, SR
from kit.sparse import SparseDisk
from relvmoiscsi import engine
from relvmoiscsi.errors import DeviceError, RelvmoiscsiError

COMMAND = re.compile(r"relvmoiscsi [a-z]|(?<!\w)--[a-z]")


def built():
    return build_sr([vhd("disk", bat_entries=SMALL_BAT), raw("data")])


def prepare(disk, **request):
    return engine.prepare(disk, entropy_of("ids"), engine.ResignatureRequest(**request))


def done(disk, **request):
    engine.resignature(disk, prepare(disk, **request))
    return disk


def cut(disk, monkeypatch, batch):
    """A run of which a batch of writes fails: the third is before its commit, the fifth is behind it."""
    real, left = SparseDisk.write, [batch]

    def write(device, chunks):
        left[0] -= 1
        if not left[0]:
            raise DeviceError("x", "write", 0, 512, 5)
        real(device, chunks)

    with monkeypatch.context() as patch:
        patch.setattr(SparseDisk, "write", write)
        with pytest.raises(RelvmoiscsiError):
            done(disk, scsi_id=SCSI_ID)
    return disk


def again_with_other_ids(disk, _uuids, _monkeypatch):
    prepare(done(disk, scsi_id=SCSI_ID), scsi_id=SCSI_ID, sr_uuid=SR)


def without_a_scsi_id(disk, _uuids, _monkeypatch):
    prepare(done(disk, scsi_id=SCSI_ID))


def with_a_scsi_id_later(disk, _uuids, _monkeypatch):
    prepare(done(disk), scsi_id=SCSI_ID)


def leaving_a_vdi_behind_later(disk, uuids, _monkeypatch):
    prepare(done(disk, scsi_id=SCSI_ID), scsi_id=SCSI_ID, without=(uuids["data"],))


def one_vdi_later(disk, uuids, _monkeypatch):
    result = engine.resignature(disk, prepare(disk, scsi_id=SCSI_ID))
    prepare(disk, scsi_id=SCSI_ID, one=engine.OneVdiRequest(result.ids.uuids[uuids["disk"]]))


def leaving_an_unknown_vdi_behind(disk, _uuids, _monkeypatch):
    prepare(disk, scsi_id=SCSI_ID, without=(SR,))


def after_a_cut(disk, _uuids, monkeypatch):
    prepare(cut(disk, monkeypatch, 3), scsi_id=SCSI_ID)


def recovering_a_copy(disk, _uuids, monkeypatch):
    engine.recover(cut(disk, monkeypatch, 5), scsi_id=OTHER_SCSI_ID)


CASES = [
    (again_with_other_ids, False),
    (without_a_scsi_id, True),
    (with_a_scsi_id_later, True),
    (leaving_a_vdi_behind_later, True),
    (one_vdi_later, True),
    (leaving_an_unknown_vdi_behind, True),
    (after_a_cut, True),
    (recovering_a_copy, True),
]


@pytest.mark.parametrize(("case", "names_a_command"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_the_message_has_no_command_and_the_advice_has_it(case, names_a_command, monkeypatch):
    made = built()
    with pytest.raises(RelvmoiscsiError) as told:
        case(made.disk, made.truth.uuids, monkeypatch)

    error = told.value
    assert error.message.endswith(".") and not COMMAND.search(error.message)
    assert bool(COMMAND.search(error.advice)) == names_a_command
    assert str(error) == " ".join(filter(None, [error.message, error.disk_state, error.advice]))
