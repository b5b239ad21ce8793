# SPDX-License-Identifier: LGPL-2.1-only
"""The report of a run, for an issue: JSON, and the same content as reStructuredText. Pure.

The report has no password and no address of the pool: a host is shown by number and release.
"""

import re
from typing import Any, Dict, Iterable, List, Mapping, Sequence

from acceptance.day import FAILED, INTERRUPTED, PASSED, Row
from relvmoiscsi import __version__
from relvmoiscsi.wording import printable

#: keys of host.software_version with the release of a host
_RELEASE = ("product_brand", "product_version", "platform_version", "xapi", "xapi_build", "sm")


def facts(
    run: str, sr: Mapping[str, Any], hosts: Iterable[Mapping[str, Any]], rows: Sequence[Row], notes: Sequence[str]
) -> Dict[str, Any]:
    """Return the report. `hosts` are records, the master first."""
    statuses = {row.status for row in rows}
    result = next((status for status in (INTERRUPTED, FAILED) if status in statuses), PASSED)
    return {
        "run": run,
        "relvmoiscsi": __version__,
        "result": result.lower(),
        "sr_type": sr["type"],
        "hosts": [_release(host) for host in hosts],
        "steps": [row._asdict() for row in rows],
        "notes": list(notes),
    }


def _release(host: Mapping[str, Any]) -> Dict[str, str]:
    found = {name: str(host["software_version"][name]) for name in _RELEASE if name in host["software_version"]}
    return {**found, "multipathing": "on" if host["other_config"].get("multipathing") == "true" else "off"}


def page(report: Mapping[str, Any]) -> str:
    """Return the report as reStructuredText."""
    title = f"Acceptance run {report['run']}: {report['result']}"
    lines = [title, "=" * len(title), "", f"relvmoiscsi {report['relvmoiscsi']}, SR of type {report['sr_type']}.", ""]
    for number, host in enumerate(report["hosts"], 1):
        lines.append(f"- host {number}: " + ", ".join(f"{name} {text}" for name, text in host.items()))
    lines += ["", ".. list-table::", "   :header-rows: 1", ""]
    lines += _cells("step", "result", "seconds", "expected", "what came")
    for row in report["steps"]:
        lines += _cells(row["name"], row["status"], str(row["seconds"]), row["expected"], row["came"])
    lines += [""] + [f"- {_plain(note)}" for note in report["notes"]]
    return "\n".join(lines) + "\n"


def _cells(*texts: str) -> List[str]:
    marks = ["   * - ", *["     - "] * (len(texts) - 1)]
    return [(mark + _plain(text)).rstrip() for mark, text in zip(marks, texts)]


def _plain(text: str) -> str:
    """Return the text on one line, with escapes for reStructuredText."""
    text = printable(" ".join(text.split())).replace("\\", "\\\\")
    for mark in "`*|_":
        text = text.replace(mark, "\\" + mark)
    return text


def redacted(value: Any, secrets: Sequence[str]) -> Any:
    """Return the value of JSON with no secret in a text. A secret such as "true" or "1" leaves numbers and names."""
    if isinstance(value, dict):
        return {name: redacted(each, secrets) for name, each in value.items()}
    if isinstance(value, list):
        return [redacted(each, secrets) for each in value]
    found = "|".join(map(re.escape, sorted(filter(None, secrets), key=len, reverse=True)))  # a URL before its host
    of_words = rf"(?<!\w)(?:{found})(?!\w)"  # not XenServer, for a master of the name xen
    return re.sub(of_words, "(removed)", value, flags=re.IGNORECASE) if found and isinstance(value, str) else value
