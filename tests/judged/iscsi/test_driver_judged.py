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
from relvmoiscsi import engine
from relvmoiscsi.deadline import NOT_BEGUN, Deadline
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.iscsi import Credentials, Initiator, Portal, list_luns
from relvmoiscsi.iscsi.names import NO_CREDENTIALS

USER, TARGET = Chap("alice", "sesamesesame"), Chap("array", "emasesemases")
ME = Initiator("iqn.2026-01.test:looks")
SUCCESS = wire.Fault(1, SUCCESS_TEXT)


class Calls:
    """Calls of the executable; `image` is the LUN of the target."""

    def __init__(self, tmp_path, socket, pool, session):
        self.root, self.image = tmp_path / "host", tmp_path / "lun.img"
        self._socket, self._pool, self._session = socket, pool, session

    def start(self, tgt, command="sr_create", credentials=NO_CREDENTIALS, **config):
        (lun,) = list_luns([Portal("127.0.0.1", tgt.port)], tgt.iqn, ME, Deadline(60), credentials)
        return self.begin(tgt, command, lun.scsi_id, **config)

    def begin(self, tgt, command, scsi_id, **config):
        named = {"SRmaster": "true", "target": "127.0.0.1", "port": str(tgt.port), "targetIQN": tgt.iqn}
        config = {**named, "SCSIid": scsi_id, **config}
        call = call_of(command, config, host_ref=self._pool.master, session_ref=self._session)
        return driver_process.start(self._socket, self.root, call)

    def answer(self, tgt, *words, **config):
        return driver_process.ended(self.start(tgt, *words, **config))

    def state(self):
        with open_device(str(self.image), writable=False) as device:
            return engine.inspect(device).state


@pytest.fixture
def calls(tmp_path):
    require("tgtd", "tgtadm", "setpriv")
    golden.load("chain").disk.to_file(str(tmp_path / "lun.img"))
    (tmp_path / "sm").mkdir()
    with tempfile.TemporaryDirectory(prefix="xapi", dir="/tmp") as directory:
        socket = directory + "/xapi"
        with Pool(tmp_path / "sm", socket) as pool, connected_locally(pool) as session:
            yield Calls(tmp_path, socket, pool, session.handle)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"HeaderDigest": "CRC32C", "DataDigest": "CRC32C"},
        {"MaxRecvDataSegmentLength": 512, "ImmediateData": "No"},
        {"chap": USER, "mutual": TARGET},
    ],
    ids=lambda more: ", ".join(more) or "plain",
)
def test_a_clone_behind_tgt_gets_new_identities(calls, tmp_path, more):
    chap = {}
    if "chap" in more:
        chap = {"chapuser": USER.user, "chappassword": USER.secret}
        chap.update({"incoming_chapuser": TARGET.user, "incoming_chappassword": TARGET.secret})
    with Tgt(tmp_path, [Export(1, calls.image)], **more) as tgt:
        credentials = Credentials(*USER, *TARGET) if chap else NO_CREDENTIALS
        found = calls.answer(tgt, credentials=credentials, **chap)

    assert found.result == SUCCESS and found.stderr == b""
    assert calls.state() == "resignatured"


@pytest.mark.states(few=1)
@pytest.mark.parametrize("sent, state", [(9000, "clean"), (30000, "unfinished"), (60000, "unfinished")])
def test_a_call_that_is_killed_while_it_writes_is_finished_by_the_next(calls, tmp_path, sent, state):
    """Of 95,000 bytes that it sends, all but 4,000 are what it writes; 26,000 are the journal and the first label."""
    with Tgt(tmp_path, [Export(1, calls.image)]) as tgt:
        with CuttingProxy(tgt.portal, [Cut("out", sent, SILENCE)]) as proxy:
            process = calls.start(tgt, port=str(proxy.port))
            proxy.wait_for_cut()
            process.send_signal(signal.SIGKILL)
            process.communicate()

        assert calls.state() == state
        assert calls.answer(tgt).result == SUCCESS
    assert calls.state() == "resignatured"


def test_a_call_is_told_to_end_while_the_target_is_silent(calls, tmp_path):
    before = calls.image.stat().st_mtime_ns
    with Tgt(tmp_path, [Export(1, calls.image)]) as tgt:
        (lun,) = list_luns([Portal("127.0.0.1", tgt.port)], tgt.iqn, ME, Deadline(60))
        tgt.freeze()
        process = calls.begin(tgt, "sr_create", lun.scsi_id)
        tgt.wait_for_initiator()
        process.send_signal(signal.SIGTERM)
        found = driver_process.ended(process)
        tgt.thaw()

    assert found.result.code == 47 and "SIGTERM ended this call: " in found.result.text
    assert NOT_BEGUN in found.result.text
    assert calls.image.stat().st_mtime_ns == before


def test_a_portal_that_is_dead_and_one_that_is_not(calls, tmp_path):
    with Tgt(tmp_path, [Export(1, calls.image)]) as tgt:
        assert calls.answer(tgt, target="127.0.0.77,127.0.0.1").result == SUCCESS


def test_a_target_that_the_portal_does_not_have_is_83(calls, tmp_path):
    with Tgt(tmp_path, [Export(1, calls.image)]) as tgt:
        assert calls.answer(tgt, targetIQN="iqn.2026-01.test:another").result.code == 83


def test_a_probe_answers_beside_a_call_of_another_host(calls, tmp_path):
    with Tgt(tmp_path, [Export(1, calls.image)]) as tgt:
        process = calls.start(tgt)
        calls.root = tmp_path / "another"
        probed = calls.answer(tgt, "sr_probe")

        assert driver_process.ended(process).result == SUCCESS
    assert "<state>" in wire.as_string(probed.result)
