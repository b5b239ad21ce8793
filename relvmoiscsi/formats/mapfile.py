# SPDX-License-Identifier: LGPL-2.1-only
"""The file in which an administrator chooses new ids (`--map`): the map that `--json` prints, or a part of it. Pure.

    {"old_sr": UUID, "new_sr": UUID,            "old_vg_id": ID, "new_vg_id": ID,    "old_pv_id": ...,
     "vdi_pairs": [{"old_vdi": UUID, "new_vdi": UUID}, ...],
     "lv_pairs": [{"old_lv_id": ID, "new_lv_id": ID}, ...],
     "other_uuids": {UUID: UUID, ...}}          UUIDs in deleted records, and in links to deleted VDIs

`relvmoiscsi map --json` and administrators write two tables instead: "uuids" and "lvm_ids", old to new. "new_sr"
without "old_sr" is the new SR UUID, as --sr-uuid gives it.

Without a choice, `derived_ids` computes the map of any LUN from the new SR UUID and the old ids.
"""

from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple

from relvmoiscsi.errors import UsageError
from relvmoiscsi.formats.identity import IdMap, dashed, derived_lvm_id, derived_uuid, is_lvm_id, is_uuid
from relvmoiscsi.wording import said

_UUID_FORM = "a UUID has 36 characters, not all zeros"
_LVM_ID_FORM = "an LVM id has 32 letters and digits, in groups of 6-4-4-4-4-4-6 or in one"


#: of a file that an administrator writes; an answer of `--json` has more keys
_KEYS = (
    *("old_sr", "new_sr", "uuids", "lvm_ids", "vdi_pairs", "lv_pairs", "other_uuids"),
    *("old_vg_id", "new_vg_id", "old_pv_id", "new_pv_id"),
)
_PAIRED = ("vg_id", "pv_id")  #: behind old_ and new_


def derived_ids(new_sr: str, old_ids: Iterable[str]) -> Dict[str, str]:
    """The new ids that a run without a map gives to `old_ids` on the SR `new_sr`: old to new.

    An old id is a UUID, or an LVM id with or without dashes. A new LVM id has dashes where the old LVM id has dashes.
    Do not pass the UUID of the old SR: the old SR UUID becomes `new_sr`. Raises UsageError for text that is not an id.
    """
    new_sr = checked_uuid(new_sr)
    found: Dict[str, str] = {}
    for old in old_ids:
        folded = old.lower()
        if is_uuid(folded):
            found[folded] = derived_uuid(new_sr, folded)
            continue
        try:
            plain = _lvm_id(old)
        except UsageError as error:
            raise UsageError(
                f"{old!r} is neither a UUID (36 characters) nor an LVM id (32 letters and digits, in "
                "groups of 6-4-4-4-4-4-6 or in one)."
            ) from error
        new = derived_lvm_id(new_sr, plain)
        found[old] = new if old == plain else dashed(new)
    return found


