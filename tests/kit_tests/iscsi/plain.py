# SPDX-License-Identifier: LGPL-2.1-only
"""The plainest initiator: one PDU goes, and what comes is looked at. It breaks a rule where a test says so."""

import socket
import struct

from kit.iscsi import scsi
from kit.iscsi.idle_time import something_comes
from kit.iscsi.negotiation import binary, binary_of, chap_response
from kit.iscsi.wire import DATA_IN, NO_TAG, R2T, RESPONSE, Gone, Pdu, crc32c_bytes, pairs_of, text_of

ISID = b"\x80\x12\x34\x56\x00\x01"
NAME = "iqn.2026-01.test:plain"
OPERATIONAL = {
    "HeaderDigest": "None,CRC32C", "DataDigest": "None,CRC32C", "MaxRecvDataSegmentLength": "262144",
    "InitialR2T": "Yes", "ImmediateData": "Yes", "MaxBurstLength": "16776192", "FirstBurstLength": "262144",
    "MaxConnections": "1", "MaxOutstandingR2T": "1", "ErrorRecoveryLevel": "0", "DefaultTime2Wait": "2",
    "DefaultTime2Retain": "0", "DataPDUInOrder": "Yes", "DataSequenceInOrder": "Yes",
}  # fmt: skip
DISCOVERY = ("HeaderDigest", "DataDigest", "MaxRecvDataSegmentLength", "ErrorRecoveryLevel", "DefaultTime2Wait",
             "DefaultTime2Retain")  # fmt: skip


