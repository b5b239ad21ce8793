# SPDX-License-Identifier: LGPL-2.1-only
"""What the command says with --help, as a part of a page: the directive `commands`. It knows argparse, and no command.

Sphinx builds the HTML page and the manual page from it, so a command and its options are described in one place.
"""

import argparse
import re

from sphinx.util.docutils import SphinxDirective

from relvmoiscsi.cli.parser import make_parser

#: options of every command, which the page describes once
COMMON = {"-h", "--json", "-v"}


class Commands(SphinxDirective):
    """Each command with its usage, its description, its arguments and its options."""

    def run(self):
        text = "\n\n".join(_command(name, parser) for name, parser in parsers(make_parser()))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def parsers(parser, names=()):
    """Every command that --help lists, and each of its commands: (its words, its parser)."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for listed in action._choices_actions:
                words = (*names, listed.dest)
                yield " ".join(words), action.choices[listed.dest]
                yield from parsers(action.choices[listed.dest], words)


def _command(name, parser):
    usage = " ".join(parser.format_usage().split())
    usage = usage.replace("usage: " + parser.prog, f"**{parser.prog}**", 1)
    blocks = [name + "\n" + "~" * len(name), usage]
    blocks += [_block(text) for text in parser.description.split("\n\n")]
    actions = [each for each in parser._actions if each.help and not COMMON.intersection(each.option_strings)]
    blocks += [f"{each.metavar}\n   {_text(each.help)}" for each in actions if not each.option_strings and each.metavar]
    blocks += ["\n".join(f"{_option(each)}\n   {_text(each.help)}" for each in actions if each.option_strings)]
    return "\n\n".join(block for block in blocks if block)


def _option(action):
    value = "" if action.nargs == 0 else " " + action.metavar
    return ", ".join(option + value for option in action.option_strings)


def _block(text):
    """A paragraph; or, where its first line ends in a colon, a title and lines that stay lines."""
    first, _, rest = text.partition("\n")
    text = text[0].upper() + text[1:]
    if first.endswith(":") and rest.startswith("  "):
        return first.capitalize() + ":\n\n" + rest
    return _text(text)


def _text(text):
    return re.sub("`([^`]*)`", r"``\1``", text)


def setup(app):
    """Called by Sphinx."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
