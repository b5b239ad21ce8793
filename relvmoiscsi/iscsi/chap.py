# SPDX-License-Identifier: LGPL-2.1-only
"""CHAP, one-way and mutual, as a part of a login. Source: RFC 7143 12.1, RFC 1994.

The response to a challenge is the hash of the identifier, the secret and the challenge.
"""

import hashlib
import hmac
from typing import Callable, Dict, Generator, Tuple

from relvmoiscsi.errors import LoginRefused
from relvmoiscsi.iscsi.faults import (
    AUTHENTICATION_FAILED,
    Closed,
    NoCommonAlgorithm,
    Unproven,
    Violation,
    login_refused,
)
from relvmoiscsi.iscsi.names import Credentials, bytes_of
from relvmoiscsi.iscsi.text_keys import NO_ANSWER, SECURITY, Keys, Request, TextAnswer, binary, number

Entropy = Callable[[int], bytes]

#: number of an algorithm in CHAP_A -> its name in hashlib
_ALGORITHMS = {5: "md5", 6: "sha1", 7: "sha256", 8: "sha3_256"}
#: a target chooses from the list; LIO before Linux 3.15 refuses each list except MD5 alone
BEST_FIRST, MD5_ALONE = (7, 8, 6, 5), (5,)
_CHALLENGE_BYTES = 16


def available(offered: Tuple[int, ...]) -> Tuple[int, ...]:
    """Return the algorithms that this Python has. In the kernel's FIPS mode, Python lacks MD5."""
    found = []
    for algorithm in offered:
        try:
            hashlib.new(_ALGORITHMS[algorithm])
        except ValueError:
            continue
        found.append(algorithm)
    return tuple(found)


def authenticate(
    target: str, credentials: Credentials, offered: Tuple[int, ...], entropy: Entropy
) -> Generator[Request, TextAnswer, TextAnswer]:
    """Run the part of a login from CHAP_A on. Return the last answer of the target.

    Raises NoCommonAlgorithm and Violation. Raises Unproven if the target does not prove that it knows its own secret.
    """
    own_identifier, own_challenge = entropy(1), entropy(_CHALLENGE_BYTES)
    offer = ",".join(map(str, offered))
    try:
        answer = yield Request(SECURITY, False, [("CHAP_A", offer)])
    except (LoginRefused, Closed) as refused:
        is_failed = isinstance(refused, LoginRefused) and refused.status == AUTHENTICATION_FAILED
        if is_failed and len(offered) == 1:  # a refused list has the same status
            raise
        raise NoCommonAlgorithm(target) from refused
    found = _only_once(answer.keys)
    chosen = found.get("CHAP_A", "Reject")
    if chosen in NO_ANSWER:
        raise NoCommonAlgorithm(target)
    algorithm = number("CHAP_A", chosen, 0, 255)
    if algorithm not in offered:
        raise Violation(f"The target chose the CHAP algorithm {algorithm}, and {offer} was offered.")
    identifier = number("CHAP_I", found.get("CHAP_I", ""), 0, 255)
    challenge = binary("CHAP_C", found.get("CHAP_C", ""))
    response = _response(algorithm, bytes([identifier]), credentials.secret, challenge)
    keys = [("CHAP_N", credentials.user), ("CHAP_R", "0x" + response.hex())]
    is_mutual = bool(credentials.incoming_user)
    if is_mutual and challenge == own_challenge:
        raise Unproven(target, "it sent back the challenge of this side")
    if is_mutual:
        keys += [("CHAP_I", str(own_identifier[0])), ("CHAP_C", "0x" + own_challenge.hex())]
    try:
        answer = yield Request(SECURITY, True, keys)
    except LoginRefused as refused:
        if refused.status != AUTHENTICATION_FAILED:
            raise
        reason, remedy = "the CHAP user or secret is wrong", "Check the CHAP user and secret on both sides."
        if is_mutual:  # RFC 7143 11.13.5 has one status for both
            reason += ", or the target has no incoming CHAP user"
            remedy = (
                "Check both CHAP users and secrets on both sides. Leave out the incoming user if the target has none."
            )
        raise login_refused(target, AUTHENTICATION_FAILED, reason, remedy) from refused
    if not is_mutual:
        return answer
    expected = _response(algorithm, own_identifier, credentials.incoming_secret, own_challenge)
    found = _only_once(answer.keys)
    if "CHAP_R" not in found:
        raise Unproven(target, "it answered without a proof, as a target does that has no incoming CHAP user")
    if found.get("CHAP_N") != credentials.incoming_user:
        raise Unproven(target, "its CHAP user is not the incoming CHAP user")
    if not hmac.compare_digest(binary("CHAP_R", found["CHAP_R"]), expected) or "CHAP_C" in found:
        raise Unproven(target, "it does not know the secret of its incoming CHAP user")
    return answer


def _response(algorithm: int, identifier: bytes, secret: str, challenge: bytes) -> bytes:
    return hashlib.new(_ALGORITHMS[algorithm], identifier + bytes_of(secret) + challenge).digest()


def _only_once(keys: Keys) -> Dict[str, str]:
    found = dict(keys)
    if len(found) != len(keys):
        raise Violation("The target sent a key twice.")
    return found
