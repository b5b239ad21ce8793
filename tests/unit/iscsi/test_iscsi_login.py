# SPDX-License-Identifier: LGPL-2.1-only
"""A login without a socket: stages, keys, CHAP both ways, text in parts; and what a target may not say."""

import hashlib

import pytest
from memory import pdus_in, put, take

from kit.iscsi.wire import Pdu, pairs_of, text_of
from kit.shell import TOP
from relvmoiscsi.errors import LoginRefused, NoConnection, Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.iscsi import names
from relvmoiscsi.iscsi.chap import BEST_FIRST, MD5_ALONE, available
from relvmoiscsi.iscsi.faults import NOT_FOUND, REMOVED, Closed, NoCommonAlgorithm, NoSuchTarget, Unproven, Violation
from relvmoiscsi.iscsi.login import Handshake, Parameters, login
from relvmoiscsi.iscsi.names import NO_CREDENTIALS, Credentials
from relvmoiscsi.iscsi.pdu import Wire
from relvmoiscsi.iscsi.text_keys import pack

ISID = bytes.fromhex("80 01 02 03 04 05".replace(" ", ""))
WHERE, ME, ARRAY = "10.0.0.1:3260", "iqn.2026-01.test:me", "iqn.2026-01.test:array"
ONE_WAY = Credentials("user", "secret")
MUTUAL = Credentials("user", "secret", "target", "its secret")
TO_OPERATIONAL, TO_FULL = 0x81, 0x87


def entropy(count):
    return bytes(range(1, count + 1))


class Play:
    """The target's lines, and what the initiator said last."""

    def __init__(self, credentials=NO_CREDENTIALS, piece=1 << 20, entropy=entropy, target=ARRAY, algorithms=(5,)):
        self.wire, self.piece = Wire(), piece
        exchange = login(WHERE, ME, target, credentials, algorithms, entropy)
        self.handshake = Handshake(self.wire, exchange, WHERE, target, ISID)
        self.stat_sn = 41
        self.hear()

    def hear(self):
        sent = pdus_in(take(self.wire))
        self.last = sent[-1] if sent else None
        self.keys = dict(pairs_of(self.last.data)) if sent else {}

    def say(self, flags, *keys, status=0, text=None, **more):
        self.stat_sn += 1
        words = [0, self.stat_sn, 1, 32, status << 16]
        data = text_of(keys) if text is None else text
        pdu = Pdu(0x23, flags, lun=ISID + b"\0\7", tag=0, words=words, data=data)
        for name, value in more.items():
            setattr(pdu, name, value)
        put(self.wire, pdu.encoded(False, False), self.piece, self.handshake.handle)
        self.hear()
        return self

    @property
    def parameters(self):
        return self.handshake.parameters


@pytest.mark.parametrize("piece", [1, 7, 48, 1 << 20])
def test_without_chap_it_takes_two_requests(piece):
    play = Play(piece=piece)

    assert play.keys == {
        "InitiatorName": "iqn.2026-01.test:me",
        "SessionType": "Normal",
        "TargetName": "iqn.2026-01.test:array",
        "AuthMethod": "None",
    }
    assert (play.last.opcode, play.last.immediate, play.last.flags, play.last.lun) == (3, True, 0x81, ISID + b"\0\0")

    play.say(TO_OPERATIONAL, ("AuthMethod", "None"), ("TargetPortalGroupTag", "3"))
    assert play.keys["HeaderDigest"] == "None,CRC32C" and play.keys["InitialR2T"] == "Yes"
    assert (play.last.flags, play.last.words[1:3]) == (0x87, [1, 43])

    play.say(TO_FULL, ("DataDigest", "CRC32C"), ("MaxBurstLength", "8192"), ("MaxRecvDataSegmentLength", "65536"))
    assert play.parameters == Parameters(False, True, 65536, 8192, 8192, True)
    assert play.last is None


def test_what_is_not_answered_has_the_default_of_the_rfc_and_what_is_beyond_the_offer_does_not_count():
    play = Play().say(TO_OPERATIONAL).say(TO_FULL, ("ImmediateData", "Reject"), ("FirstBurstLength", "NotUnderstood"))
    assert play.parameters == Parameters(max_send_bytes=8192, max_burst_bytes=262144, first_burst_bytes=65536)

    play = Play().say(TO_OPERATIONAL).say(TO_FULL, ("MaxBurstLength", "16777215"), ("ErrorRecoveryLevel", "2"))
    assert play.parameters.max_burst_bytes == 16776192


