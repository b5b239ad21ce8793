# SPDX-License-Identifier: LGPL-2.1-only
"""The old-to-new map that people choose ids with: what `--json` prints, or as much of it as they like. Pure.

    {"sr":   {"old": UUID, "new": UUID},        "vg_id": {"old": ID, "new": ID},    "pv_id": ...,
     "vdis": [{"old": UUID, "new": UUID}, ...], "lvs":   [{"id": {"old": ID, "new": ID}}, ...],
     "other_uuids": {UUID: UUID, ...}}          UUIDs of what is gone: deleted records, dangling links

A map that is written by hand, or by `relvmoiscsi map --json`, has plain tables for everything: "uuids" and "lvm_ids",
old to new; "new_sr" is the new SR, as --sr-uuid gives it.

Where nothing is chosen, `derived_ids` tells the map of any LUN, from its new SR UUID and its old ids alone.
"""

from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from relvmoiscsi.errors import FormatError, Place, UsageError
from relvmoiscsi.formats.identity import IdMap, dashed, derived_lvm_id, derived_uuid, is_uuid, parse_lvm_id


def derived_ids(new_sr: str, old_ids: Iterable[str]) -> Dict[str, str]:
    """What old ids became, or will become, on the SR `new_sr`, unless something else was chosen: old to new.

    UUIDs, and LVM ids with or without their dashes; the new id is written like the old one. The old SR's own UUID
    does not belong here: it became `new_sr`. Raises UsageError for what is no id.
    """
    checked_uuid(new_sr)
    return {old: _derived_id(new_sr, old) for old in old_ids}


def _derived_id(new_sr: str, old: str) -> str:
    if is_uuid(old):
        return derived_uuid(new_sr, old)
    try:
        plain = _lvm_id(old)
    except UsageError as error:
        raise UsageError(
            f"{old!r} is neither a UUID (36 characters, lower case) nor an LVM id (32 letters and digits, in groups of "
            "6-4-4-4-4-4-6 or in one)."
        ) from error
    new = derived_lvm_id(new_sr, plain)
    return new if old == plain else dashed(new)


def read_map(facts: Mapping[str, Any], name: str) -> IdMap:
    """The ids that a map chooses; `name` is the file's. The SR of the result is not known yet: it is on the LUN.

    Raises UsageError for what is no map, for what is no id, and for two choices for one id.
    """
    try:
        uuids = _joined((checked_uuid(old), checked_uuid(new)) for old, new in _uuid_pairs(facts))
        lvm_ids = _joined((_lvm_id(old), _lvm_id(new)) for old, new in _lvm_id_pairs(facts))
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{name} is no old-to-new map as --json prints it.") from error
    return IdMap("", uuids, lvm_ids)


def chosen_sr(facts: Mapping[str, Any]) -> Optional[str]:
    """The new SR that `relvmoiscsi map --json` was asked about. Raises UsageError for what is no UUID."""
    return checked_uuid(facts["new_sr"]) if "new_sr" in facts else None


def _uuid_pairs(facts: Mapping[str, Any]) -> Iterable[Tuple[Any, Any]]:
    for pair in [facts.get("sr"), *facts.get("vdis", [])]:
        if pair:
            yield pair["old"], pair["new"]
    for key in ("other_uuids", "uuids"):
        yield from facts.get(key, {}).items()


def _lvm_id_pairs(facts: Mapping[str, Any]) -> Iterable[Tuple[Any, Any]]:
    for pair in [facts.get("vg_id"), facts.get("pv_id"), *(lv["id"] for lv in facts.get("lvs", []))]:
        if pair:
            yield pair["old"], pair["new"]
    yield from facts.get("lvm_ids", {}).items()


def _joined(pairs: Iterable[Tuple[str, str]]) -> Dict[str, str]:
    found: Dict[str, str] = {}
    for old, new in pairs:
        if found.setdefault(old, new) != new:
            raise UsageError(f"The map says that {old} becomes {found[old]}, and that it becomes {new}.")
    return found


def checked_uuid(text: Any) -> str:
    """Raises UsageError for anything that is no UUID."""
    if not isinstance(text, str) or not is_uuid(text):
        raise UsageError(f"{text!r} is no UUID as SM writes it: 36 characters, lower case.")
    if not text.strip("0-"):
        raise UsageError(f"{text} stands for no UUID at all.")
    return text


def contradictions(wanted: IdMap, sr_uuid: Optional[str], ids: IdMap) -> List[str]:
    """A phrase for every choice that a finished, or decided, run has made otherwise."""
    found = []
    if sr_uuid is not None and sr_uuid != ids.new_sr:
        found.append(f"the SR is {ids.new_sr}, not {sr_uuid}")
    for chosen, made in ((wanted.uuids, ids.uuids), (wanted.lvm_ids, ids.lvm_ids)):
        for old, new in sorted(chosen.items()):
            if made.get(old, new) != new:
                found.append(f"{old} has become {made[old]}, not {new}")
    return found


def _lvm_id(text: Any) -> str:
    """An LVM id of a map, without its dashes."""
    problem = f"{text!r} is no LVM id: 32 letters and digits, in groups of 6-4-4-4-4-4-6 or in one."
    try:
        plain = parse_lvm_id(text, "id", Place("the map", 0))
    except (AttributeError, FormatError) as error:
        raise UsageError(problem) from error
    if text not in (plain, dashed(plain)):
        raise UsageError(problem)
    return plain
