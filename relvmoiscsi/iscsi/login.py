# SPDX-License-Identifier: LGPL-2.1-only
"""A login: the security stage, then the operational stage, then the full feature phase.

`login` is a generator: `login` yields requests, receives answers, and returns the negotiated parameters. A `Handshake`
converts requests and answers to PDUs. Source: RFC 7143 6, 11.12, 11.13, 13.

    security      AuthMethod=None: one request, which asks for the next stage. CHAP: see `chap`, then empty requests
                  until the target enters the next stage
    operational   one request with all keys, which asks for the next stage; then answers to keys of the target
"""

from typing import Dict, Generator, NamedTuple, Optional, Tuple

from relvmoiscsi.errors import LoginRefused
from relvmoiscsi.iscsi import pdu
from relvmoiscsi.iscsi.chap import Entropy, authenticate
from relvmoiscsi.iscsi.faults import (
    AUTHENTICATION_FAILED,
    NOT_FOUND,
    REMOVED,
    Closed,
    Redirected,
    Unproven,
    Violation,
    login_refused,
    no_such_target,
)
from relvmoiscsi.iscsi.names import Credentials
from relvmoiscsi.iscsi.pdu import MAX_DATA_BYTES, PduHeader, Wire
from relvmoiscsi.iscsi.text_keys import (
    MAX_LOGIN_TEXT,
    NEXT,
    NO_ANSWER,
    OPERATIONAL,
    SECURITY,
    Collector,
    Keys,
    Request,
    TextAnswer,
    number,
    pack,
    unpack,
)

MAX_ROUNDS = 20
_LEAST_BYTES, _MOST_BYTES = 512, 2**24 - 1  #: limits of each negotiated length
_FIRST_BURST, _MAX_BURST = 262144, 16776192  #: the offered lengths

_OF_EACH_SESSION = [
    ("HeaderDigest", "None,CRC32C"),
    ("DataDigest", "None,CRC32C"),
    ("MaxRecvDataSegmentLength", str(MAX_DATA_BYTES)),
    ("DefaultTime2Wait", "2"),
    ("DefaultTime2Retain", "0"),  # a target drops the tasks of a dead connection immediately
    ("ErrorRecoveryLevel", "0"),
]
_OF_A_NORMAL_SESSION = [
    ("InitialR2T", "Yes"),
    ("ImmediateData", "Yes"),
    ("FirstBurstLength", str(_FIRST_BURST)),
    ("MaxBurstLength", str(_MAX_BURST)),
    ("MaxConnections", "1"),
    ("MaxOutstandingR2T", "1"),
    ("DataPDUInOrder", "Yes"),
    ("DataSequenceInOrder", "Yes"),
]
#: keys that a target declares, without an answer
_DECLARED = ("TargetAlias", "TargetAddress", "TargetPortalGroupTag", "MaxRecvDataSegmentLength")
_DECLARED_AT_ONCE = ("TargetPortalGroupTag",)  #: with the first answer; lengths count only in the operational stage
#: keys that a target may negotiate, and the answer to a key that was not offered
_ANSWERS = {"IFMarker": "No", "OFMarker": "No", **{name: "Irrelevant" for name, _ in _OF_A_NORMAL_SESSION}}


class Parameters(NamedTuple):
    """The negotiated parameters of a session."""

    header_digest: bool = False
    data_digest: bool = False
    max_send_bytes: int = pdu.DEFAULT_DATA_BYTES  #: data in one PDU to the target
    max_burst_bytes: int = 262144  #: data for one R2T
    first_burst_bytes: int = 65536  #: data before the first R2T
    immediate_data: bool = True


Exchange = Generator[Request, TextAnswer, Parameters]


def login(
    where: str, initiator: str, target: str, credentials: Credentials, algorithms: Tuple[int, ...], entropy: Entropy
) -> Exchange:
    """Negotiate and return the parameters. Raises Violation, LoginRefused, NoCommonAlgorithm, Unproven.

    `where` is the target's name in messages; `target` is its IQN, "" for a discovery; `algorithms` are those of CHAP
    to offer.
    """
    # --- the security stage
    methods = "None"
    if credentials.user:  # with None in the offer, the target could skip its own proof
        methods = "CHAP" if credentials.incoming_user else "CHAP,None"
    keys = [("InitiatorName", initiator), ("SessionType", "Normal" if target else "Discovery")]
    keys += [("TargetName", target)] if target else []
    keys += [("AuthMethod", methods)]
    remedy = "Set up CHAP at the target."
    if not credentials.user:
        remedy = (
            "Give the CHAP user and secret of this initiator: commands on a LUN take them by --chap-file, commands on "
            "a pool by --chap-user and --chap-password-file, a program by chap_file, the SR driver as chapuser and "
            "chapsecret."
        )
    try:
        answer = yield Request(SECURITY, methods == "None", keys)
    except LoginRefused as refused:
        if credentials.user or refused.status != AUTHENTICATION_FAILED:
            raise
        reason = "this login came without CHAP, and the target wants CHAP"
        raise login_refused(where, refused.status, reason, remedy) from refused
    told = dict(answer.keys)
    method = told.get("AuthMethod", "None")
    if method == "CHAP" and credentials.user:
        answer = yield from authenticate(where, credentials, algorithms, entropy)
    elif method == "None" and credentials.incoming_user:
        raise Unproven(where, "it skipped CHAP, so it does not know its incoming CHAP user")
    elif method in (*NO_ANSWER, "CHAP"):
        raise login_refused(where, AUTHENTICATION_FAILED, f"it does not take AuthMethod={methods}", remedy)
    elif method != "None":
        reason = f"it wants {method[:40]!r}; CHAP is supported"
        raise login_refused(where, AUTHENTICATION_FAILED, reason, "Set up CHAP at the target.")
    while not answer.went_on:
        answer = yield Request(SECURITY, True, [])
    # --- the operational stage
    told = {name: value for name, value in told.items() if name in _DECLARED_AT_ONCE}
    offer = _OF_EACH_SESSION + (_OF_A_NORMAL_SESSION if target else [])
    reply: Keys = offer
    while True:
        answer = yield Request(OPERATIONAL, True, reply)
        known = {*told, *_DECLARED, *(name for name, _ in offer)}
        brought_up = [name for name, value in answer.keys if name not in known and value not in NO_ANSWER]
        reply = [(name, _ANSWERS.get(name, "NotUnderstood")) for name in brought_up]
        told.update(answer.keys)
        if answer.went_on:
            break
    answers = {name: value for name, value in told.items() if value not in NO_ANSWER}
    default = Parameters()
    max_burst = min(_MAX_BURST, _length("MaxBurstLength", answers, default.max_burst_bytes))
    first_burst = min(_FIRST_BURST, _length("FirstBurstLength", answers, default.first_burst_bytes))
    return Parameters(
        header_digest=_choice("HeaderDigest", answers, "None", "CRC32C") == "CRC32C",
        data_digest=_choice("DataDigest", answers, "None", "CRC32C") == "CRC32C",
        max_send_bytes=_length("MaxRecvDataSegmentLength", answers, default.max_send_bytes),
        max_burst_bytes=max_burst,
        first_burst_bytes=min(first_burst, max_burst),
        immediate_data=_choice("ImmediateData", answers, "Yes", "No") == "Yes",
    )


