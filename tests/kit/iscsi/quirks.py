# SPDX-License-Identifier: LGPL-2.1-only
"""What targets are known to do, and what they could: a table of names.

    quirk("busy", times=5, kinds=(scsi.WRITE_16,), code=0x28)     one of them, otherwise

A quirk acts at a point (acts.py has the points): after `skip` times, `times` times (None: always), at `kinds` alone.
`options` is what the target is like from the start (options.py), `luns` the LUNs that it has if a test names none.
A family of FAMILIES has what comes of it in its name: a test goes through all of a family.
"""

from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from . import acts, scsi
from .lun import Lun
from .options import Chap

ALL_BUT_INQUIRY = (0x00, scsi.READ_CAPACITY_10, scsi.SERVICE_ACTION_IN) + scsi.READS + scsi.WRITES + scsi.FLUSHES
USER, TARGET_USER = Chap("user", "secret of user"), Chap("target", "secret of target")
MUTUAL = {"chap": USER, "mutual": TARGET_USER}
TWO_PORTALS = {"addresses": ("127.0.0.1", "127.0.0.1")}


class Quirk(NamedTuple):
    """See the module."""

    about: str
    at: str = ""
    act: Optional[Callable[..., Any]] = None
    how: Dict[str, Any] = {}
    skip: int = 0
    times: Optional[int] = 1
    kinds: Tuple[Any, ...] = ()
    options: Dict[str, Any] = {}
    luns: Optional[Callable[[], Any]] = None
    name: str = ""


def quirk(name, **changes):
    """The quirk of this name, with other values; what is no field of Quirk goes to its act."""
    found = QUIRKS[name]._replace(name=name)
    fields = {key: value for key, value in changes.items() if key in Quirk._fields}
    how = dict(found.how, **{key: value for key, value in changes.items() if key not in Quirk._fields})
    return found._replace(how=how, **fields)


def _like(about, luns=None, **options):
    return Quirk(about, options=options, luns=luns)


def _login(about, act, how=None, **more):
    return Quirk(about, "login", act, how or {}, **more)


def _at(about, act, kinds=(), how=None, at="arrived", **more):
    """At a command of these kinds."""
    return Quirk(about, at, act, how or {}, kinds=kinds, **more)


def _sense(about, key, asc, ascq=0, kinds=ALL_BUT_INQUIRY, **more):
    return _at(about, acts.sense, kinds, {"key": key, "asc": asc, "ascq": ascq}, **more)


def _status(about, code, kinds=ALL_BUT_INQUIRY, **more):
    return _at(about, acts.status, kinds, {"code": code}, **more)


