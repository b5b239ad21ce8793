# SPDX-License-Identifier: LGPL-2.1-only
"""Records of relvmoiscsi in other_config of pool objects: one small JSON object per key."""

import json
from typing import Any, Dict, Mapping

from relvmoiscsi import untrusted
from relvmoiscsi.pool.calls import Calls, passing

#: of a record. Others may write 300 KiB in a call, and any number of keys
_MOST_CHARACTERS, _MOST_VALUES = 1 << 16, 1000


def text_of(values: Mapping[str, Any]) -> str:
    """Return a record as the value of a key: equal texts for equal records."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def values_of(text: str) -> Dict[str, Any]:
    """Return the record in the value of a key. Raises ValueError for another value, and for a large value."""
    return untrusted.object_of(text, _MOST_CHARACTERS, _MOST_VALUES)


def add(calls: Calls, kind: str, ref: str, key: str, text: str) -> None:
    """Add a key, and leave an existing key unchanged. Raises PoolFailure.

    A connection repeats a call whose answer was lost, so this run may have added the key already.
    """
    with passing("MAP_DUPLICATE_KEY"):
        calls.call(kind + ".add_to_other_config", ref, key, text)
