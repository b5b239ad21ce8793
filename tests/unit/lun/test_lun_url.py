# SPDX-License-Identifier: LGPL-2.1-only
"""The URL of a LUN: what it names, and that nothing of one that does not parse is repeated."""

import pytest

from relvmoiscsi.errors import UsageError
from relvmoiscsi.iscsi import Portal
from relvmoiscsi.lun.lun_url import Url, parse_url

IQN = "iqn.2026-01.test:array"
TEN = Portal("10.0.0.1")


@pytest.mark.parametrize(
    "text, url",
    [
        ("iscsi://10.0.0.1/", Url(TEN)),
        ("ISCSI://san.example:860", Url(Portal("san.example", 860))),
        ("iscsi://[fd00::1]:860/" + IQN, Url(Portal("fd00::1", 860), "", IQN)),
        ("iscsi://[fe80::1%25eth0]", Url(Portal("fe80::1%eth0"))),
        (f"iscsi://10.0.0.1/{IQN}/", Url(TEN, "", IQN)),
        (f"iscsi://10.0.0.1/{IQN}/0", Url(TEN, "", IQN, 0)),
        ("iscsi://10.0.0.1/iqn.2026-01.test%3aarray%2Fone/16000000", Url(TEN, "", IQN + "/one", 16000000)),
        (f"iscsi://alice@san.example@10.0.0.1/{IQN}/1", Url(TEN, "alice@san.example", IQN, 1)),
    ],
)
def test_a_url_names(text, url):
    assert parse_url(text) == url


@pytest.mark.parametrize("user", ["alice%sesame", "alice:sesame", "alice%ses@ame", "alice%ses/ame", "%sesame"])
def test_a_password_is_refused_and_not_repeated(user):
    with pytest.raises(UsageError, match="list of processes.*LIBISCSI_CHAP_PASSWORD or --chap-file") as caught:
        parse_url(f"iscsi://{user}@10.0.0.1/iqn.a/1")

    for part in ("sesame", "ses", "ame@"):
        assert part not in caught.value.message.replace("processes", "").replace("password", "")


@pytest.mark.parametrize(
    "text",
    ["http://sesame/"]
    + ["iscsi://" + rest for rest in ("", ":3260", "sesame:port", "sesame:0", "sesame:65536", "fd00::1", "[fd00::1")]
    + ["iscsi://@sesame", "iscsi://alice%sesame/iqn.a/1"]  # the `@` is missing
    + ["iscsi://10.0.0.1/" + rest for rest in ("/1", "iqn.a/sesame", "iqn.a/-1", "iqn.a/16777216", "iqn.a/1/sesame")]
    + ["iscsi://10.0.0.1/iqn.sesame%0a/1", "iscsi://10.0.0.1/iqn.a/1?target_password=sesame"],
)
def test_what_is_no_url_is_an_error_of_usage_and_not_repeated(text):
    with pytest.raises(UsageError) as caught:
        parse_url(text)

    assert "sesame" not in str(caught.value)