def _length(name: str, answers: Dict[str, str], default: int) -> int:
    return number(name, answers.get(name, str(default)), _LEAST_BYTES, _MOST_BYTES)


def _choice(name: str, answers: Dict[str, str], default: str, other: str) -> str:
    found = answers.get(name, default)
    if found not in (default, other):
        raise Violation(f"The target sent {name}={found[:40]!r}, which was not offered.")
    return found


class Handshake:
    """The PDUs of a login."""

    def __init__(self, wire: Wire, exchange: Exchange, where: str, target: str, isid: bytes) -> None:
        """`exchange` is a `login` that has not begun; `where` and `target` are as there."""
        self.parameters: Optional[Parameters] = None  #: set at the end of the login
        self.last = PduHeader(pdu.LOGIN_RESPONSE)  #: the last response: StatSN and the command window
        self._wire, self._where, self._target, self._isid = wire, where, target, isid
        self._exchange = exchange
        self._text = Collector(MAX_LOGIN_TEXT)
        self._rounds, self._is_answered = 0, False
        self._request = next(self._exchange)
        self._send(self._request)

    def handle(self, header: PduHeader, data: memoryview) -> None:
        """Handle a response. Raises Redirected, and the errors of `login`."""
        if header.opcode != pdu.LOGIN_RESPONSE or header.task_tag != 0 or header.byte3 != 0:
            raise Violation("The target answered a login with something else.")
        self.last, self._is_answered = header, True
        self._text.add(data)
        status = header.word36 >> 16
        if status >> 8 == 1:
            keys = dict(unpack(self._text.take()))
            if keys.get("TargetName", self._target) != self._target:
                raise Violation("The target redirects the login to another target, which RFC 7143 does not know.")
            if "TargetAddress" not in keys:
                raise Violation("The target redirects the login and does not say where.")
            raise Redirected(self._where, keys["TargetAddress"])
        if status:
            is_unknown = status in (NOT_FOUND, REMOVED)
            where = self._where
            self._exchange.throw(no_such_target(where, status) if is_unknown else login_refused(where, status))
        if header.flags & 0x40:  # the text continues in the next response
            if header.flags & pdu.FINAL or not data:
                raise Violation("The target sent a part of a text that is empty, or went on in the middle of it.")
            self._send(Request(self._request.stage, False, []))
            return
        self._rounds += 1
        if self._rounds > MAX_ROUNDS:
            raise Violation(f"The login did not end within {MAX_ROUNDS} requests.")
        asked, went_on = self._request, bool(header.flags & pdu.FINAL)
        stages = (header.flags >> 2 & 3, header.flags & 3 if went_on else NEXT[asked.stage])
        if stages != (asked.stage, NEXT[asked.stage]) or went_on and not asked.goes_on:
            raise Violation("The target is at another stage of the login than was asked for.")
        try:
            self._request = self._exchange.send(TextAnswer(went_on, unpack(self._text.take())))
        except StopIteration as end:
            self.parameters = end.value
            return
        self._send(self._request)

    def closed(self, error: Closed) -> None:
        """Report a closed connection to the login. Raises the error, or the login's own error."""
        self._exchange.throw(error)

    def _send(self, request: Request) -> None:
        going_on = pdu.FINAL | NEXT[request.stage] if request.goes_on else 0
        header = PduHeader(
            opcode=pdu.LOGIN | pdu.IMMEDIATE,
            flags=going_on | request.stage << 2,
            lun=self._isid + bytes(2),  # ISID, TSIH 0: a new session, which replaces a session with the same ISID
            task_tag=0,
            word20=0,  # connection 0
            word24=FIRST_CMD_SN,
            word28=(self.last.word24 + 1) & 0xFFFFFFFF if self._is_answered else 0,
        )
        self._wire.send(header, pack(request.keys))


FIRST_CMD_SN = 1
