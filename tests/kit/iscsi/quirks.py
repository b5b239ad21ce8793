# SPDX-License-Identifier: LGPL-2.1-only
"""What targets are known to do, and what they could: a table of names.

    quirk("busy", times=5, kinds=(scsi.WRITE_16,), code=0x28)     one of them, otherwise

A quirk acts at a point (acts.py has the points): after `skip` times, `times` times (None: always), at `kinds` alone.
`options` is what the target is like from the start (options.py), `luns` the LUNs that it has if a test names none.
Where a quirk is of one of several kinds, its family is in FAMILIES: a test goes through all of a family.
"""

from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from . import acts, scsi
from .lun import Lun
from .options import Chap

RESPONSE, NOP_IN = 0x21, 0x20
ALL_BUT_INQUIRY = (0x00, scsi.READ_CAPACITY_10, scsi.SERVICE_ACTION_IN) + scsi.READS + scsi.WRITES + scsi.FLUSHES
USER, TARGET_USER = Chap("user", "secret of user"), Chap("target", "secret of target")
MUTUAL = {"chap": USER, "mutual": TARGET_USER}


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


def _login(about, act, how=None, stage=None, **more):
    return Quirk(about, "login", act, how or {}, kinds=() if stage is None else (stage,), **more)


def _sense(about, key, asc, ascq=0, kinds=ALL_BUT_INQUIRY, **more):
    return Quirk(about, "arrived", acts.sense, {"key": key, "asc": asc, "ascq": ascq}, kinds=kinds, **more)


def _sends(about, kind, act=acts.change, **how):
    return Quirk(about, "sends", act, how, kinds=(kind,))


def _answer(about, act, kinds=scsi.READS, options=None, **how):
    return Quirk(about, "answer", act, how, kinds=kinds, options=options or {})


CONNECTIONS = {
    "closes_at_once": Quirk("the connection is closed before the login", "connected", acts.close),
    "resets_at_once": Quirk("the connection is reset before the login", "connected", acts.reset),
    "silent_at_once": Quirk("accepts, and says nothing", "connected", acts.silence, times=None),
    "speaks_http": Quirk("another server", "connected", acts.babble, {"data": b"HTTP/1.1 400 Bad Request\r\n" * 4}),
    "speaks_little": Quirk("half a header, and silence", "connected", acts.babble, {"data": bytes(20)}),
}

REDIRECTS = {
    "redirect_0101": _login("temporarily moved: each login at a virtual address", acts.redirect),
    "redirect_0102": _login("permanently moved", acts.redirect, {"status": "0102"}),
    "redirect_0100": _login("class 1 without a detail", acts.redirect, {"status": "0100"}),
    "redirect_with_tag": _login("a portal group tag after the address", acts.redirect, {"address": "{portal},{tpgt}"}),
    "redirect_after_security": _login("only after CHAP, in the operational stage", acts.redirect, stage=1),
    "redirect_in_chap": _login("at the second request of the security stage", acts.redirect, stage=0, skip=1,
                               options={"chap": USER}),
    "redirect_always": _login("each login at the first portal, to the last one", acts.redirect, times=None,
                              options={"addresses": ("127.0.0.1", "127.0.0.1")}),
    "redirect_to_ipv6": _login("an address in brackets", acts.redirect, times=None,
                               options={"addresses": ("127.0.0.1", "::1")}),
    "redirect_to_ipv6_with_tag": _login("brackets, port and tag", acts.redirect, {"address": "{portal},{tpgt}"},
                                        times=None, options={"addresses": ("127.0.0.1", "::1")}),
    "redirect_by_name": _login("a host name instead of an address", acts.redirect, {"address": "localhost:{port}"}),
}  # fmt: skip
BAD_REDIRECTS = {
    "redirect_in_circles": _login("for ever to itself", acts.redirect, times=None),
    "redirect_nowhere": _login("class 1 without TargetAddress", acts.refuse, {"status": "0101"}),
    "redirect_to_nonsense": _login("an address that is none", acts.redirect, {"address": "[::1:port"}),
    "redirect_to_port_0": _login("a port that is none", acts.redirect, {"address": "{host}:0"}),
    "redirect_to_closed": _login("to where nobody listens", acts.redirect, {"address": "127.0.0.1:1"}, times=None),
}

