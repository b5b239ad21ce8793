# SPDX-License-Identifier: LGPL-2.1-only
"""The URL of a LUN: what it names, and that nothing of one that does not parse is repeated."""

import pytest

from relvmoiscsi.errors import UsageError
from relvmoiscsi.iscsi import Portal
from relvmoiscsi.iscsi.url import Url, parse_url

IQN = "iqn.2026-01.test:array"
TEN = Portal("10.0.0.1")


@pytest.mark.parametrize(
    "text, url",
    [
        ("iscsi://10.0.0.1", Url(TEN)),
        ("iscsi://10.0.0.1/", Url(TEN)),
        ("ISCSI://san.example:860", Url(Portal("san.example", 860))),
        ("iscsi://[fd00::1]", Url(Portal("fd00::1"))),
        ("iscsi://[fd00::1]:860/" + IQN, Url(Portal("fd00::1", 860), "", IQN)),
        ("iscsi://[fe80::1%25eth0]", Url(Portal("fe80::1%eth0"))),
        (f"iscsi://10.0.0.1/{IQN}/", Url(TEN, "", IQN)),
        (f"iscsi://10.0.0.1/{IQN}/0", Url(TEN, "", IQN, 0)),
        (f"iscsi://10.0.0.1/{IQN}/16000000", Url(TEN, "", IQN, 16000000)),
        ("iscsi://10.0.0.1/iqn.2026-01.test%3aarray%2Fone/7", Url(TEN, "", "iqn.2026-01.test:array/one", 7)),
        (f"iscsi://alice@10.0.0.1/{IQN}/1", Url(TEN, "alice", IQN, 1)),
        (f"iscsi://alice@san.example@10.0.0.1/{IQN}/1", Url(TEN, "alice@san.example", IQN, 1)),
    ],
)
def test_a_url_names(text, url):
    assert parse_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "iscsi://alice%sesame@10.0.0.1/iqn.a/1",
        "iscsi://alice:sesame@10.0.0.1/iqn.a/1",
        "iscsi://alice%ses@ame@10.0.0.1/iqn.a/1",
        "iscsi://alice%ses/ame@10.0.0.1/iqn.a/1",
        "iscsi://%sesame@10.0.0.1",
    ],
)
def test_a_password_is_refused_and_not_repeated(text):
    with pytest.raises(UsageError, match="list of processes.*LIBISCSI_CHAP_PASSWORD or --chap-file") as caught:
        parse_url(text)

    for part in ("sesame", "ses", "ame@"):
        assert part not in caught.value.message.replace("processes", "").replace("password", "")


@pytest.mark.parametrize(
    "text",
    [
        "iscsi://",
        "iscsi://:3260",
        "iscsi://sesame:port",
        "iscsi://sesame:0",
        "iscsi://sesame:65536",
        "iscsi://alice%sesame/iqn.a/1",  # the `@` is missing
        "iscsi://fd00::1",
        "iscsi://[fd00::1",
        "iscsi://@sesame",
        "iscsi://10.0.0.1//1",
        "iscsi://10.0.0.1/iqn.a/sesame",
        "iscsi://10.0.0.1/iqn.a/-1",
        "iscsi://10.0.0.1/iqn.a/16777216",
        "iscsi://10.0.0.1/iqn.a/1/sesame",
        "iscsi://10.0.0.1/iqn.sesame%0a/1",
        "iscsi://10.0.0.1/iqn.a/1?target_password=sesame",
        "http://sesame/",
    ],
)
def test_what_is_no_url_is_an_error_of_usage_and_not_repeated(text):
    with pytest.raises(UsageError) as caught:
        parse_url(text)

    assert "sesame" not in str(caught.value)
