# SPDX-License-Identifier: LGPL-2.1-only
"""The target's half of a login (RFC 7143, sections 6, 12, 13): what it answers to keys, and CHAP."""

import hashlib
import hmac
import os

from .wire import Broken

DEFAULTS = {
    "HeaderDigest": "None", "DataDigest": "None", "MaxRecvDataSegmentLength": "8192", "InitialR2T": "Yes",
    "ImmediateData": "Yes", "MaxBurstLength": "262144", "FirstBurstLength": "65536", "MaxConnections": "1",
    "MaxOutstandingR2T": "1", "ErrorRecoveryLevel": "0", "DefaultTime2Wait": "2", "DefaultTime2Retain": "20",
    "DataPDUInOrder": "Yes", "DataSequenceInOrder": "Yes",
}  # fmt: skip
#: what this target would like: the initiator's own values decide, but no unsolicited data, which it cannot take
WISHES = dict(DEFAULTS, ImmediateData="Yes", MaxBurstLength="16776192", FirstBurstLength="262144",
              MaxConnections="8", MaxOutstandingR2T="8", ErrorRecoveryLevel="2", DefaultTime2Wait="2",
              DataPDUInOrder="No", DataSequenceInOrder="No")  # fmt: skip
_MIN = ("MaxBurstLength", "FirstBurstLength", "MaxConnections", "MaxOutstandingR2T", "ErrorRecoveryLevel",
        "DefaultTime2Retain")  # fmt: skip
_OR = ("InitialR2T", "DataPDUInOrder", "DataSequenceInOrder")
_RANGES = {
    "MaxRecvDataSegmentLength": (512, 2**24 - 1), "MaxBurstLength": (512, 2**24 - 1),
    "FirstBurstLength": (512, 2**24 - 1), "MaxConnections": (1, 65535), "MaxOutstandingR2T": (1, 65535),
    "ErrorRecoveryLevel": (0, 2), "DefaultTime2Wait": (0, 3600), "DefaultTime2Retain": (0, 3600),
}  # fmt: skip
#: declared by one side, not answered by the other
DECLARATIONS = ("MaxRecvDataSegmentLength", "InitiatorAlias", "TargetAlias", "TargetAddress", "TargetPortalGroupTag",
                "InitiatorName", "TargetName", "SessionType")  # fmt: skip
#: irrelevant in a discovery session (section 13)
LEADING_ONLY = ("InitialR2T", "ImmediateData", "MaxBurstLength", "FirstBurstLength", "MaxConnections",
                "MaxOutstandingR2T", "DataPDUInOrder", "DataSequenceInOrder")  # fmt: skip
NAMING = ("InitiatorName", "InitiatorAlias", "SessionType", "TargetName")
SECURITY = ("AuthMethod", "CHAP_A", "CHAP_I", "CHAP_C", "CHAP_N", "CHAP_R")


def outcome(name, offered, wish):
    """What comes of two values of a negotiated key. Raises Broken for an offer that the key may not have."""
    if name in _OR or name == "ImmediateData":
        if offered not in ("Yes", "No"):
            raise Broken("key", f"{name}={offered} is neither Yes nor No")
        either = (offered, wish)
        return "Yes" if ("Yes" in either if name in _OR else either == ("Yes", "Yes")) else "No"
    number = number_of(name, offered)
    if name == "MaxRecvDataSegmentLength":
        return str(number)
    return str(min(number, int(wish)) if name in _MIN else max(number, int(wish)))


def number_of(name, text):
    low, high = _RANGES[name]
    try:
        number = int(text, 0)
    except ValueError:
        raise Broken("key", f"{name}={text} is no number") from None
    if not low <= number <= high:
        raise Broken("key", f"{name}={text} is not between {low} and {high}")
    return number


