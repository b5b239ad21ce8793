# SPDX-License-Identifier: LGPL-2.1-only
"""The login phase of one connection of the scripted target (RFC 7143, section 6.3)."""

from .negotiation import ChapExchange, Negotiation
from .watch import LoginWatch
from .wire import LOGIN, LOGIN_ANSWER, Broken, Pdu, pairs_of, text_of

SUCCESS, INITIATOR_ERROR, AUTHENTICATION, NOT_FOUND, MISSING = 0, 0x0200, 0x0201, 0x0203, 0x0207
FULL_FEATURE = 3


class Login:
    """Answers login requests until `done`; then `result` has the keys, `isid`, `initiator` and `discovery` the rest."""

    def __init__(self, connection):
        self._connection, self._options = connection, connection.options
        self._watch = LoginWatch(connection.complain)
        self._collected = b""
        self._chap = None
        self._open = False  #: nothing is left to prove
        self.named = self.done = self.discovery = False
        self.initiator = self.isid = None
        self.negotiation = None

    def request(self, pdu):
        if pdu.opcode != LOGIN:
            raise Broken("login", f"{pdu!r} before the login")
        self._watch.request(pdu)
        stage = pdu.flags >> 2 & 3
        if self.isid is None:
            self.isid = pdu.lun[:6]
            self._connection.first_cmd_sn(pdu.words[1])
        self._connection.target.note("login request", stage)
        if self._connection.fires("login", pdu, stage):
            return
        self._collected += pdu.data
        if pdu.flags & 0x40:
            self._answer(pdu, [], False)
            return
        text, self._collected = self._collected, b""
        self._whole(pdu, pairs_of(text), stage)

    def _whole(self, pdu, pairs, stage):
        self._watch.keys(pairs, stage, self._options.brings_up and dict(self._options.brings_up))
        answers, keys = [], dict(pairs)
        if not self.named:
            answers, refusal = self._names(keys)
            if refusal is not None:
                self.refuse(pdu, refusal)
                return
        if stage == 0:
            more = self._security(keys)
            if not isinstance(more, list):
                self.refuse(pdu, more)
                return
            answers += more
        elif not self._open:
            self.refuse(pdu, AUTHENTICATION)
            return
        operational = [pair for pair in pairs if pair[0] not in keys_of_security(keys)]
        answers += self.negotiation.answer(operational, self._connection.complain) if stage else []
        if self.negotiation.refusal is not None:
            self.refuse(pdu, self.negotiation.refusal)
            return
        self._answer(pdu, answers, self._open and (stage == 0 or not self.negotiation.awaits()))

    # -- who is there -----------------------------------------------------------------------------------------------

    def _names(self, keys):
        self.named = True
        self.discovery = keys.get("SessionType") == "Discovery"
        self.initiator, name = keys.get("InitiatorName"), keys.get("TargetName")
        self.negotiation = Negotiation(self._options, self.discovery)
        if not self.initiator or not (name or self.discovery):
            return [], MISSING
        self._connection.target.login_begins(self)
        needs = self._options.chap is not None
        if self.discovery and self._options.discovery_chap is not None:
            needs = self._options.discovery_chap
        self._chap = ChapExchange(self._options, self._connection.complain, self._connection.target.challenges)
        self._open = not needs
        if self.discovery:
            return [], None
        if name != self._options.iqn:
            return [], NOT_FOUND
        return [("TargetPortalGroupTag", str(self._connection.tpgt))], None

    def _security(self, keys):
        if "AuthMethod" in keys:
            return self._method(keys["AuthMethod"].split(","))
        chap = {name: value for name, value in keys.items() if name.startswith("CHAP_")}
        if self._open or not chap:
            return []
        answers = self._chap.step(chap)
        self._open = self._open or self._chap.done
        return answers

    def _method(self, offered):
        if self._open:
            return [("AuthMethod", "None")] if "None" in offered else AUTHENTICATION
        if "CHAP" in offered:
            return [("AuthMethod", "CHAP")]
        no_offer = self._options.chap_no_offer
        if no_offer == "Reject":
            return [("AuthMethod", "Reject")]
        return "close" if no_offer == "close" else int(no_offer, 16)

    # -- answers ----------------------------------------------------------------------------------------------------

    def refuse(self, pdu, status, address=None):
        """A status of another class than 0, after which the connection is closed; "close": that alone."""
        connection = self._connection
        connection.target.note("login refused", status)
        if status != "close":
            text = text_of([("TargetAddress", address)] if address else [])
            words = [0, 0, 0, 0, status << 16]
            connection.send(Pdu(LOGIN_ANSWER, pdu.flags & 0x0C, lun=pdu.lun, tag=pdu.tag, words=words, data=text))
        connection.hang_up()

    def _answer(self, pdu, answers, may_go_on):
        wanted = bool(pdu.flags & 0x80) and may_go_on
        flags = pdu.flags & (0x8F if wanted else 0x0C)
        ends = wanted and pdu.flags & 3 == FULL_FEATURE
        answer = Pdu(LOGIN_ANSWER, flags, lun=pdu.lun[:6] + b"\0\0", tag=pdu.tag, data=text_of(answers))
        if ends:
            self._connection.enter(self)
            answer.lun = pdu.lun[:6] + self._connection.session.tsih.to_bytes(2, "big")
        self._connection.send(answer)
        self._watch.exp_stat_sn = self._connection.stat_sn
        if ends:
            self.done = True
            self._connection.begin_full_feature()


def keys_of_security(keys):
    return [name for name in keys if name == "AuthMethod" or name.startswith("CHAP_")]