#: a login that gets this status, for good: what it is called in RFC 7143, 11.13.5
STATUSES = {
    f"status_{code}": _login(about, acts.refuse, {"status": code}, times=None)
    for code, about in {
        "0200": "initiator error", "0201": "authentication failure", "0202": "authorization failure",
        "0203": "not found", "0204": "target removed", "0205": "unsupported version", "0206": "too many connections",
        "0207": "missing parameter", "0208": "cannot include in session", "0209": "session type not supported",
        "020a": "session does not exist", "020b": "invalid during login", "0300": "target error",
        "0301": "service unavailable", "0302": "out of resources", "0400": "a class that the RFC does not have",
    }.items()
}  # fmt: skip
BRIEF_STATUSES = {
    "brief_0301": _login("fails over: not operational at first", acts.refuse, {"status": "0301"}, times=2),
    "brief_0302": _login("out of resources at first", acts.refuse, {"status": "0302"}, times=2),
}

LOGINS = {
    "text_in_parts_of_1": _like("answers with C=1, cut after each byte", text_part=1),
    "text_in_parts_of_7": _like("answers with C=1, cut within names and values", text_part=7),
    "text_in_parts_of_40": _like("answers with C=1, cut anywhere", text_part=40),
    "hesitates": _like("is asked thrice before it goes on to a stage", hesitates=3),
    "brings_up_markers": _like("asks for markers by itself", brings_up=(("IFMarker", "Yes"), ("OFMarker", "Yes"))),
    "brings_up_unknown": _like("asks what nobody knows", brings_up=(("X-com.example.Speed", "fast"),)),
    "declares_alias": _like("declares: wants no answer", brings_up=(("TargetAlias", "a b"), ("TargetAddress", "x"))),
    "says_nothing_of_segments": _like("does not declare how much it takes: 8192", max_recv=None),
    "alias_in_security": Quirk("a declaration in the security stage", "negotiate", acts.put_key,
                               {"name": "TargetAlias", "value": "array"}, kinds=(0,)),
    "segments_in_security": Quirk("operational declarations in the security stage", "negotiate", acts.put_key,
                                  {"name": "MaxRecvDataSegmentLength", "value": "262144"}, kinds=(0,),
                                  options={"max_recv": None}),
    "does_not_understand": _like("NotUnderstood for a key of the RFC", answers={"ImmediateData": "NotUnderstood"}),
    "finds_irrelevant": _like("Irrelevant for a key that is not", answers={"MaxBurstLength": "Irrelevant"}),
    "rejects_a_key": _like("Reject for a key", answers={"FirstBurstLength": "Reject"}),
    "leaves_keys_out": _like("does not answer keys at all", answers={"MaxConnections": None, "InitialR2T": None}),
    "high_statsn": _like("StatSN goes over its end", stat_sn=0xFFFFFFFE),
}  # fmt: skip
#: no session may come of these
BAD_LOGINS = {
    "closes_in_login": _login("closes instead of an answer, always", acts.close, times=None),
    "silent_in_login": _login("does not answer the login", acts.silence, times=None),
    "silent_in_second_stage": _login("does not answer the operational stage", acts.silence, stage=1, times=None),
    "never_goes_on": _like("stays in the first stage for ever", hesitates=1 << 30),
    "endless_text": _like("an answer of many megabytes in parts", brings_up=tuple((f"X-{n}", "x" * 200)
                          for n in range(60000))),
    "burst_of_0": _like("a value that the key may not have", answers={"MaxBurstLength": "0"}),
    "burst_beyond_offer": _like("more than was offered", answers={"MaxBurstLength": "16777215"}),
    "level_2": _like("an error recovery level beyond the offer", answers={"ErrorRecoveryLevel": "2"}),
}  # fmt: skip

