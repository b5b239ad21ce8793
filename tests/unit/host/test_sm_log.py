# SPDX-License-Identifier: LGPL-2.1-only
"""SMlog gets one line for each record, in SM's form, and never a secret."""

import logging
import os
import syslog

import pytest

from kit.driver_calls import SESSION
from relvmoiscsi.host import sm_log as module
from relvmoiscsi.host.sm_log import MASK, SmLogHandler

HEAD = f"[{os.getpid()}] relvmoiscsi: "


@pytest.fixture
def log():
    """A logger of its own, whose only handler is SMlog's."""
    logger = logging.Logger("test")  # noqa: LOG001 - not in the tree of loggers, so nothing of it stays
    logger.addHandler(SmLogHandler())
    return logger


def hide(log, secret):
    log.handlers[0].hide(secret)


def test_it_is_the_log_of_sm_with_its_priorities_and_lines(log, smlog, monkeypatch):
    log.debug("nobody reads this")
    log.info("the LUN %s is %s", "3600", "sdc")
    log.warning("b")
    log.error("c")

    lines = [(syslog.LOG_INFO, "the LUN 3600 is sdc"), (syslog.LOG_WARNING, "b"), (syslog.LOG_ERR, "c")]
    assert smlog == [(priority, HEAD + text) for priority, text in lines]
    opened = []
    monkeypatch.setattr(syslog, "openlog", lambda *arguments: opened.append(arguments))
    SmLogHandler()
    assert opened == [("SM", 0, syslog.LOG_LOCAL2)]


@pytest.mark.parametrize(
    "said, line",
    [
        ("a\nb\r\nc\rd\u2028e\n", "a | b | c | d | e"),
        ("\x1b[31m \0 \udcff \u65e5", "\\x1b[31m \\x00 \\xff \u65e5"),
        ("\x9b31m \u202egpj.exe \u2066a\u2069", "\\x9b31m \\u202egpj.exe \\u2066a\\u2069"),
        (f"session_ref is {SESSION}, sr_ref is OpaqueRef:NULL, task DummyRef:|a|SR.create",
         f"session_ref is OpaqueRef:{MASK}, sr_ref is OpaqueRef:{MASK}, task DummyRef:|a|SR.create"),
    ],
    ids=["several lines become one", "characters that syslog does not take",
         "C1 and bidirectional characters", "no reference of a session"],
)  # fmt: skip
def test_what_becomes_of_a_message(log, smlog, said, line):
    log.info(said)

    assert [text for _, text in smlog] == [HEAD + line]


@pytest.mark.parametrize(
    "secret", ["hunter2hunter2", "a'b\\c\"d", "p\u00e4ss w\u00f6rd", "\u65e5\u672c", "two\nlines", "x{}%s"]
)
def test_a_secret_is_masked_however_it_is_printed(log, smlog, secret):
    hide(log, secret)

    log.info("%s, %r, %s, %s", secret, secret, {"chappassword": secret}, ["iscsiadm", "-v", secret])
    log.error("%s%s", secret, secret)

    assert [text for _, text in smlog if secret in text or repr(secret)[1:-1] in text] == []
    assert smlog[1][1] == HEAD + MASK + MASK


def test_a_secret_within_another_does_not_uncover_it_nor_does_an_empty_one_mask_all(log, smlog):
    for secret in ("abc", "xxabcyy", ""):
        hide(log, secret)

    log.info("xxabcyy abc")

    assert smlog[0][1] == HEAD + MASK + " " + MASK
    assert SmLogHandler(["abc", ""]).masked("abc and d") == MASK + " and d", "given at the start"


def test_a_log_that_fails_is_silent(log, monkeypatch, capsys):
    def fail(*_):
        raise ValueError("embedded null character")

    monkeypatch.setattr(syslog, "syslog", fail)
    log.info("a")
    log.info("%d", "no number")

    assert capsys.readouterr() == ("", "")


def test_sm_s_own_switch_is_honoured(log, smlog, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "NO_LOG_FILE", str(tmp_path / "no_sm_log"))
    log.info("a")
    (tmp_path / "no_sm_log").touch()
    log.info("b")

    assert [text for _, text in smlog] == [HEAD + "a"]