WORKED_WITH = {
    # redirections, and statuses that pass
    "redirect_0101": _login("temporarily moved: each login at a virtual address", acts.redirect),
    "redirect_0102": _login("permanently moved, with a portal group tag", acts.redirect,
                            {"status": "0102", "address": "{portal},{tpgt}"}),
    "redirect_after_security": _login("only after CHAP, in the operational stage", acts.redirect, kinds=(1,),
                                      options={"chap": USER}),
    "redirect_always": _login("each login at the first portal, to the last one", acts.redirect, times=None,
                              options=TWO_PORTALS),
    "redirect_to_ipv6": _login("brackets, port and tag", acts.redirect, {"address": "{portal},{tpgt}"}, times=None,
                               options={"addresses": ("127.0.0.1", "::1")}),
    "redirect_by_name": _login("a host name instead of an address", acts.redirect, {"address": "localhost:{port}"}),
    "redirect_nowhere": _login("class 1 without TargetAddress, once", acts.refuse, {"status": "0101"}),
    "brief_0301": _login("fails over: not operational at first", acts.refuse, {"status": "0301"}, times=2),
    "closes_at_once": Quirk("the first connection is closed before the login", "connected", acts.close),
    "speaks_http": Quirk("another server, once", "connected", acts.babble, {"data": b"HTTP/1.1 400 Bad\r\n\r\n" * 4}),
    # logins
    "brings_up_markers": _like("asks for markers by itself", brings_up=(("IFMarker", "Yes"), ("OFMarker", "Yes"))),
    "says_nothing_of_segments": _like("does not declare how much it takes: 8192", max_recv=None),
    "high_statsn": _like("StatSN goes over its end", stat_sn=0xFFFFFFFE),
    "chap": _like("one way", chap=USER),
    "chap_mutual": _like("both ways", **MUTUAL),
    "chap_sha256": _like("knows 7 alone", chap=USER, chap_hashes=("7",)),
    "chap_md5_alone": _like("refuses a list of algorithms", chap=USER, chap_list=0x0201),
    "chap_md5_alone_0200": _like("refuses a list of algorithms in another way", chap=USER, chap_list=0x0200),
    "discovery_without_chap": _like("no CHAP for the discovery, and refuses it there", chap=USER, discovery_chap=False),
    # flow
    "window_of_1": _like("one command at once", window=1),
    "answers_in_reverse": _like("commands that come together are answered last first", answers_late=True),
    "no_immediate_data": _like("ImmediateData=No", keys={"ImmediateData": "No"}),
    "small_bursts": _like("bursts of 1024", keys={"MaxBurstLength": 1024, "FirstBurstLength": 512}),
    "small_segments": _like("takes 512 bytes at once", max_recv=512),
    "odd_segments": _like("takes 513 bytes at once, which is no block", max_recv=513),
    "small_r2t": _like("asks for 700 bytes at once", r2t_bytes=700, keys={"ImmediateData": "No"}),
    "small_data_in": _like("sends 100 bytes at once", data_in_bytes=100),
    "status_apart": _like("SCSI responses of their own for reads", status_apart=True),
    "digests": _like("insists on both digests", header_digest=("CRC32C",), data_digest=("CRC32C",)),
    "header_digest": _like("insists on the header's", header_digest=("CRC32C",)),
    "pings": Quirk("a NOP-In of a LUN after each command", "done", acts.ping,
                   {"lun": bytes([0, 7] + [0] * 6), "data": b"are you there?"}, times=None),
    # LUNs that are not ready
    "attentions": _like("four in a row", attentions=tuple((None, 0x29, ascq) for ascq in (0, 1, 2, 7))),
    "attention_at_write": _sense("one between the reads and the writes", scsi.ATTENTION, 0x2A, 0x09, kinds=scsi.WRITES),
    "busy": _status("BUSY", scsi.BUSY, times=3),
    "busy_at_inquiry": _status("at the first INQUIRY", scsi.BUSY, (scsi.INQUIRY, scsi.REPORT_LUNS), times=2),
    "becoming_ready": _sense("02/04/01", scsi.NOT_READY, 0x04, 0x01, times=3),
    "aborted": _sense("0B/00 once", scsi.ABORTED, 0x00),
    # LUNs
    "no_capacity_16": _like("READ CAPACITY(16) refused: before SBC-3", refuses=(scsi.SERVICE_ACTION_IN,)),
    "no_flush": _like("SYNCHRONIZE CACHE refused 5/20: writes through", refuses=scsi.FLUSHES),
    "no_page_83": _like("only a serial number", luns=lambda: [Lun(0, naa="")]),
    "lun_300": _like("flat addressing", luns=lambda: [Lun(300)]),
    "odd_lun": _like("an address of no known kind", luns=lambda: [Lun(1, address=bytes.fromhex("d201000500000009"))]),
    "4kn": _like("blocks of 4096", luns=lambda: [Lun(0, block_size=4096)]),
    "large_lun": _like("beyond READ CAPACITY(10)", luns=lambda: [Lun(0, 3 << 40)]),
    # what comes beside the work
    "async_0": Quirk("a SCSI event", "done", acts.tell, {"event": 0}, skip=2),
    "never_answers_logout": Quirk("silence at the logout", "logout", acts.silence, times=None),
    "late_write_elsewhere": _at("a late write, and the next login lands in another portal group", acts.keep_write,
                                scsi.WRITES, at="command", options=TWO_PORTALS),
}  # fmt: skip

#: the session is lost once, or given up for what no target may send, and another one ends the work
OVERCOME = {
    "resets": _at("reset in the middle", acts.reset, skip=6),
    "resets_after_write": _at("a write is carried out, its answer never comes", acts.half, scsi.WRITES, {"size": 0},
                              at="answer"),
    "half_the_data": _at("a header, half of the data, and a reset", acts.half, scsi.READS, {"size": 300}, at="answer"),
    "resets_at_r2t": _at("reset instead of an R2T", acts.reset, at="r2t", options={"keys": {"ImmediateData": "No"}}),
    "async_1": Quirk("asks for a logout", "done", acts.tell, {"event": 1}, skip=5),
    "async_2": _at("drops the connection", acts.tell, how={"event": 2, "then": "FIN"}, skip=6),
    "rejects": _at("refuses a PDU", acts.reject, skip=6),
    "target_failure": _at("SCSI response 01", acts.fail_response, skip=6),
    "power_cut": _at("forgets what was not flushed", acts.power_cut, scsi.FLUSHES),
    "power_cut_after_write": _at("forgets a write that was answered", acts.power_cut, scsi.WRITES, at="done"),
    "late_write": _at("a dead session's write is carried out later", acts.keep_write, scsi.WRITES, at="command"),
    "data_in_repeated": _at("a piece comes twice", acts.repeat_data_in, scsi.READS, at="answer"),
    "wrong_data_digest": _at("a data digest that is wrong", acts.spoil, scsi.READS, {"part": "data"}, at="answer",
                             options={"header_digest": ("CRC32C",), "data_digest": ("CRC32C",)}),
    "garbage": _at("bytes that are no PDU", acts.babble, how={"data": bytes(range(256))}, skip=6),
}  # fmt: skip
#: the same; each takes seconds
SILENCES = {
    "silent_at_command": _at("no answer to anything from here on", acts.silence, skip=6),
    "silent_at_write": _at("no answer to a write", acts.silence, scsi.WRITES),
    "silent_in_data": _at("half of the data, and silence", acts.half, scsi.READS, {"size": 300, "then": ""},
                          at="answer"),
    "deaf": _at("reads nothing more", acts.deafness, skip=6),
    "one_never_answered": _at("pings are answered, one command never is", acts.never_answer, skip=6),
}  # fmt: skip