CHAPS = {
    "chap": _like("one way", chap=USER),
    "chap_mutual": _like("both ways", **MUTUAL),
    "chap_md5_alone": _like("takes no list, only 5: LIO before Linux 3.15", chap=USER, chap_hashes=("5",),
                            chap_whole_list=True),
    "chap_sha1": _like("knows 6 alone", chap=USER, chap_hashes=("6",)),
    "chap_sha256": _like("knows 7 alone", chap=USER, chap_hashes=("7",)),
    "chap_sha3": _like("knows 8 alone", chap=USER, chap_hashes=("8",)),
    "chap_sha256_by_0200": _like("refuses 5 with a status", chap=USER, chap_hashes=("7",), chap_no_hash="0200"),
    "chap_sha256_by_close": _like("closes at 5", chap=USER, chap_hashes=("7",), chap_no_hash="close"),
    "challenge_of_1": _like("a challenge of one byte", chap=USER, challenge_bytes=1),
    "challenge_of_1024": _like("as long as may be", chap=USER, challenge_bytes=1024),
    "challenge_in_base64": _like("base64", challenge_form="base64", **MUTUAL),
    "challenge_in_capitals": _like("0X and capitals", challenge_form="HEX", **MUTUAL),
    "identifier_in_hex": _like("the identifier in hex", chap=USER, identifier_form="hex"),
    "chap_in_parts": _like("CHAP's answers cut within keys", text_part=11, **MUTUAL),
    "discovery_chap_alone": _like("CHAP for the discovery", chap=USER, chap_no_offer="Reject"),
    "discovery_without_chap": _like("no CHAP for the discovery, and refuses it there", chap=USER, discovery_chap=False),
}  # fmt: skip
#: the initiator has offered CHAP with a proof wanted; all are refused
CHEATS = {
    f"cheats_{name.lower().replace(' ', '_')}": _like(about, cheats=name, **MUTUAL)
    for name, about in {
        "None": "chooses no authentication where CHAP alone was offered", "wrong": "a wrong proof",
        "none": "no proof at all", "no response": "a name without a response", "no name": "a response without a name",
        "name": "a right response of another user", "reflected": "asks what it was asked, and gives that answer back",
        "challenge": "asks a second time, with our own challenge",
    }.items() if name != "None"
}  # fmt: skip
CHEATS["cheats_method_none"] = _like("AuthMethod=None though CHAP alone was offered", cheats="None", **MUTUAL)
NO_CHAP = {
    "chap_wanted_0201": _like("0201 without CHAP", chap=USER),
    "chap_wanted_close": _like("LIO: closes at who comes without CHAP", chap=USER, chap_no_offer="close"),
    "chap_wanted_reject": _like("AuthMethod=Reject", chap=USER, chap_no_offer="Reject"),
}

FLOW = {
    "window_of_1": _like("one command at once", window=1),
    "window_of_2": _like("two commands at once", window=2),
    "closed_window": Quirk("closes the window, opens it by a NOP-In after a while", "done", acts.shut_window, skip=3,
                           options={"opens_after": 0.05, "window": 1}),
    "window_goes_back": Quirk("an older MaxCmdSN", "sends", acts.older_window, kinds=(RESPONSE, 0x25, NOP_IN),
                              times=None),
    "answers_in_reverse": _like("commands that come together are answered last first", answers_late=True),
    "no_immediate_data": _like("ImmediateData=No", keys={"ImmediateData": "No"}),
    "wants_unsolicited": _like("answers InitialR2T=No, where the result is Yes", answers={"InitialR2T": "No"}),
    "small_bursts": _like("bursts of 1024", keys={"MaxBurstLength": 1024, "FirstBurstLength": 512}),
    "small_first_burst": _like("first bursts of 512", keys={"FirstBurstLength": 512}),
    "small_segments": _like("takes 512 bytes at once", max_recv=512),
    "odd_segments": _like("takes 513 bytes at once, which is no block", max_recv=513),
    "small_r2t": _like("asks for 700 bytes at once", r2t_bytes=700, keys={"ImmediateData": "No"}),
    "small_data_in": _like("sends 100 bytes at once", data_in_bytes=100),
    "status_apart": _like("SCSI responses of their own for reads", status_apart=True),
    "digests": _like("insists on both digests", header_digest=("CRC32C",), data_digest=("CRC32C",)),
    "header_digest": _like("insists on the header's", header_digest=("CRC32C",)),
    "data_digest": _like("insists on the data's", data_digest=("CRC32C",)),
    "pings": Quirk("a NOP-In after each command", "done", acts.ping, times=None),
    "pings_of_a_lun": Quirk("with a LUN and data in it", "done", acts.ping, {"lun": bytes([0, 7] + [0] * 6),
                            "data": b"are you there?"}, times=None),
    "pings_of_lun_0": Quirk("of a LUN that is 0 while commands go to others", "arrived", acts.ping, times=None),
    "many_pings": Quirk("ten at once, before the answer", "arrived", acts.ping, {"times": 10}, times=3),
    "bare_nop_in": Quirk("a NOP-In that wants no answer", "done", acts.bare_nop_in, times=None),
}  # fmt: skip

