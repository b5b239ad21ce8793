# SPDX-License-Identifier: LGPL-2.1-only
"""The pool stops answering in the middle of a command: what becomes of the lock of the run, and what the run says."""

import re
import shlex

import pytest

from kit.pool.api import GoneAway
from kit.pool_lab import locks
from relvmoiscsi import untrusted
from relvmoiscsi.pool import lock, lock_keys
from relvmoiscsi.pool.connection import connect

SOON, NEVER = 30, 10**9  #: calls without an answer; the client makes each call twice


@pytest.fixture
def loses(lab):
    """`loses(method, count, is_done)`: from this call on, `count` calls have no answer; `is_done`: this one has."""

    def at(method, count, is_done=False):
        left, is_lost = [count], []

        def before(name, _params):
            if (is_lost or (name == method and not is_done)) and left[0]:
                is_lost.append(name)
                left[0] -= 1
                raise GoneAway()
            if name == method:
                is_lost.append(name)

        lab.pool.api.before = before

    return at


@pytest.mark.parametrize(("method", "is_done", "status"), [("PBD.destroy", False, 6), ("SR.forget", True, 0)])
def test_a_run_removes_its_lock_once_the_pool_answers_again(
    lab, copy, pool_command, loses, monkeypatch, method, is_done, status
):
    """A toolstack restarts in some seconds. The repeated command was refused for 30 minutes."""
    monkeypatch.setattr(lock, "_RELEASE_PAUSE", 0.001)
    monkeypatch.setattr(lock, "RELEASE_SECONDS", 60.0)
    loses(method, SOON, is_done)
    ran = pool_command("discard", copy, "--yes")
    assert ran.status == status and "lock" not in ran.err and locks(lab) == []


@pytest.mark.parametrize(("method", "is_done", "status"), [("PBD.destroy", False, 6), ("SR.forget", True, 0)])
def test_a_run_that_cannot_remove_its_lock_says_how_long_it_stays_and_what_removes_it(
    lab, clone, copy, pool_command, loses, tmp_path, method, is_done, status
):
    """Such a discard ended without a word of the lock, and the next attach was refused."""
    log = tmp_path / "log"
    loses(method, NEVER, is_done)
    ran = pool_command("discard", copy, "--yes", "--log", log)
    lab.pool.api.before = None
    (said,) = re.findall(r"warning: (The pool does not answer.*)", ran.err)
    assert ran.status == status and f"] warning: {said}\n" in log.read_text()
    (until,) = re.findall(f"the lock of this run on {clone} may stay until (.*Z), unless", said)
    with connect(lab.where()) as calls:
        (there,) = lock.read(calls).values()
    assert untrusted.utc_seconds(until) == untrusted.utc_seconds(there.refreshed) + lock_keys.STALE_SECONDS
    refused = pool_command("attach", clone, "--yes")
    assert refused.status == 4 and "was killed or has lost the pool, first break" in refused.err
    (unlock,) = re.findall("`relvmoiscsi pool (unlock .*)`", said)
    assert pool_command(*shlex.split(unlock), "--yes").status == 0 and locks(lab) == []


#: what scsi_id prints, and the other forms in which `attach` takes the SCSIid
SCSI_IDS = {
    "36001405000000000000000000000000a": ["6001405000000000000000000000000A", "naa.6001405000000000000000000000000a"],
    "1IET_____00010001": ["scsi-1IET_____00010001", "SCSI-1IET_____00010001"],
    "SQEMU____QEMU_HARDDISK___drive1": ["scsi-SQEMU____QEMU_HARDDISK___drive1"],
    "8iqn.2001-05.com.equallogic:0-8a0906-vol1": ["scsi-8iqn.2001-05.com.equallogic:0-8a0906-vol1"],
    "0QEMU": ["scsi-0QEMU"],
}


@pytest.mark.parametrize("scsi_id", SCSI_IDS)
def test_a_discard_that_is_repeated_by_the_scsi_id_is_not_told_to_attach_the_lun(lab, pool_command, scsi_id):
    """So does a person after a kill behind SR.forget, and a script until the status is 0."""
    original = lab.world.lun(lab.originals["Production"][0])
    lab.world.add(original.target, original.iqn, original.disk.copy(), scsi_id=scsi_id)
    for form in [*([] if scsi_id == "0QEMU" else [scsi_id]), *SCSI_IDS[scsi_id]]:
        assert pool_command("attach", form, "--yes").status == 0
        assert "discarded\n" in pool_command("discard", form, "--yes").out
        ran = pool_command("discard", form, "--yes")
        assert (ran.status, ran.err) == (0, "") and "attach" not in ran.out
        assert ran.out.startswith(f"{form}: not in the pool\n  The pool has no copy on this LUN: nothing was done.")
        (row,) = pool_command("discard", form, "--yes", "--json").json["discard_results"]
        assert (row["sr"], row["status"]) == (form, "not in the pool")


def test_nobody_is_told_to_remove_a_lun_of_which_the_pool_knows_nothing(lab, pool_command):
    """It may be another pool's, and a script or a person would have destroyed it."""
    ran = pool_command("discard", "36001405000000000000000000000000f", "--yes")
    assert ran.status == 0 and "Remove" not in ran.out
    assert "nothing was done. It may be a LUN of another pool." in " ".join(ran.out.split())


@pytest.mark.parametrize("name", ["Snapshot-of-Prod", "1st-copy-of-prod", "a copy", "scsi-lab", "0QEMU"])
def test_a_name_that_no_copy_has_is_no_discarded_lun(lab, pool_command, name):
    """A script with a misspelt name must not go on, as if the copy were gone."""
    assert pool_command("discard", name, "--yes").status == 3
