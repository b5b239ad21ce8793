# SPDX-License-Identifier: LGPL-2.1-only
"""Every exit status of iscsiadm has a meaning, a sentence and an error of SM's."""

import pytest

from kit.iscsi_world import transcript
from relvmoiscsi.errors import CommandFailed
from relvmoiscsi.host.iscsi.status import MEANINGS, IscsiFailed, login_hint, meaning_of

OPEN_ISCSI = range(1, 34)  # include/iscsi_err.h: 33 is the last before ISCSI_MAX_ERR_VAL
PROCESS = (124, 126, 127)


def failed(status, stderr="iscsiadm: no\n", hint="", key="ISCSILogin"):
    cause = CommandFailed(["iscsiadm", "-m", "node"], status, stderr)
    return IscsiFailed("The login to X failed", key, cause, hint)


def test_every_status_has_a_meaning_of_its_own():
    assert sorted(MEANINGS) == [*OPEN_ISCSI, *PROCESS]
    assert len({meaning.sentence for meaning in MEANINGS.values()}) == len(MEANINGS)
    names = [MEANINGS[status].name for status in OPEN_ISCSI]
    assert all(names) and len(set(names)) == len(names)


@pytest.mark.parametrize("status", [*OPEN_ISCSI, *PROCESS, 99, -9])
def test_a_failure_says_what_failed_why_and_what_to_do(status):
    error = failed(status)

    meaning = meaning_of(status)
    assert str(error).startswith(f"The login to X failed: {meaning.sentence}. {meaning.advice}")
    assert f"`iscsiadm -m node` ended with status {status}: iscsiadm: no." in str(error)
    assert meaning.advice.endswith(".") and not meaning.sentence.endswith(".")
    assert error.status == status and error.exit_status == 6
    assert error.sm_key == meaning.sm_key or (not meaning.sm_key and error.sm_key == "ISCSILogin")


def test_a_status_that_no_release_had_is_reported_all_the_same():
    assert "a status that no release had so far" in str(failed(99))


def test_what_failed_decides_where_the_status_does_not():
    assert failed(1, key="ISCSILogout").sm_key == "ISCSILogout"
    assert failed(20, key="ISCSILogout").sm_key == "ISCSIDaemon"


def test_silence_is_said():
    assert str(failed(1, stderr="")).endswith("no message.")


def test_a_hint_takes_the_place_of_the_advice():
    assert "Do this." in str(failed(24, hint="Do this."))
    assert MEANINGS[24].advice not in str(failed(24, hint="Do this."))


@pytest.mark.parametrize(
    "label, status, with_chap, incoming, words",
    [
        ("chap wrong secret: login", 24, True, False, "Check the CHAP user and secret"),
        ("chap wrong user: login", 24, True, False, "Check the CHAP user and secret"),
        ("chap missing: login", 24, False, False, "no CHAP user was given"),
        ("acl: login", 24, False, False, "does not allow this initiator name"),
        ("mutual wrong: login", 19, True, True, "the incoming CHAP user or secret is wrong"),
        ("mutual wrong user: login", 19, True, True, "the incoming CHAP user or secret is wrong"),
        ("disabled: login", 8, False, False, "not available"),
        ("unknown iqn: login", 8, False, False, "not available"),
        ("closed port: login", 8, False, False, "did not take the connection"),
        ("mute: login", 11, False, False, "took the connection and did not answer"),
        ("login again", 15, False, False, "there is such a session already"),
        ("login without iscsid", 20, False, False, "iscsid does not run"),
        ("login without iscsid, no record", 21, False, False, "no such record"),
        ("rescan of no session", 22, False, False, "the kernel has no such session"),
        ("iscsid killed: logout after restart without record", 32, False, False, "lost its target"),
        ("iname: update", 7, False, False, "does not accept a parameter"),
    ],
)
def test_what_the_real_one_did(label, status, with_chap, incoming, words):
    seen, _, stderr = transcript(label)

    assert seen == status
    assert words in str(failed(status, stderr, login_hint(status, with_chap, incoming)))