UNREADY = {
    "attention_power_on": _like("29/00 after each login", attentions=((None, 0x29, 0x00),)),
    "attention_nexus_loss": _like("29/07 after each login", attentions=((None, 0x29, 0x07),)),
    "attention_luns_changed": _like("3F/0E after a mapping", attentions=((None, 0x3F, 0x0E),)),
    "attention_capacity": _like("2A/09 after a change of size", attentions=((None, 0x2A, 0x09),)),
    "attentions": _like("four in a row", attentions=tuple((None, 0x29, ascq) for ascq in (0, 1, 2, 7))),
    "attention_at_write": _sense("one between the reads and the writes", scsi.ATTENTION, 0x2A, 0x09, kinds=scsi.WRITES),
    "attention_at_read": _sense("one at a read", scsi.ATTENTION, 0x3F, 0x0E, kinds=scsi.READS),
    "attention_in_descriptors": _like("sense with descriptors", attentions=((None, 0x29, 0),), descriptor_sense=True),
    "busy": Quirk("BUSY", "arrived", acts.status, {"code": scsi.BUSY}, times=3, kinds=ALL_BUT_INQUIRY),
    "task_set_full": Quirk("TASK SET FULL", "arrived", acts.status, {"code": scsi.TASK_SET_FULL}, times=3,
                           kinds=ALL_BUT_INQUIRY),
    "aca_active": Quirk("ACA", "arrived", acts.status, {"code": scsi.ACA_ACTIVE}, times=2, kinds=ALL_BUT_INQUIRY),
    "busy_at_inquiry": Quirk("BUSY at the first INQUIRY", "arrived", acts.status, {"code": scsi.BUSY}, times=2,
                             kinds=(scsi.INQUIRY, scsi.REPORT_LUNS)),
    "becoming_ready": _sense("02/04/01", scsi.NOT_READY, 0x04, 0x01, times=3),
    "alua_transition": _sense("02/04/0A", scsi.NOT_READY, 0x04, 0x0A, times=3),
    "aborted": _sense("0B/00 once", scsi.ABORTED, 0x00),
    "not_ready_in_descriptors": _sense("02/04/01 with descriptors", scsi.NOT_READY, 0x04, 0x01, times=2,
                                       options={"descriptor_sense": True}),
}  # fmt: skip
STANDBY = {
    "alua_standby": _sense("02/04/0B: this port is on standby", scsi.NOT_READY, 0x04, 0x0B, times=None),
    "alua_unavailable": _sense("02/04/0C", scsi.NOT_READY, 0x04, 0x0C, times=None),
}
#: a command fails for good
REFUSALS = {
    "attention_for_ever": _sense("a unit attention that does not end", scsi.ATTENTION, 0x29, 0, times=None),
    "busy_for_ever": Quirk("BUSY for good", "arrived", acts.status, {"code": scsi.BUSY}, times=None,
                           kinds=ALL_BUT_INQUIRY),
    "reserved": Quirk("RESERVATION CONFLICT", "arrived", acts.status, {"code": scsi.RESERVATION_CONFLICT}, times=None,
                      kinds=ALL_BUT_INQUIRY),
    "reserved_for_writes": Quirk("a reservation that lets others read", "arrived", acts.status,
                                 {"code": scsi.RESERVATION_CONFLICT}, times=None, kinds=scsi.WRITES),
    "data_protect": _like("7/27 for each write", luns=lambda: [Lun(0, read_only=True)]),
    "write_protected": _sense("7/27/02", scsi.PROTECT, 0x27, 0x02, kinds=scsi.WRITES, times=None),
    "lun_gone": _sense("5/25 for all", scsi.ILLEGAL, 0x25, times=None),
    "lun_unmapped": _sense("5/25 in the middle", scsi.ILLEGAL, 0x25, skip=4, times=None),
    "medium_error_read": _sense("3/11/00", scsi.MEDIUM, 0x11, kinds=scsi.READS, times=None),
    "medium_error_write": _sense("3/0C/00", scsi.MEDIUM, 0x0C, kinds=scsi.WRITES, times=None),
    "medium_error_flush": _sense("3/0C/00 at the flush", scsi.MEDIUM, 0x0C, kinds=scsi.FLUSHES, times=None),
    "hardware_error": _sense("4/44/00", scsi.HARDWARE, 0x44, times=None),
    "no_medium": _sense("2/3A/00", scsi.NOT_READY, 0x3A, times=None),
    "out_of_space": _sense("7/27/07: a thin pool is full", scsi.PROTECT, 0x27, 0x07, kinds=scsi.WRITES, times=None),
    "check_without_sense": Quirk("CHECK CONDITION without sense data", "arrived", acts.status, {"code": 2}, times=None,
                                 kinds=ALL_BUT_INQUIRY),
    "unknown_status": Quirk("a SCSI status that nobody knows", "arrived", acts.status, {"code": 0x3E}, times=None,
                            kinds=ALL_BUT_INQUIRY),
}  # fmt: skip
#: zeros must never count as data
SHORT = {
    "good_with_residual": Quirk("GOOD, fewer data, residual", "result", acts.fewer_data, kinds=scsi.READS, times=None),
    "residual_of_write": Quirk("GOOD with a residual for a write", "result", acts.says_residual, kinds=scsi.WRITES,
                               times=None),
    "short_capacity": Quirk("READ CAPACITY with too few bytes", "result", acts.fewer_data, {"missing": 28},
                            kinds=(scsi.SERVICE_ACTION_IN,), times=None),
}  # fmt: skip
TOLERATED = {
    "no_capacity_16": _like("READ CAPACITY(16) refused: before SBC-3", refuses=(scsi.SERVICE_ACTION_IN,)),
    "no_flush": _like("SYNCHRONIZE CACHE refused 5/20: writes through", refuses=scsi.FLUSHES),
    "no_write_16": _like("knows the commands of 10 bytes alone", refuses=(scsi.WRITE_16, scsi.READ_16,
                         scsi.SYNCHRONIZE_CACHE_16)),
    "no_page_83": _like("only a serial number", luns=lambda: [Lun(0, naa="")]),
    "never_answers_logout": Quirk("silence at the logout", "logout", acts.silence, times=None),
    "closes_at_logout": Quirk("closes instead of an answer to the logout", "logout", acts.close, times=None),
    "resets_at_logout": Quirk("resets at the logout", "logout", acts.reset, times=None),
    "async_0": Quirk("a SCSI event", "done", acts.tell, {"event": 0}, skip=2),
    "async_255": Quirk("an event of the vendor's", "done", acts.tell, {"event": 255}, skip=2),
}  # fmt: skip
LUNS = {
    "lun_300": _like("flat addressing", luns=lambda: [Lun(300)]),
    "flat_lun_5": _like("flat addressing below 256", luns=lambda: [Lun(5, address=bytes([0x40, 5] + [0] * 6))]),
    "odd_lun": _like("8 bytes of a kind that nobody takes apart",
                     luns=lambda: [Lun(1, address=bytes([0xD2, 1, 0, 5, 0, 0, 0, 9]))]),
    "thousands_of_luns": _like("one IQN for all", luns=lambda: [Lun(number) for number in range(4000)]),
    "4kn": _like("blocks of 4096", luns=lambda: [Lun(0, block_size=4096)]),
    "512e": _like("512 over 4096", luns=lambda: [Lun(0, physical_block_size=4096)]),
    "no_luns": _like("maps nothing", luns=lambda: []),
    "large_lun": _like("beyond READ CAPACITY(10)", luns=lambda: [Lun(0, 3 << 40)]),
    "gaps": _like("LUNs 0, 3, 255, 256, 16383", luns=lambda: [Lun(number) for number in (0, 3, 255, 256, 16383)]),
}  # fmt: skip
_MANY = tuple(f"iqn.2026-01.test.hostile:volume-{number:04d}" for number in range(900))
DISCOVERIES = {
    "discovery_of_900": _like("900 targets, F=0 and a transfer tag", other_targets=_MANY, discovery_part=8000),
    "discovery_of_900_by_c": _like("900 targets, C=1", other_targets=_MANY, text_part=8000),
    "discovery_in_bytes": _like("cut after each byte", text_part=1),
    "unlisted": _like("the target is there, the discovery does not say so", unlisted=True),
    "discovery_silent": Quirk("silence at SendTargets", "text", acts.silence, times=None),
    "discovery_closes": Quirk("closes at SendTargets", "text", acts.close, times=None),
}