class Plain:
    """A connection. `cmd_sn`, `exp_stat_sn` and `isid` may be changed to wrong values."""

    def __init__(self, target, portal=0, isid=ISID, lun=None):
        host, port = target.portals[portal].rsplit(":", 1)
        self.sock = socket.create_connection((host.strip("[]"), int(port)), 600)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.target, self.isid, self.cmd_sn, self.exp_stat_sn, self.tag = target, isid, 7, 0, 1
        self.lun = lun or (target.luns[0].address if target.luns else bytes(8))
        self.digests = (False, False)
        self.keys, self.max_cmd_sn = {}, None
        self.lonely = False  #: a target that rests has no answer to come

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    # -- PDUs -------------------------------------------------------------------------------------------------------

    def send(self, pdu):
        self.sock.sendall(pdu.encoded(*self.digests))

    def exactly(self, size):
        data = b""
        while len(data) < size:
            if self.lonely and not something_comes(self.sock):
                raise Gone("no answer")
            piece = self.sock.recv(size - len(data))
            if not piece:
                raise Gone("closed")
            data += piece
        return data

    def receive(self):
        """The next PDU, digests checked."""
        header = self.exactly(48)
        pdu, length = Pdu.of_header(header)
        assert not self.digests[0] or self.exactly(4) == crc32c_bytes(header), "header digest"
        data = self.exactly(length + -length % 4)
        assert not (self.digests[1] and data) or self.exactly(4) == crc32c_bytes(data), "data digest"
        pdu.data = data[:length]
        takes = not (pdu.opcode == R2T or (pdu.opcode == 0x20 and pdu.tag == NO_TAG))
        if takes and not (pdu.opcode == DATA_IN and not pdu.flags & 1):
            self.exp_stat_sn = (pdu.words[1] + 1) & 0xFFFFFFFF
        self.max_cmd_sn = pdu.words[3]
        return pdu

    def numbered(self, pdu, immediate=False):
        pdu.words[1], pdu.words[2] = self.cmd_sn, self.exp_stat_sn
        if immediate:
            pdu.immediate = True
        else:
            self.cmd_sn = (self.cmd_sn + 1) & 0xFFFFFFFF
        return pdu

    # -- login ------------------------------------------------------------------------------------------------------

    def stage(self, stage, following, keys, goes_on=True):
        """One request and its whole answer: (status, T, keys)."""
        flags = stage << 2 | (0x80 | following if goes_on else 0)
        text = text_of(keys.items() if isinstance(keys, dict) else keys)
        words = [0, self.cmd_sn, self.exp_stat_sn]
        self.send(Pdu(0x43, flags, lun=self.isid + bytes(2), tag=9, words=words, data=text))
        answer = self.receive()
        collected = answer.data
        while answer.flags & 0x40:
            words = [0, self.cmd_sn, self.exp_stat_sn]
            self.send(Pdu(0x43, stage << 2, lun=self.isid + bytes(2), tag=9, words=words))
            answer = self.receive()
            collected += answer.data
        return answer.words[4] >> 16, bool(answer.flags & 0x80), dict(pairs_of(collected))

    def until(self, stage, following, keys):
        """Requests until the target goes on; all keys that it answered with."""
        found = {}
        for _ in range(20):
            status, goes_on, answered = self.stage(stage, following, keys)
            found.update(answered)
            if status or goes_on:
                return status, found
            keys = {name: "No" if "Marker" in name else "NotUnderstood" for name in answered if name not in OPERATIONAL
                    and name not in ("TargetAlias", "TargetAddress")}  # fmt: skip
        raise AssertionError("the target does not go on")

    def naming(self, discovery=False):
        names = {"InitiatorName": NAME, "SessionType": "Discovery" if discovery else "Normal"}
        return names if discovery else dict(names, TargetName=self.target.iqn)

    def login(self, discovery=False, **keys):
        status, found = self.until(0, 1, dict(self.naming(discovery), AuthMethod="None"))
        self.keys.update(found)
        return status or self.operational(discovery, **keys)

    def operational(self, discovery=False, **keys):
        offer = {name: value for name, value in OPERATIONAL.items() if not discovery or name in DISCOVERY}
        offer.update(keys)
        status, found = self.until(1, 3, offer)
        self.keys.update(found)
        if not status:
            self.digests = tuple(self.keys[name] == "CRC32C" for name in ("HeaderDigest", "DataDigest"))
        return status

    def chap(self, user, secret, algorithms="5", challenge=None):
        """The security stage by CHAP: (status, keys of the target's last answer)."""
        status, _, keys = self.stage(0, 0, dict(self.naming(), AuthMethod="CHAP"), False)
        if status or keys.get("AuthMethod") != "CHAP":
            return status, keys
        status, _, keys = self.stage(0, 0, {"CHAP_A": algorithms}, False)
        if status or "CHAP_C" not in keys:
            return status, keys
        proof = chap_response(keys["CHAP_A"], int(keys["CHAP_I"], 0), secret, binary_of(keys["CHAP_C"]))
        answer = {"CHAP_N": user, "CHAP_R": binary(proof)}
        if challenge:
            answer.update(CHAP_I="77", CHAP_C=binary(challenge))
        status, _, keys = self.stage(0, 1, answer)
        return status, keys

    # -- full feature -----------------------------------------------------------------------------------------------

    def start(self, cdb, wanted=0, data=b"", way="", lun=None):
        """Send a SCSI command; its tag."""
        self.tag += 1
        flags = 0x80 | {"in": 0x40, "out": 0x20}.get(way, 0)
        words = [wanted, 0, 0, *struct.unpack(">4I", cdb.ljust(16, b"\0"))]
        self.send(self.numbered(Pdu(0x01, flags, lun=lun or self.lun, tag=self.tag, words=words, data=data)))
        return self.tag

    def command(self, cdb, wanted=0, data=b"", way="", immediate=None, lun=None):
        """(status, data, sense) of a command, R2Ts answered; `immediate` bytes of data go with it."""
        tag = self.start(cdb, wanted, data if immediate is None else data[:immediate], way, lun)
        received = bytearray()
        while True:
            pdu = self.receive()
            if pdu.opcode == DATA_IN:
                assert (pdu.tag, pdu.words[5]) == (tag, len(received)), pdu
                received += pdu.data
                if pdu.flags & 1:
                    return pdu.byte3, bytes(received), b""
            elif pdu.opcode == R2T:
                self.data_out(pdu, data)
            elif pdu.opcode == RESPONSE:
                return pdu.byte3, bytes(received), pdu.data[2:]

    def data_out(self, r2t, data, **changes):
        offset, length = r2t.words[5:]
        most = int(self.keys.get("MaxRecvDataSegmentLength", 8192))
        for number, start in enumerate(range(offset, offset + length, most)):
            end = min(start + most, offset + length)
            words = [r2t.words[0], 0, self.exp_stat_sn, 0, number, start, 0]
            pdu = Pdu(0x05, 0x80 if end == offset + length else 0, lun=r2t.lun, tag=r2t.tag, words=words)
            pdu.data = data[start:end]
            for name, value in changes.items():
                setattr(pdu, name, value)
            self.send(pdu)

    def read(self, block, count, size=512, **more):
        return self.command(struct.pack(">BxIxHx", scsi.READ_10, block, count), count * size, way="in", **more)

    def write(self, block, data, size=512, **more):
        cdb = struct.pack(">BxIxHx", scsi.WRITE_10, block, len(data) // size)
        return self.command(cdb, len(data), data, "out", **more)

    def flush(self):
        return self.command(struct.pack(">BxIxHx", scsi.SYNCHRONIZE_CACHE_10, 0, 0))

    def inquiry(self, page=None, **more):
        return self.command(
            struct.pack(">BBBHx", scsi.INQUIRY, page is not None, page or 0, 255), 255, way="in", **more
        )

    def capacity(self, **more):
        return self.command(struct.pack(">BBQIxx", scsi.SERVICE_ACTION_IN, 0x10, 0, 32), 32, way="in", **more)

    def known(self):
        """Ask what a writer has to know; itself."""
        assert self.inquiry(0x83)[0] == self.capacity()[0] == 0
        return self

    def logout(self):
        self.send(self.numbered(Pdu(0x06, 0x80, tag=0x5000), immediate=True))
        pdu = self.receive()
        while pdu.opcode != 0x26:
            pdu = self.receive()
        return pdu.byte2
