# SPDX-License-Identifier: LGPL-2.1-only
"""Changes of open-iscsi's records for one login or discovery, noted before they are made and undone afterwards."""

import os
import stat
from typing import ContextManager, Dict, List, Optional, Sequence

from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host.deadline import NO_DEADLINE, Deadline
from relvmoiscsi.host.iscsi.iscsiadm import Credentials, Iscsiadm
from relvmoiscsi.host.iscsi.notes import Note, packed, unpacked
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.iscsi.records import (
    DATABASES,
    LOCK_WAIT_SECONDS,
    Settings,
    database_lock,
    discovery_record,
    lasting_directories,
    node_records,
    put_back,
    read_record,
    remove_record,
    settings_in,
    with_settings,
    write_record,
)
from relvmoiscsi.host.this_host import Host

#: Seconds that iscsid goes on trying a first login; it cannot be told to stop, so iscsiadm is given some more.
LOGIN_SECONDS = 15
REPLACEMENT_SECONDS = 144  #: how long I/O waits for a lost session, as SM has it
REPLACEMENT_SECONDS_MULTIPATH = 15

UNDO_LOCK_SECONDS = 3.0  #: for the lock of the database, which iscsiadm has for milliseconds: the note stays else

_USUAL_RESET_SECONDS = 30  # that open-iscsi gives each of the two resets
_MARKERS_FROM = 15  # as it gives an abort, which is less to do

_CHAP = ("authmethod", "username", "password", "username_in", "password_in")
NODE_CHAP = tuple("node.session.auth." + name for name in _CHAP)
DISCOVERY_CHAP = tuple("discovery.sendtargets.auth." + name for name in _CHAP)
_INITIATOR = "iface.initiatorname"
LOGIN_TIMEOUT = "node.conn[0].timeo.login_timeout"
_SCAN = "node.session.scan"  # unknown to old releases


class RecordChanges:
    """The records of a host, changed with a note and undone by it.

    Facts in the note: `path`, `before` and `mode` of a record that was there; `lasting` directories
    and `made`, the record, for one that was made; `names` of the settings changed; `locked`, `undone`.
    """

    def __init__(self, host: Host, iscsiadm: Iscsiadm, deadline: Deadline = NO_DEADLINE) -> None:
        self._host = host
        self._iscsiadm = iscsiadm
        self._deadline = deadline

    def for_node(self, note: Note, iqn: str, portal: Portal, settings: Settings) -> List[str]:
        """Have a node record with these settings; the arguments of iscsiadm that select it."""
        node = ["-m", "node", "-T", iqn, "-p", str(portal)]
        records = node_records(self._host, iqn, portal)
        self._note(note, records[0].path if records else None, "nodes")
        if not records:
            self._iscsiadm([*node, "-I", "default", "-o", "new"], "No node record could be made", "ISCSILogin")
            records = node_records(self._host, iqn, portal)
            note.add(made=self._made(records[0].path if records else None))
        self._set(note, records[0].path, settings)
        return node + records[0].selection

    def for_discovery(self, note: Note, portal: Portal, settings: Settings) -> List[str]:
        """Have a SendTargets record with these settings; the arguments of iscsiadm that select it."""
        discovery = ["-m", "discoverydb", "-t", "st", "-p", str(portal)]
        path = discovery_record(self._host, portal)
        self._note(note, path, "send_targets")
        if path is None:
            self._iscsiadm([*discovery, "-o", "new"], "No discovery record could be made", "ISCSIDiscovery")
            path = self._made(discovery_record(self._host, portal))
            note.add(made=path)
        self._set(note, path, settings)
        return discovery

    def undo(self, note: Note) -> None:
        """Put the record back or remove it; once done, doing it again changes nothing."""
        if note["undone"] or (note["path"] is None and note["lasting"] is None):
            return
        with self._locked(note, UNDO_LOCK_SECONDS):
            before = unpacked(note["before"])
            if before is not None:
                put_back(note["path"], before, note["mode"], note["names"] or [])
            else:
                path = note["made"] or self._made_before_the_kill(note)
                if path is not None:
                    remove_record(path, note["lasting"])
        note.add(undone=True)

    def _note(self, note: Note, path: Optional[str], kind: str) -> None:
        if path is None:
            note.add(lasting=lasting_directories(self._host, kind))
            return
        before = read_record(path)
        if before is None:
            raise _removed(path)
        note.add(path=path, before=packed(before), mode=stat.S_IMODE(os.stat(path).st_mode))

    def _set(self, note: Note, path: str, settings: Settings) -> None:
        text = read_record(path)
        if text is None:
            raise _removed(path)
        present = settings_in(text, [_SCAN])
        wanted = {name: value for name, value in settings.items() if name != _SCAN or present[name] is not None}
        changed = with_settings(text, wanted)
        note.add(names=sorted(wanted))
        with self._locked(note, LOCK_WAIT_SECONDS):
            write_record(path, changed)

    def _locked(self, note: Note, seconds: float) -> ContextManager[None]:
        """SM waits as long, as its lock on iscsiadm is held meanwhile."""
        return database_lock(
            self._host, self._deadline.within(seconds), changed=lambda held: note.add(durable=False, locked=held)
        )

    def _made(self, path: Optional[str]) -> str:
        if path is None:
            problem = "iscsiadm has made a record, and it is in none of the known databases: {}."
            names = [self._host.at(name) for name in DATABASES]
            raise NotFound(problem.format(", ".join(names)), "ISCSIQueryDaemon")
        return path

    def _made_before_the_kill(self, note: Note) -> Optional[str]:
        """The record that `-o new` may have made just before the note could say so."""
        if note["discovery"]:
            return discovery_record(self._host, note.portal)
        records = node_records(self._host, note["iqn"], note.portal)
        return next((record.path for record in records if record.tpgt is None), None)


