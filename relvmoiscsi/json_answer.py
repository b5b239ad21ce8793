# SPDX-License-Identifier: LGPL-2.1-only
"""The JSON of every answer: of each command with --json, of the file of --map-out, and of the host plugin.

An answer begins with `command` and `json_version`. answers.schema.json, beside this module, describes each answer under
the name of its command.
"""

import json
import re
from typing import Any, Mapping, Match, Optional

#: grows when a key goes or changes its meaning; a new key changes no version
JSON_VERSION = 1
#: each escape of JSON: a pair of surrogates (one character), a surrogate alone, or another escape
_ESCAPE = re.compile(r"\\(?:ud[89ab]..\\ud[c-f]..|u(d[89a-f])(..)|.)")


def answer_text(command: str, facts: Mapping[str, Any], indent: Optional[int] = None) -> str:
    r"""Return the answer of a command as JSON. `command` has the words of the command, or `plugin` and the function.

    A byte of an argument or a path that is no text is \xff, as in messages: strict readers refuse a surrogate alone.
    """
    text = json.dumps({"command": command, "json_version": JSON_VERSION, **facts}, indent=indent)
    return _ESCAPE.sub(_as_text, text)


def _as_text(escape: Match[str]) -> str:
    if not escape.group(1):
        return escape.group()
    is_byte = escape.group(1) == "dc" and escape.group(2) >= "80"
    return rf"\\x{escape.group(2)}" if is_byte else r"\ufffd"