def test_what_the_target_brings_up_is_answered_unless_it_is_a_declaration():
    play = Play().say(TO_OPERATIONAL)

    play.say(0x04, ("IFMarker", "Yes"), ("X-com.test", "1"), ("TargetAlias", "a"), ("HeaderDigest", "None"))
    assert play.keys == {"IFMarker": "No", "X-com.test": "NotUnderstood"}
    assert play.last.flags == 0x87

    play = Play().say(0x00)  # it hesitates, and is asked again
    assert (play.last.flags, play.keys) == (0x81, {})
    assert play.say(TO_OPERATIONAL).say(0x04).say(TO_FULL).parameters is not None


@pytest.mark.parametrize("number, name", [("5", "md5"), ("6", "sha1"), ("7", "sha256"), ("8", "sha3_256")])
@pytest.mark.parametrize(
    "identifier, challenge", [("0xc8", "0x" + "ab" * 24), ("200", "0Bq6urq6urq6urq6urq6urq6urq6urq6ur")]
)
def test_chap_answers_the_challenge(number, name, identifier, challenge):
    play = Play(ONE_WAY, algorithms=(5, 6, 7, 8))
    assert (play.keys["AuthMethod"], play.last.flags) == ("CHAP,None", 0x00)

    play.say(0x00, ("AuthMethod", "CHAP"))
    assert play.keys == {"CHAP_A": "5,6,7,8"}

    play.say(0x00, ("CHAP_A", number), ("CHAP_I", identifier), ("CHAP_C", challenge))
    expected = hashlib.new(name, b"\xc8" + b"secret" + b"\xab" * 24).hexdigest()
    assert (play.keys, play.last.flags) == ({"CHAP_N": "user", "CHAP_R": "0x" + expected}, 0x81)

    assert play.say(TO_OPERATIONAL).say(TO_FULL).parameters is not None


def mutual(credentials=MUTUAL):
    play = Play(credentials)
    play.say(0x00, ("AuthMethod", "CHAP"))
    return play.say(0x00, ("CHAP_A", "5"), ("CHAP_I", "9"), ("CHAP_C", "0x1122"))


def proof(play, secret=b"its secret"):
    challenge = bytes.fromhex(play.keys["CHAP_C"][2:])
    return "0x" + hashlib.md5(bytes([int(play.keys["CHAP_I"])]) + secret + challenge).hexdigest()


@pytest.mark.parametrize(
    "answer",
    [
        lambda play: [],
        lambda play: [("CHAP_N", "target")],
        lambda play: [("CHAP_R", proof(play))],
        lambda play: [("CHAP_N", "other"), ("CHAP_R", proof(play))],
        lambda play: [("CHAP_N", "target"), ("CHAP_R", proof(play, b"secret"))],
        lambda play: [("CHAP_N", "target"), ("CHAP_R", proof(play)), ("CHAP_C", play.keys["CHAP_C"])],
    ],
    ids=["nothing", "no response", "no name", "another name", "our own secret", "our challenge sent back"],
)
def test_a_target_that_does_not_prove_itself_hears_nothing_more(answer):
    play = mutual()

    with pytest.raises(Unproven, match="could not prove itself"):
        play.say(TO_OPERATIONAL, *answer(play))

    assert play.wire.outgoing() == []


def test_our_own_challenge_is_answered_to_nobody_and_where_a_proof_is_wanted_none_at_all_is_refused():
    play = Play(MUTUAL)
    assert play.keys["AuthMethod"] == "CHAP"
    with pytest.raises(Unproven):
        play.say(0x00, ("AuthMethod", "None"))

    play = Play(MUTUAL).say(0x00, ("AuthMethod", "CHAP"))
    with pytest.raises(Unproven):
        play.say(0x00, ("CHAP_A", "5"), ("CHAP_I", "9"), ("CHAP_C", "0x" + entropy(16).hex()))
    assert play.wire.outgoing() == []


@pytest.mark.parametrize(
    "error, say",
    [
        (NoCommonAlgorithm, lambda play: play.say(0x00, ("CHAP_A", "Reject"))),
        (NoCommonAlgorithm, lambda play: play.say(0x00)),
        (NoCommonAlgorithm, lambda play: play.say(0x00, status=0x0200)),
        (NoCommonAlgorithm, lambda play: play.handshake.closed(Closed("closed"))),
        (LoginRefused, lambda play: play.say(0x00, status=0x0201)),  # a wrong secret
    ],
    ids=["Reject", "no answer", "0200", "closed", "0201"],
)
def test_a_target_without_these_algorithms_is_told_apart(error, say):
    play = Play(ONE_WAY).say(0x00, ("AuthMethod", "CHAP"))

    with pytest.raises(RelvmoiscsiError) as caught:
        say(play)

    assert type(caught.value) is error


