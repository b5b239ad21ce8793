# SPDX-License-Identifier: LGPL-2.1-only
"""What more than one room of tests needs."""

import logging
import pickle
import re
import sys
import syslog
from functools import lru_cache

import pytest

from kit import shell
from kit.examples import IS_36
from kit.streams import Terminal
from relvmoiscsi import cli, json_answer
from relvmoiscsi.cli import parser
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.formats.lvm import text_format, vg
from relvmoiscsi.host.xapi import rpc
from relvmoiscsi.iscsi.link import Link


@pytest.fixture(autouse=True, scope="session")
def texts_are_parsed_once():
    """Many tests look at the same few LUNs again and again, and at the same few pools. A text of LVM gives one tree,
    which nobody changes. Of an answer of xapi each reader has a copy.
    """
    read = lru_cache(maxsize=64)(lambda answer, result=rpc.result: pickle.dumps(result(answer)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vg, "parse", lru_cache(maxsize=64)(text_format.parse))
        patch.setattr(rpc, "result", lambda answer: pickle.loads(read(answer)))
        yield


problems = []  #: of the answers and messages of the present test


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    """No fixture, which would take a fifth of a millisecond of each test."""
    found, problems[:] = list(problems), []
    assert found == []


@pytest.fixture(autouse=True, scope="session")
def each_answer_is_in_the_schema():
    """Every answer of a command or of the plugin, of whatever test, is what the schema says."""
    if IS_36:
        yield
        return
    from kit import answers  # noqa: PLC0415 - the validator is not on Python 3.6

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_answer, "json", answers.noted(problems))
        yield


#: texts of others that a message hands on: an answer of the driver or of xapi, and what a host says of a LUN
HANDED_ON = re.compile(
    r"type to attach it|Its state is | its probe reports | are unknown: |\A[A-Za-z.]+[.][A-Za-z_]+: |\Axapi answered "
)
QUOTED = re.compile(r"""(?<![\w\\])(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")  #: names, as `repr` writes them


@pytest.fixture(autouse=True, scope="session")
def no_message_has_advice():
    """What a person does next is the advice of an error, and no part of its message, whoever catches the error.

    An answer of a command is checked by kit.shell.
    """

    def put(error, name, value):
        object.__setattr__(error, name, value)
        if name == "message" and not HANDED_ON.search(value) and shell.ADVICE.search(QUOTED.sub("''", value)):
            problems.append(value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RelvmoiscsiError, "__setattr__", put)
        yield


@pytest.fixture
def round_trips(monkeypatch):
    """What sessions over iSCSI have waited for, in order: each wait is a round trip."""
    waits, wait = [], Link.wait

    def counted(link, is_done, what):
        if not is_done():
            waits.append(what)
        wait(link, is_done, what)

    monkeypatch.setattr(Link, "wait", counted)
    return waits


@pytest.fixture
def smlog(monkeypatch):
    """The lines that went to SMlog: [(priority, text)]; nothing goes to this machine's."""
    lines = []
    monkeypatch.setattr(syslog, "syslog", lambda priority, text: lines.append((priority, text)))
    logger = logging.getLogger("relvmoiscsi")
    handlers, level = list(logger.handlers), logger.level
    yield lines
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.fixture(scope="session")
def parsers_that_stay():
    """The parser of a command is made once, for all runs in this process: of `pool` it takes longer than most runs."""
    kept = lru_cache(maxsize=None)(parser.make_parser)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parser, "make_parser", lambda whole: kept(tuple(whole)))
        yield


@pytest.fixture
def command(capsys, parsers_that_stay):
    """Runs the command in this process; see `shell`."""

    def run(*argv):
        argv = [str(part) for part in argv]
        capsys.readouterr()
        try:
            status = cli.main(argv)
        except SystemExit as ended:
            status = ended.code
        out, err = capsys.readouterr()
        ran = shell.Ran(status, out, err)
        shell.verify(argv, ran)
        return ran

    return run


@pytest.fixture
def name_pool(monkeypatch):
    """Makes a simulated pool the one that the command talks to."""

    def name(pool):
        for key, value in pool.environment.items():
            monkeypatch.setenv(key, value)

    return name


@pytest.fixture
def terminal():
    """A terminal that shows what was written to it."""
    return Terminal()


@pytest.fixture
def type_in(monkeypatch):
    """Puts somebody at a terminal, who types a text and then no more."""
    return lambda text: monkeypatch.setattr(sys, "stdin", Terminal(text))