class Negotiation:
    """The operational keys of one login: `answer` what was offered, and read what holds in `result`."""

    def __init__(self, options, discovery):
        self._options, self._discovery = options, discovery
        self.result = dict(DEFAULTS)
        self.offered = {}
        self.refusal = None
        self.unanswered = dict(options.brings_up)
        self._told = False

    def answer(self, pairs, complain):
        """The keys to answer with. `complain(rule, text)` is told what the initiator may not offer."""
        answers = []
        for name, value in pairs:
            if name in self.unanswered:
                self._answered(name, value, complain)
                continue
            self.offered[name] = value
            if name in NAMING:
                continue
            try:
                answer = self._one(name, value)
                if self._discovery and name in LEADING_ONLY:
                    complain("irrelevant", f"{name} has no meaning in a discovery session")
                    answer = "Irrelevant"
            except Broken as error:
                complain(*error.args)
                answer = "Reject"
            if answer is not None:
                answers.append((name, answer))
        return answers + self._of_its_own()

    def _of_its_own(self):
        if self._told:
            return []
        self._told = True
        own = list(self._options.brings_up)
        if self._options.max_recv is not None:
            own.insert(0, ("MaxRecvDataSegmentLength", str(self._options.max_recv)))
        return own

    def _answered(self, name, value, complain):
        asked = self.unanswered.pop(name)
        refusals = ("Reject", "Irrelevant", "NotUnderstood") + (("No",) if "Marker" in name else ())
        if name in DECLARATIONS or (name not in DEFAULTS and value not in refusals):
            complain("key", f"the target's {name}={asked} was answered with {value}")

    def _one(self, name, value):
        if name in ("HeaderDigest", "DataDigest"):
            wanted = self._options.header_digest if name == "HeaderDigest" else self._options.data_digest
            common = [item for item in wanted if item in value.split(",")]
            if not common:
                self.refusal = 0x0200
                return "Reject"
            self.result[name] = common[0]
            return common[0]
        if name not in DEFAULTS:
            return "NotUnderstood"
        wish = str(self._options.keys.get(name, WISHES[name]))
        self.result[name] = outcome(name, value, wish)
        return None if name == "MaxRecvDataSegmentLength" else self.result[name]

    def awaits(self):
        """Keys of its own that the initiator has yet to answer."""
        return [name for name in self.unanswered if name not in DECLARATIONS]

    def number(self, name):
        return int(self.result[name], 0)

    def yes(self, name):
        return self.result[name] == "Yes"


_HASHES = {"5": hashlib.md5, "6": hashlib.sha1, "7": hashlib.sha256, "8": hashlib.sha3_256}


def chap_response(algorithm, identifier, secret, challenge):
    return _HASHES[algorithm](bytes([identifier]) + secret.encode() + challenge).digest()


class ChapExchange:
    """CHAP from the target's side (RFC 7143, section 12.1): `step` each request, until `done`.

    A step gives the keys to answer with, or the status of a refusal.
    """

    def __init__(self, options, complain, seen):
        self._options, self._complain = options, complain
        self._seen = seen  #: challenges of initiators, of all connections
        self.done = self.mutual = False
        self._identifier = self._challenge = self._algorithm = None

    def step(self, keys):
        if "CHAP_A" in keys:
            return self._choose(keys["CHAP_A"].split(","))
        if "CHAP_R" in keys and self._challenge is not None:
            return self._verify(keys)
        if self._challenge is None and not keys:
            return []
        return 0x0201

    def _choose(self, offered):
        if len(offered) > 1 and self._options.chap_list:
            return self._options.chap_list
        known = [item for item in offered if item in self._options.chap_hashes]
        if not known:
            return [("CHAP_A", "Reject")]
        self._algorithm, self._identifier, self._challenge = known[0], os.urandom(1)[0], os.urandom(16)
        return [("CHAP_A", self._algorithm), ("CHAP_I", str(self._identifier)), ("CHAP_C", binary(self._challenge))]

    def _verify(self, keys):
        chap = self._options.chap
        proof = chap_response(self._algorithm, self._identifier, chap.secret, self._challenge)
        if keys.get("CHAP_N") != chap.user or not hmac.compare_digest(binary_of(keys["CHAP_R"]), proof):
            return 0x0201
        self.done = True
        if "CHAP_C" not in keys:
            return []
        self.mutual = True
        return self._prove(int(keys["CHAP_I"], 0), binary_of(keys["CHAP_C"]))

    def _prove(self, identifier, challenge):
        cheats, mutual = self._options.cheats, self._options.mutual
        if len(challenge) < 16:
            self._complain("chap", f"the initiator's challenge has {len(challenge)} bytes")
        if challenge in self._seen or challenge == self._challenge:
            self._complain("chap", "the initiator's challenge is not a fresh one")
        self._seen.append(challenge)
        if mutual is None:
            return 0x0201
        proof = chap_response(self._algorithm, identifier, mutual.secret, challenge)
        if cheats == "wrong":
            proof = bytes([proof[0] ^ 1]) + proof[1:]
        user = "somebody else" if cheats == "name" else mutual.user
        return [] if cheats == "none" else [("CHAP_N", user), ("CHAP_R", binary(proof))]


def binary(data):
    return "0x" + data.hex()


def binary_of(text):
    """A binary value, of which an initiator here sends the form in hex (RFC 7143, section 6.1)."""
    if text[:2].lower() != "0x":
        raise Broken("chap", f"{text[:20]!r} is no binary value")
    return bytes.fromhex("0" * (len(text) % 2) + text[2:])