def relayed(secret, incoming_secret):
    """Log in to a target that knows no secret, and gets its proof from a second login. Nothing is verified here."""
    credentials = Credentials("alice", secret)
    credentials.incoming_user, credentials.incoming_secret = "array", incoming_secret
    first = Play(credentials).say(0x00, ("AuthMethod", "CHAP"))
    first.say(0x00, ("CHAP_A", "5"), ("CHAP_I", "9"), ("CHAP_C", "0x11"))
    challenge = bytes.fromhex(first.keys["CHAP_C"][2:])
    own, rest = secret.encode(), incoming_secret.encode()
    asked = rest[len(own) :] + challenge if len(own) < len(rest) else challenge[len(own) - len(rest) :]
    second = Play(credentials, entropy=bytes).say(0x00, ("AuthMethod", "CHAP"))
    second.say(0x00, ("CHAP_A", "5"), ("CHAP_I", first.keys["CHAP_I"]), ("CHAP_C", "0x" + asked.hex()))
    first.say(TO_OPERATIONAL, ("CHAP_N", "array"), ("CHAP_R", second.keys["CHAP_R"])).say(TO_FULL)
    return first.parameters is not None


@pytest.mark.parametrize(
    "secret, incoming_secret",
    [
        ("sesamesesame", "sesamesesame"),
        ("sesamesesame", "sesamesesame!"),
        ("sesamesesame\1", "sesamesesame"),  # the challenge of `entropy` begins with this byte
        ("s\u00e9same sesame", "s\u00e9same sesame \u00e9"),
    ],
    ids=["equal", "longer", "shorter", "not ASCII"],
)
def test_secrets_with_which_a_target_without_a_secret_passes_are_refused(secret, incoming_secret):
    assert relayed(secret, incoming_secret), "so this is an attack"

    with pytest.raises(UsageError, match="would prove nothing") as caught:
        Credentials("alice", secret, "array", incoming_secret)
    assert secret not in str(caught.value)


def test_other_secrets_are_taken_and_the_relay_of_a_challenge_proves_nothing():
    for secret, incoming_secret in (("sesame", "emases"), ("sesamesesame", "!sesamesesame"), ("sesame1", "sesame2")):
        assert Credentials("alice", secret, "array", incoming_secret).incoming_user == "array"
        with pytest.raises(Unproven):
            relayed(secret, incoming_secret)


@pytest.mark.parametrize(
    "given, words",
    [
        (("alice", ""), "The CHAP user 'alice' has no password"),
        (("", "sesame"), "The CHAP password has no user"),
        (("alice", "sesame", "array", ""), "The incoming CHAP user 'array' has no password"),
        (("alice", "sesame", "", "emases"), "The incoming CHAP password has no user"),
        (("", "", "array", "emases"), "only to a CHAP user"),
    ],
)
def test_half_of_a_pair_is_refused(given, words):
    """An empty incoming secret is one that every target knows."""
    with pytest.raises(UsageError, match=words) as caught:
        Credentials(*given)
    assert "sesame" not in str(caught.value) and "emases" not in str(caught.value)


def test_short_secrets_are_warned_of_once(caplog):
    """A command makes its credentials anew for each session."""
    names._warn_of_short_secret.cache_clear()
    long = "sesamesesame"
    Credentials()
    Credentials("alice", long)
    Credentials("alice", long, "array", "x" + long)
    assert caplog.text == ""
    for _ in range(2):
        Credentials("alice", long, "array", "shortsecret")
    assert caplog.messages == ["warning: A CHAP password has less than 12 bytes. Choose a longer password."]


def test_a_user_and_a_secret_that_are_no_utf_8_are_sent_and_hashed_as_the_environment_has_them():
    play = Play(Credentials("user", "secret \udcff")).say(0x00, ("AuthMethod", "CHAP"))

    play.say(0x00, ("CHAP_A", "5"), ("CHAP_I", "9"), ("CHAP_C", "0x1122"))

    assert play.keys["CHAP_R"] == "0x" + hashlib.md5(b"\x09secret \xff\x11\x22").hexdigest()
    assert pack([("CHAP_N", "us\udcffer")]) == b"CHAP_N=us\xffer\0"


def test_a_refused_list_is_no_wrong_secret():
    play = Play(ONE_WAY, algorithms=BEST_FIRST).say(0x00, ("AuthMethod", "CHAP"))
    with pytest.raises(NoCommonAlgorithm):
        play.say(0x00, status=0x0201)


def test_an_algorithm_that_this_python_does_not_have_is_not_offered(monkeypatch):
    def new(name, *data):
        if name == "md5":
            raise ValueError("disabled for FIPS")
        return real(name, *data)

    real = hashlib.new
    monkeypatch.setattr(hashlib, "new", new)

    assert (available(MD5_ALONE), available(BEST_FIRST)) == ((), (7, 8, 6))


def operational(name, value):
    return lambda play: play.say(TO_OPERATIONAL).say(TO_FULL, (name, value))


