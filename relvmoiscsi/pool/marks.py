# SPDX-License-Identifier: LGPL-2.1-only
"""Our records in other_config of objects of the pool: small JSON objects, one in each key."""

import json
from typing import Any, Dict, Mapping

from relvmoiscsi.pool.calls import Calls, passing


def text_of(values: Mapping[str, Any]) -> str:
    """A record as the value of a key: the same text for the same values."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def values_of(text: str) -> Dict[str, Any]:
    """The record that the value of a key holds. Raises ValueError for a value that is no record."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def add(calls: Calls, kind: str, ref: str, key: str, text: str) -> None:
    """Add a key. A key that is there stays as it is: XenAPI repeats a call whose answer was lost. Raises
    PoolFailure.
    """
    with passing("MAP_DUPLICATE_KEY"):
        calls.call(kind + ".add_to_other_config", ref, key, text)