#: no session comes of these, or none that writes. A status is what RFC 7143, 11.13.5, calls it
REFUSED = {
    "silent_at_once": Quirk("accepts, and says nothing", "connected", acts.silence, times=None),
    "redirect_in_circles": _login("for ever to itself", acts.redirect, times=None),
    "redirect_to_nonsense": _login("an address that is none", acts.redirect, {"address": "[::1:port"}),
    "redirect_to_closed": _login("to where nobody listens", acts.redirect, {"address": "127.0.0.1:1"}, times=None),
    **{f"status_{code}": _login(about, acts.refuse, {"status": code}, times=None) for code, about in {
        "0200": "initiator error", "0201": "authentication failure", "0202": "authorization failure",
        "0203": "not found", "0204": "target removed", "0205": "unsupported version", "0206": "too many connections",
        "0209": "session type not supported", "0300": "target error", "0301": "service unavailable",
        "0302": "out of resources", "0400": "a class that the RFC does not have",
    }.items()},
    "closes_in_login": _login("closes instead of an answer, always", acts.close, times=None),
    "silent_in_login": _login("does not answer the login", acts.silence, times=None),
    "cheats_wrong": _like("a wrong proof", cheats="wrong", **MUTUAL),
    "alua_standby": _sense("02/04/0B: this port is on standby", scsi.NOT_READY, 0x04, 0x0B, times=None),
    "busy_for_ever": _status("BUSY for good", scsi.BUSY, times=None),
    "reserved": _status("RESERVATION CONFLICT", scsi.RESERVATION_CONFLICT, times=None),
    "data_protect": _like("7/27 for each write", luns=lambda: [Lun(0, read_only=True)]),
    "lun_gone": _sense("5/25 for all", scsi.ILLEGAL, 0x25, times=None),
    "hardware_error": _sense("4/44/00", scsi.HARDWARE, 0x44, times=None),
    "good_with_residual": _at("GOOD, fewer data, residual: zeros must never count as data", acts.fewer_data, scsi.READS,
                              at="result", times=None),
    "short_capacity": _at("READ CAPACITY with too few bytes", acts.fewer_data, (scsi.SERVICE_ACTION_IN,),
                          {"missing": 28}, at="result", times=None),
}  # fmt: skip
#: a write fails, or what comes back after a loss is not what it was: nothing may be written to it
AFTER_A_WRITE = {
    "write_protected": _sense("7/27/02", scsi.PROTECT, 0x27, 0x02, kinds=scsi.WRITES, times=None),
    "medium_error_write": _sense("3/0C/00", scsi.MEDIUM, 0x0C, kinds=scsi.WRITES, times=None),
    "other_lun": _at("another LUN in its place after a reconnection", acts.other_lun, scsi.WRITES),
    "other_lun_with_attention": _at("the same, told by 3F/0E alone", acts.other_lun_with_attention, scsi.WRITES),
    "unmapped_after_loss": _at("gone after a reconnection", acts.unmap, scsi.WRITES),
}
_MANY = tuple(f"iqn.2026-01.test.hostile:volume-{number:04d}" for number in range(900))
DISCOVERIES = {
    "discovery_of_900": _like("900 targets: C=1", other_targets=_MANY),
    "discovery_silent": Quirk("silence at SendTargets", "text", acts.silence, times=None),
    "discovery_closes": Quirk("closes at SendTargets", "text", acts.close, times=None),
}

FAMILIES = {"worked with": WORKED_WITH, "overcome": OVERCOME, "silences": SILENCES, "refused": REFUSED,
            "after a write": AFTER_A_WRITE, "discoveries": DISCOVERIES}  # fmt: skip
QUIRKS = {name: item for family in FAMILIES.values() for name, item in family.items()}