def first(*keys, flags=0x00, **more):
    return lambda play: play.say(flags, *keys, **more)


@pytest.mark.parametrize(
    "error, words, say",
    [
        (Violation, "another stage", first(flags=TO_FULL)),
        (Violation, "another stage", first(flags=0x83)),
        (Violation, "another stage", lambda play: play.say(TO_OPERATIONAL).say(TO_OPERATIONAL)),
        (Violation, "something else", first(tag=1)),
        (Violation, "something else", first(byte3=1)),
        (Violation, "something else", first(opcode=0x24)),
        (Violation, "went on in the middle", first(("AuthMethod", "None"), flags=0xC1)),
        (Violation, "a text that is empty", first(flags=0x40)),
        (Violation, "key=value", first(text=b"nonsense\0")),
        (Violation, "more in one PDU", first(text=b"X=" + b"y" * 9000 + b"\0")),
        (Violation, "MaxBurstLength='511'", operational("MaxBurstLength", "511")),
        (Violation, "MaxBurstLength='16777216'", operational("MaxBurstLength", "16777216")),
        (Violation, "MaxBurstLength='9999", operational("MaxBurstLength", "9" * 5000)),
        (Violation, "CRC64", operational("DataDigest", "CRC64")),
        (Violation, "ImmediateData='Maybe'", operational("ImmediateData", "Maybe")),
        (Violation, "within 20 requests", lambda play: [play.say(0x00) for _ in range(21)]),
        (Violation, "bytes of text", lambda play: [play.say(0x40, text=b"x" * 8000) for _ in range(9)]),
        (Violation, "does not say where", first(status=0x0101)),
        (Violation, "another target", first(("TargetAddress", "10.0.0.2"), ("TargetName", "iqn.b"), status=0x0101)),
        (LoginRefused, "AuthMethod", first(("AuthMethod", "Reject"))),
        (LoginRefused, "AuthMethod", first(("AuthMethod", "CHAP"))),
        (LoginRefused, "'KRB5'; CHAP is", first(("AuthMethod", "KRB5"))),
        (Closed, "the sentence", lambda play: play.handshake.closed(Closed("the sentence"))),
    ],
)
def test_what_a_target_may_not_say_ends_the_login(error, words, say):
    with pytest.raises(error, match=words):
        say(Play())


@pytest.mark.parametrize(
    "keys",
    [
        {"CHAP_A": "7"},
        {"CHAP_I": "256"},
        {"CHAP_I": None},
        {"CHAP_C": None},
        {"CHAP_C": "11"},
        {"CHAP_C": "0xzz"},
        {"CHAP_C": "0b%%"},
        {"CHAP_C": "0x" + "11" * 1025},
        {"CHAP_I": "1\0CHAP_I=2"},
    ],
)
def test_a_malformed_challenge_is_refused(keys):
    play = Play(ONE_WAY).say(0x00, ("AuthMethod", "CHAP"))
    keys = {"CHAP_A": "5", "CHAP_I": "1", "CHAP_C": "0x11", **keys}

    with pytest.raises(Violation):
        play.say(0x00, *[(name, value) for name, value in keys.items() if value is not None])


def test_no_secret_is_in_any_text():
    shown = [repr(MUTUAL), str(MUTUAL), f"{MUTUAL}"]
    for say in (lambda: mutual().say(TO_OPERATIONAL), lambda: Play(MUTUAL).say(0, status=0x0201)):
        with pytest.raises(RelvmoiscsiError) as caught:
            say()
        shown.append(str(caught.value))

    assert not [text for text in shown if "secret'" in text or "its secret" in text]
    assert "Credentials(user='user', incoming_user='target')" in shown


@pytest.mark.parametrize("status", [*range(0x0200, 0x020C), 0x0300, 0x0301, 0x0302, 0x0777], ids="{:04x}".format)
def test_a_refused_login_is_no_connection_but_for_a_target_that_is_not_there(status):
    """A program that may wait for a connection must not wait for a target that does not exist."""
    with pytest.raises(RelvmoiscsiError) as caught:
        Play(ONE_WAY).say(0x00, status=status)

    error, is_gone = caught.value, status in (NOT_FOUND, REMOVED)
    assert error.exit_status == (3 if is_gone else 11) and f"status {status:04x}" in error.message
    assert isinstance(error, NoSuchTarget) == is_gone == (not isinstance(error, (NoConnection, Refused)))
    page = " ".join((TOP / "docs/python.rst").read_text(encoding="utf-8").split())
    assert (
        "a login that a target or a pool refuses is ``NoConnection`` and ``Refused``, an unreachable portal or pool "
        "``NoConnection`` and ``NotFound``. Where the portal has no target of this name, the error is a ``NotFound`` "
        "alone."
    ) in page
