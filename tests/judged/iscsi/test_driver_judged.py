# SPDX-License-Identifier: LGPL-2.1-only
"""The executable of the driver against a real target: killed, told to end, two portals, digests, CHAP."""

import signal
import tempfile

import pytest

from kit import driver_process, golden
from kit.driver_calls import SUCCESS_TEXT, call_of
from kit.iscsi.options import Chap
from kit.iscsi.programs import Export, Tgt, require
from kit.iscsi.proxy import SILENCE, Cut, CuttingProxy
from kit.pool import wire
from kit.pool.client import connected_locally
from kit.pool.simulator import Pool
from kit.shell import content
from relvmoiscsi import engine
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.iscsi import Credentials, Initiator, Portal, list_luns
from relvmoiscsi.iscsi.names import NO_CREDENTIALS

USER, TARGET = Chap("alice", "sesamesesame"), Chap("array", "emasesemases")
SUCCESS = wire.Fault(1, SUCCESS_TEXT)


class Calls:
    """Calls of the executable; `image` is the LUN of the target."""

    def __init__(self, tmp_path, socket, pool, session):
        self.root, self.image = tmp_path / "host", tmp_path / "lun.img"
        self._socket, self._pool, self._session = socket, pool, session

    def start(self, tgt, command="sr_create", scsi_id=None, **config):
        named = {"SRmaster": "true", "target": "127.0.0.1", "port": str(tgt.port), "targetIQN": tgt.iqn}
        config = {**named, "SCSIid": scsi_id or scsi_id_at(tgt), **config}
        call = call_of(command, config, host_ref=self._pool.master, session_ref=self._session)
        return driver_process.start(self._socket, self.root, call)

    def answer(self, tgt, *words, **config):
        return driver_process.ended(self.start(tgt, *words, **config))

    def state(self):
        with open_device(str(self.image), writable=False) as device:
            return engine.inspect(device).state


def scsi_id_at(tgt, credentials=NO_CREDENTIALS):
    me = Initiator("iqn.2026-01.test:looks")
    (lun,) = list_luns([Portal("127.0.0.1", tgt.port)], tgt.iqn, me, Deadline(60), credentials).disks
    return lun.scsi_id


@pytest.fixture
def calls(tmp_path):
    require("tgtd", "tgtadm", "setpriv")
    golden.load("chain").disk.to_file(str(tmp_path / "lun.img"))
    (tmp_path / "sm").mkdir()
    with tempfile.TemporaryDirectory(prefix="xapi", dir="/tmp") as directory:
        socket = directory + "/xapi"
        with Pool(tmp_path / "sm", socket) as pool, connected_locally(pool) as session:
            yield Calls(tmp_path, socket, pool, session.handle)


@pytest.fixture
def tgt(calls, tmp_path):
    with Tgt(tmp_path, [Export(1, calls.image)]) as tgt:
        yield tgt


def test_a_clone_behind_tgt_gets_new_identities_with_chap_and_digests(calls, tmp_path):
    chap = {"chapuser": USER.user, "chappassword": USER.secret}
    chap.update({"incoming_chapuser": TARGET.user, "incoming_chappassword": TARGET.secret})
    more = {"HeaderDigest": "CRC32C", "DataDigest": "CRC32C"}
    with Tgt(tmp_path, [Export(1, calls.image)], chap=USER, mutual=TARGET, **more) as tgt:
        found = calls.answer(tgt, scsi_id=scsi_id_at(tgt, Credentials(*USER, *TARGET)), **chap)

    assert found.result == SUCCESS and found.stderr == b""
    assert calls.state() == "resignatured"


@pytest.mark.parametrize("secret", [USER.secret, USER.secret + "!", USER.secret[:-1]])
def test_passwords_of_which_one_begins_with_the_other_are_refused_though_the_target_takes_them(calls, tmp_path, secret):
    """Else a target that knows neither passes: docs/security.rst."""
    mutual = Chap("array", secret)
    chap = {"chapuser": USER.user, "chappassword": USER.secret}
    chap.update({"incoming_chapuser": mutual.user, "incoming_chappassword": mutual.secret})
    before = content(calls.image)
    with Tgt(tmp_path, [Export(1, calls.image)], chap=USER, mutual=mutual) as tgt:
        found = calls.answer(tgt, scsi_id="36001405" + "0" * 25, **chap)

    assert "begins with it" in found.result.text and USER.secret not in str(found)
    assert content(calls.image) == before


@pytest.mark.states(few=2)
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("sent, state", [(9000, "clean"), (30000, "unfinished"), (60000, "unfinished")])
def test_a_call_that_is_killed_while_it_writes_is_finished_by_the_next(calls, tgt, sent, state, by):
    """Of 95,000 bytes that it sends, all but 4,000 are what it writes; 26,000 are the journal and the first label."""
    with CuttingProxy(tgt.portal, [Cut("out", sent, SILENCE)]) as proxy:
        process = calls.start(tgt, port=str(proxy.port))
        proxy.wait_for_cut()
        process.send_signal(by)
        process.communicate()
        assert process.returncode == -by

    assert calls.state() == state
    assert calls.answer(tgt).result == SUCCESS
    assert calls.state() == "resignatured"


def test_a_call_is_told_to_end_while_the_target_is_silent(calls, tgt):
    before, scsi_id = calls.image.stat().st_mtime_ns, scsi_id_at(tgt)
    tgt.freeze()
    process = calls.start(tgt, scsi_id=scsi_id)
    tgt.wait_for_initiator()
    process.send_signal(signal.SIGTERM)
    process.communicate()
    tgt.thaw()

    assert process.returncode == -signal.SIGTERM
    assert calls.image.stat().st_mtime_ns == before
