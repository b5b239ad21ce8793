# SPDX-License-Identifier: LGPL-2.1-only
"""The JSON of every answer: of each command with --json, of the file of --map-out, and of the host plugin.

An answer begins with `command` and `json_version`. answers.schema.json, beside this module, describes each answer under
the name of its command.
"""

import json
from typing import Any, Mapping, Optional

#: grows when a key goes or changes its meaning; a new key changes no version
JSON_VERSION = 1


def answer_text(command: str, facts: Mapping[str, Any], indent: Optional[int] = None) -> str:
    """Return the answer of a command as JSON. `command` has the words of the command, or `plugin` and the function."""
    return json.dumps({"command": command, "json_version": JSON_VERSION, **facts}, indent=indent)