def node_settings(
    chap: Optional[Credentials], incoming: Optional[Credentials], multipath: bool, initiator: Optional[str]
) -> Dict[str, Optional[str]]:
    """What a node record needs for our login. `initiator` is this host's name for it, None for that of iscsid."""
    replacement = REPLACEMENT_SECONDS_MULTIPATH if multipath else REPLACEMENT_SECONDS
    settings = chap_settings(NODE_CHAP, chap, incoming)
    settings.update(
        {
            "node.startup": "manual",
            "node.conn[0].startup": "manual",
            "node.session.nr_sessions": "1",
            "node.session.initial_login_retry_max": "1",
            LOGIN_TIMEOUT: str(LOGIN_SECONDS),
            "node.session.timeo.replacement_timeout": str(replacement),
            _SCAN: "auto",
        }
    )
    if initiator is not None:
        settings[_INITIATOR] = initiator
    return settings


def new_marker() -> List[int]:
    """Two time-outs that no other login is likely to have, in seconds: they tell the session that ours has made.

    open-iscsi hands both to the kernel, which shows them for as long as the session lasts; 2.0.873 to 2.1 do alike.
    Nothing changes them later, so SM keeps them with a session that becomes its own. They say how long the resets of a
    LUN and a target may take that does not answer, while the I/O of others waits: never as long as the usual 30.
    """
    return [_MARKERS_FROM + value % (_USUAL_RESET_SECONDS - _MARKERS_FROM) for value in os.urandom(2)]


def marker_settings(marker: Sequence[int]) -> Dict[str, Optional[str]]:
    """The marker as settings of a node record."""
    names = ("node.session.err_timeo.lu_reset_timeout", "node.session.err_timeo.tgt_reset_timeout")
    return {name: str(seconds) for name, seconds in zip(names, marker)}


def chap_settings(
    names: Sequence[str], chap: Optional[Credentials], incoming: Optional[Credentials]
) -> Dict[str, Optional[str]]:
    """All of them, so that nothing of what the record had before takes part."""
    values: List[Optional[str]] = ["None", None, None, None, None]
    if chap is not None:
        values[:3] = ["CHAP", chap.user, chap.password]
        if incoming is not None:
            values[3:] = [incoming.user, incoming.password]
    return dict(zip(names, values))


def _removed(path: str) -> Refused:
    return Refused(f"{path} has just been removed by another program. Try again.", "ISCSIQueryDaemon")
