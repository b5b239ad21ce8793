# SPDX-License-Identifier: LGPL-2.1-only
"""The argument DEVICE of a command, and the login options for a URL, as a source (lun/source.py)."""

import argparse
from typing import Any

from relvmoiscsi.cli.output import Answer
from relvmoiscsi.errors import UsageError
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.lun.lun_url import is_url, parse_url
from relvmoiscsi.lun.source import LunSource, source_at

HOST = THIS_HOST


def device_word(word: str) -> str:
    """Return the argument. Raises ArgumentTypeError for an empty word, as of a script whose variable is not set.

    Raises ArgumentTypeError for a malformed URL; the message does not repeat the URL.
    """
    if not word.strip():
        raise argparse.ArgumentTypeError("the name of the device is empty")
    if is_url(word):
        try:
            parse_url(word)
        except UsageError as problem:
            raise argparse.ArgumentTypeError(problem.message) from None
    return word


def takes_device(parser: argparse.ArgumentParser, **more: Any) -> argparse.ArgumentParser:
    """Add DEVICE and its options to the parser; return the parser. `more` is for the argument DEVICE."""
    what = "block device, image file, or iscsi://[user@]host[:port]/iqn/lun"
    parser.add_argument("device", metavar="DEVICE", type=device_word, help=what, **more)
    return takes_device_options(parser)


def takes_device_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options of a device to the parser. The command refuses the login options without a URL."""
    run = parser.get_default("run")

    def command(arguments: argparse.Namespace) -> Answer:
        _check_options(arguments)
        answer: Answer = run(arguments)
        return answer

    parser.set_defaults(run=command)
    what = "with a URL: initiator name to log in with; default: the name of this machine"
    parser.add_argument("--initiator-name", metavar="IQN", help=what)
    what = "with a URL: file with CHAP users and passwords, one NAME=VALUE per line"
    parser.add_argument("--chap-file", metavar="FILE", help=what)
    what = "refuse an image file and a URL, for callers whose rights must not exceed block devices"
    parser.add_argument("--block-device", action="store_true", help=what)
    return parser


def _check_options(arguments: argparse.Namespace) -> None:
    words = [getattr(arguments, name, None) for name in ("device", "lun", "original")]
    words += getattr(arguments, "devices", [])
    if any(word is not None and is_url(word) for word in words):
        if arguments.block_device:
            raise UsageError("--block-device needs the path of a block device: a URL is none.")
        return
    for name in ("--initiator-name", "--chap-file"):
        if getattr(arguments, name[2:].replace("-", "_")) is not None:
            raise UsageError(f"{name} needs the URL of a LUN: a path needs no login.")


def source_of(arguments: argparse.Namespace, word: str) -> LunSource:
    """Return what an argument DEVICE names. Raises UsageError, NotFound, Refused."""
    if not is_url(word):
        return source_at(word, HOST, arguments.block_device)
    from relvmoiscsi.cli.url_login import url_of  # noqa: PLC0415 - a path needs no initiator

    return url_of(arguments, word, HOST)
