# SPDX-License-Identifier: LGPL-2.1-only
"""The word DEVICE: a block device, an image file, or the URL of a LUN behind iSCSI."""

import argparse

from relvmoiscsi.errors import UsageError
from relvmoiscsi.iscsi.url import parse_url

_SCHEME = "iscsi://"


def is_url(word: str) -> bool:
    """Whether the word is a URL, and no path."""
    return word[: len(_SCHEME)].lower() == _SCHEME


def device_word(word: str) -> str:
    """The same word, for a parser; a URL that does not parse is an error of usage, and is not repeated."""
    if is_url(word):
        try:
            parse_url(word)
        except UsageError as problem:
            raise argparse.ArgumentTypeError(problem.message) from None
    return word


def takes_device(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The same parser, which takes DEVICE, and what goes with a URL."""
    what = "block device, image file, or iscsi://[user@]host[:port]/iqn/lun"
    parser.add_argument("device", metavar="DEVICE", type=device_word, help=what)
    takes_login(parser)
    return parser


def check_login(arguments: argparse.Namespace) -> None:
    """Raises UsageError where an option says who logs in, and no word is a URL: nobody would heed the option."""
    words = [getattr(arguments, name, None) for name in ("device", "lun", "original")]
    if any(word is not None and is_url(word) for word in words):
        return
    for name in ("--initiator-name", "--chap-file"):
        if getattr(arguments, name[2:].replace("-", "_"), None) is not None:
            from relvmoiscsi.errors import UsageError  # noqa: PLC0415

            raise UsageError(f"{name} needs the URL of a LUN: a path needs no login.")


def takes_login(parser: argparse.ArgumentParser) -> None:
    """Have the parser take who logs in to the target of a URL."""
    parser.add_argument(
        "--initiator-name",
        metavar="IQN",
        help="with a URL: initiator name to log in with; default: the name of this machine",
    )
    parser.add_argument(
        "--chap-file", metavar="FILE", help="with a URL: file with CHAP users and passwords, one NAME=VALUE per line"
    )