#: the connection, and so the session, is lost once; skip= says when
LOSSES = {
    "resets": Quirk("reset in the middle", "arrived", acts.reset, skip=6),
    "closes": Quirk("closed in the middle", "arrived", acts.close, skip=6),
    "resets_after_write": Quirk("a write is carried out, its answer never comes", "answer", acts.half, {"size": 0},
                                kinds=scsi.WRITES),
    "half_an_answer": Quirk("20 bytes of a header, and a reset", "answer", acts.half, {"size": 20}, skip=6),
    "half_the_data": Quirk("a header, half of the data, and a reset", "answer", acts.half, {"size": 300},
                           kinds=scsi.READS),
    "resets_at_r2t": Quirk("reset instead of an R2T", "r2t", acts.reset, options={"keys": {"ImmediateData": "No"}}),
    "resets_at_flush": Quirk("reset at a flush", "arrived", acts.reset, kinds=scsi.FLUSHES),
    "async_1": Quirk("asks for a logout", "done", acts.tell, {"event": 1}, skip=5),
    "async_2": Quirk("drops the connection", "arrived", acts.tell, {"event": 2, "then": "FIN"}, skip=6),
    "async_3": Quirk("drops the session", "arrived", acts.tell, {"event": 3, "then": "FIN"}, skip=6),
    "async_4": Quirk("wants to negotiate anew", "done", acts.tell, {"event": 4}, skip=5),
    "rejects": Quirk("refuses a PDU", "arrived", acts.reject, skip=6),
    "target_failure": Quirk("SCSI response 01", "arrived", acts.fail_response, skip=6),
    "power_cut": Quirk("forgets what was not flushed", "arrived", acts.power_cut, kinds=scsi.FLUSHES),
    "power_cut_after_write": Quirk("forgets a write that was answered", "done", acts.power_cut, kinds=scsi.WRITES),
    "late_write": Quirk("a dead session's write is carried out later", "command", acts.keep_write, kinds=scsi.WRITES),
}  # fmt: skip
SILENCES = {
    "silent_at_command": Quirk("no answer to anything from here on", "arrived", acts.silence, skip=6),
    "silent_at_read": Quirk("no answer to a read", "arrived", acts.silence, kinds=scsi.READS),
    "silent_at_write": Quirk("no answer to a write", "arrived", acts.silence, kinds=scsi.WRITES),
    "silent_at_r2t": Quirk("no R2T", "r2t", acts.silence, options={"keys": {"ImmediateData": "No"}}),
    "silent_at_flush": Quirk("no answer to a flush", "arrived", acts.silence, kinds=scsi.FLUSHES),
    "silent_in_data": Quirk("half of the data, and silence", "answer", acts.half, {"size": 300, "then": ""},
                            kinds=scsi.READS),
    "deaf": Quirk("reads nothing more", "arrived", acts.deafness, skip=6),
    "one_never_answered": Quirk("pings are answered, one command never is", "arrived", acts.never_answer, skip=6),
}  # fmt: skip
#: what no target may send; the connection is given up, and the work is done on another one
VIOLATIONS = {
    "data_in_repeated": _answer("a piece comes twice", acts.repeat_data_in),
    "unknown_opcode": _sends("an opcode that the RFC does not have", RESPONSE, opcode=0x2B),
    "wrong_header_digest": Quirk("a header digest that is wrong", "answer", acts.spoil, {"part": "header"}, skip=6,
                                 options={"header_digest": ("CRC32C",), "data_digest": ("CRC32C",)}),
    "wrong_data_digest": Quirk("a data digest that is wrong", "answer", acts.spoil, {"part": "data"}, kinds=scsi.READS,
                               options={"header_digest": ("CRC32C",), "data_digest": ("CRC32C",)}),
    "garbage": Quirk("bytes that are no PDU", "arrived", acts.garbage, skip=6),
    "segment_of_16_mib": Quirk("a header that announces 16 MiB", "arrived", acts.babble,
                               {"data": b"\x25\0\0\0\0\xff\xff\xff" + bytes(40)}, skip=6),
}  # fmt: skip
#: what comes back after a loss is not what it was: nothing may be written to it
CHANGES = {
    "other_lun": Quirk("another LUN in its place after a reconnection", "arrived", acts.other_lun, kinds=scsi.WRITES),
    "other_size": Quirk("grown after a reconnection", "arrived", acts.other_size, kinds=scsi.WRITES),
    "smaller": Quirk("shrunk after a reconnection", "arrived", acts.other_size, {"factor": 0.5}, kinds=scsi.WRITES),
    "unmapped_after_loss": Quirk("gone after a reconnection", "arrived", acts.unmap, kinds=scsi.WRITES),
    "other_lun_with_attention": Quirk(
        "another LUN in its place, told by 3F/0E alone", "arrived", acts.other_lun_with_attention, kinds=scsi.WRITES
    ),
}
SESSIONS = {
    "one_session": _like("a second session is refused with 0302", max_sessions=1),
    "one_session_0206": _like("a second session is refused with 0206", max_sessions=1, too_many="0206"),
    "newest_session": _like("a second session ends the first", max_sessions=1, too_many="older"),
    "two_portal_groups": _like("two portals, each a group of its own", addresses=("127.0.0.1", "127.0.0.1")),
    "late_write_elsewhere": Quirk("a late write, and the next login lands in another portal group", "command",
                                  acts.keep_write, kinds=scsi.WRITES,
                                  options={"addresses": ("127.0.0.1", "127.0.0.1")}),
}  # fmt: skip

FAMILIES = {
    "connections": CONNECTIONS, "redirects": REDIRECTS, "bad redirects": BAD_REDIRECTS, "statuses": STATUSES,
    "brief statuses": BRIEF_STATUSES, "logins": LOGINS, "bad logins": BAD_LOGINS, "chaps": CHAPS, "cheats": CHEATS,
    "no chap": NO_CHAP, "flow": FLOW, "unready": UNREADY, "standby": STANDBY, "refusals": REFUSALS, "short": SHORT,
    "tolerated": TOLERATED, "luns": LUNS, "discoveries": DISCOVERIES, "losses": LOSSES, "silences": SILENCES,
    "violations": VIOLATIONS, "changes": CHANGES, "sessions": SESSIONS,
}  # fmt: skip
QUIRKS = {name: item for family in FAMILIES.values() for name, item in family.items()}

assert len(QUIRKS) == sum(len(family) for family in FAMILIES.values()), "two quirks have one name"