def read_map(facts: Mapping[str, Any], name: str) -> IdMap:
    """The ids that a map chooses; `name` is the name of the file. `sr` of the result is empty: only the LUN knows `sr`.

    Raises UsageError for facts that are not a map or have its old keys, for a map that chooses nothing, for text that
    is not an id, and for two new ids of one old id.
    """
    # without these refusals the map would be taken as empty, and the LUN would get other ids
    keys = f"The keys of a map: {', '.join(_KEYS)}."
    try:
        others = sorted({"vdis", "lvs"} & set(facts))
        if others:
            problem = f"{name} has the keys {' and '.join(others)}: the answer of another command or of an earlier"
            raise UsageError(f"{problem} release. A map has vdi_pairs and lv_pairs, or uuids and lvm_ids.")
        unknown = sorted(set(facts) - set(_KEYS))
        if "json_version" not in facts and unknown:
            raise UsageError(f"{name} has a key that no map has: {said(unknown[0])}. {keys}")
        uuids = [(facts["old_sr"], facts["new_sr"])] if "old_sr" in facts else []
        uuids += [(vdi["old_vdi"], vdi["new_vdi"]) for vdi in facts.get("vdi_pairs", [])]
        uuids += [*facts.get("other_uuids", {}).items(), *facts.get("uuids", {}).items()]
        lvm_ids = [
            (facts[f"old_{key}"], facts[f"new_{key}"]) for key in _PAIRED if {f"old_{key}", f"new_{key}"} & set(facts)
        ]
        lvm_ids += [(lv["old_lv_id"], lv["new_lv_id"]) for lv in facts.get("lv_pairs", [])]
        lvm_ids += facts.get("lvm_ids", {}).items()
        if not uuids and not lvm_ids and "new_sr" not in facts:
            raise UsageError(f"{name} chooses no id. {keys}")
        return IdMap(
            "", _checked(uuids, checked_uuid, name, _UUID_FORM), _checked(lvm_ids, _lvm_id, name, _LVM_ID_FORM)
        )
    except KeyError as missing:
        raise UsageError(f"{name} has an id without {missing}: a map has each old id beside its new id.") from missing
    except (TypeError, AttributeError) as error:
        raise UsageError(f"{name} is no old-to-new map as --json prints it.") from error


def chosen_sr(facts: Mapping[str, Any]) -> Optional[str]:
    """The new SR UUID in a map of `relvmoiscsi map --json`; None without one. Raises UsageError for a wrong UUID.

    A map of a LUN has the old SR beside the new SR: `read_map` returns both.
    """
    if "new_sr" not in facts or "old_sr" in facts:
        return None
    try:
        return checked_uuid(facts["new_sr"])
    except UsageError:
        raise UsageError("The new_sr of the map is not a UUID of 36 characters.") from None


def _checked(pairs: Iterable[Tuple[Any, Any]], checked: Callable[[Any], str], name: str, form: str) -> Dict[str, str]:
    """The pairs with checked ids. The message shows no text of the file, which the caller may have no right to read."""
    found: Dict[str, str] = {}
    for number, pair in enumerate(pairs, 1):
        try:
            old, new = map(checked, pair)
        except UsageError:
            raise UsageError(f"{name}: an id of pair {number} is wrong: {form}.") from None
        if found.setdefault(old, new) != new:
            raise UsageError(f"The map says that {old} becomes {found[old]}, and that it becomes {new}.")
    return found


def checked_uuid(text: Any) -> str:
    """A UUID, not all zeros, in lower case as SM writes UUIDs: a caller may give capitals. Raises UsageError."""
    if not isinstance(text, str) or not is_uuid(text.lower()):
        raise UsageError(f"{text!r} is not a UUID of 36 characters.")
    if not text.strip("0-"):
        raise UsageError(f"{text} is the nil UUID: no SR and no VDI can have it.").advising("Choose another UUID.")
    return text.lower()


def contradictions(wanted: IdMap, sr_uuid: Optional[str], ids: IdMap) -> List[str]:
    """A phrase for each chosen id that differs from the ids of a run, `ids`.

    `wanted` and `sr_uuid` are the choices of the caller. The run is done, or was cut after its ids were decided.
    """
    found = []
    if wanted.sr and ids.sr and wanted.sr != ids.sr:
        found.append(f"the old SR was {ids.sr}, not {wanted.sr}")
    if sr_uuid is not None and sr_uuid != ids.new_sr:
        found.append(f"the SR is {ids.new_sr}, not {sr_uuid}")
    for chosen, made in ((wanted.uuids, ids.uuids), (wanted.lvm_ids, ids.lvm_ids)):
        for old, new in sorted(chosen.items()):
            if made.get(old) != new:
                became = f"has become {made[old]}, not" if old in made else "has not become"
                found.append(f"{old} {became} {new}")
    return found


def _lvm_id(text: Any) -> str:
    """An LVM id of a map, without dashes. Raises UsageError."""
    plain = text.replace("-", "") if isinstance(text, str) else ""
    if not is_lvm_id(plain) or text not in (plain, dashed(plain)):
        raise UsageError(f"{text!r} is no LVM id.")
    return plain
