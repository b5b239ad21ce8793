# SPDX-License-Identifier: LGPL-2.1-only
"""One connection of the scripted target: its socket, its thread, the numbers in its PDUs."""

import select
import socket
import struct
import threading
import traceback

from .full_feature import FullFeature
from .idle_time import Rest
from .login import Login
from .watch import SessionWatch
from .wire import DATA_IN, NO_TAG, NOP_IN, R2T, RESPONSE, TASK_DONE, Broken, Gone, Reader, after

FIN, RST = "FIN", "RST"


class Session:
    """What is of a session at the target. `late` are writes that a dead session may yet carry out."""

    def __init__(self, login, connection, tsih):
        self.initiator, self.isid, self.discovery = login.initiator, login.isid, login.discovery
        self.keys = login.negotiation
        self.connection, self.tpgt, self.tsih = connection, connection.tpgt, tsih
        self.call = connection.target.call
        self.attentions = {}
        self.late = []
        self.lost = self.logged_out = False


class Connection:
    """Runs in a thread of its own from `start` until one side closes."""

    def __init__(self, target, sock, portal_number):
        self.target, self.options = target, target.options
        self.portal_number, self.tpgt = portal_number, portal_number + 1
        self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn = target.options.stat_sn, 0, 0
        self.session = self.watch = None
        self.silent = self.deaf = False
        self._sock, self._ended = sock, threading.Event()
        self.rest = Rest([sock])
        self._reader = Reader(sock, 8192, self.rest)
        self.digests = (False, False)
        self._out, self._sending = [], threading.Lock()
        self._phase = Login(self)
        self._thread = threading.Thread(target=self._run, name=f"target {sock.fileno()}", daemon=True)

    def start(self):
        self._thread.start()

    def join(self, timeout):
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # -- the thread -------------------------------------------------------------------------------------------------

    def _run(self):
        why = None
        try:
            self._serve()
        except Gone as error:
            why = str(error)
        except Broken as error:
            self.complain(*error.args)
        except Exception:  # noqa: BLE001  a mistake of this kit, told at the end of the test
            self.target.failures.append(traceback.format_exc())
        finally:
            self._close()
            self.target.ended(self)
            if why is not None:  # told last: a test that waited for it finds the session ended
                self.target.note("gone", why)
            self.rest.is_over = True

    def _serve(self):
        with self.target.lock:
            self.fires("connected", None)
        self.flush()
        while True:
            while self.deaf:
                self.rest.until_set(self._ended)
                raise Gone("ended")
            self._idle()
            pdu = self._reader.next()
            with self.target.lock:
                if self._ended.is_set():
                    raise Gone("ended")  # what had come before is not carried out any more
                if not self.silent:
                    self._phase.request(pdu)
            self.flush()

    def _idle(self):
        """What is to be done once nothing more has come."""
        if isinstance(self._phase, Login) or self._reader.has_more():
            return
        if self._phase.deferred and not select.select([self._sock], [], [], 0.001)[0]:
            with self.target.lock:
                self._phase.carry_out_deferred()
            self.flush()

    # -- phases -----------------------------------------------------------------------------------------------------

    def first_cmd_sn(self, number):
        self.exp_cmd_sn = number
        self.max_cmd_sn = (number + self.options.window - 1) & 0xFFFFFFFF

    def enter(self, login):
        """Make the session."""
        self.session = self.target.session_of(login, self)

    def begin_full_feature(self):
        keys = self.session.keys.result
        self.digests = (keys["HeaderDigest"] == "CRC32C", keys["DataDigest"] == "CRC32C")
        self._reader.header_digest, self._reader.data_digest = self.digests
        self._reader.max_data = self.options.max_recv or 8192
        self.watch = SessionWatch(self.complain, self.stat_sn)
        self.watch.told(self.max_cmd_sn, self.stat_sn, True)
        self._phase = FullFeature(self)
        self.target.note("session", self.session.isid)

    @property
    def tasks(self):
        return self._phase.tasks if isinstance(self._phase, FullFeature) else {}

    @property
    def phase(self):
        return self._phase

    # -- sending ----------------------------------------------------------------------------------------------------

    def send(self, pdu):
        """Number a PDU and put it in the queue; `flush` sends it."""
        takes = not (pdu.opcode == R2T or (pdu.opcode == NOP_IN and pdu.tag == NO_TAG))
        if pdu.opcode == DATA_IN and not pdu.flags & 1:
            takes, pdu.words[1] = False, 0
        else:
            pdu.words[1] = self.stat_sn
        pdu.words[2], pdu.words[3] = self.exp_cmd_sn, self._window()
        if takes:
            self.stat_sn = (self.stat_sn + 1) & 0xFFFFFFFF
        if self.watch:
            finishes = pdu.opcode in (RESPONSE, TASK_DONE) or pdu.opcode == DATA_IN and takes
            self.watch.told(pdu.words[3], self.stat_sn, finishes)
        if not self.silent:
            self._out.append(pdu.encoded(*self.digests))

    def _window(self):
        top = (self.exp_cmd_sn + self.options.window - len(self.tasks) - 1) & 0xFFFFFFFF
        if after(top, self.max_cmd_sn):
            self.max_cmd_sn = top
        return self.max_cmd_sn

    def send_bytes(self, data):
        self._out.append(data)

    def hang_up(self, how=FIN):
        """Close behind all that is in the queue."""
        self._out.append(how)

    def flush(self):
        """Send the queue. Not under the target's lock: who does not read holds up nobody else's connection."""
        with self._sending:
            out, self._out = self._out, []
            for item in out:
                if item in (FIN, RST):
                    self.end(item)
                    raise Gone(f"closed by the target with {item}")
                try:
                    self._sock.sendall(item)
                except OSError as error:
                    raise Gone(str(error)) from None

    def end(self, how=FIN):
        """Close from any thread: the reading one wakes up and closes the socket."""
        try:
            if how == RST:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._sock.shutdown(socket.SHUT_RD if how == RST else socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already
        self._ended.set()

    def _close(self):
        self._ended.set()
        self._sock.close()

    # -- quirks, complaints -----------------------------------------------------------------------------------------

    def fires(self, at, subject, kind=None):
        """Let the quirks act that are armed for this point; whether one has dealt with it."""
        return self.target.fire(self, at, subject, kind)

    def complain(self, rule, text):
        self.target.complain(rule, text)
