# SPDX-License-Identifier: LGPL-2.1-only
"""A finding: the result of one check on a host; and the JSON form for other hosts."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi import untrusted
from relvmoiscsi.json_answer import answer_text

OK = "ok"
WARNING = "warning"  #: works, and the administrator should know
PROBLEM = "problem"
UNKNOWN = "unknown"  #: the check was impossible; without this result the host is not ready
STATUSES = (OK, WARNING, UNKNOWN, PROBLEM)  #: from harmless to worst

AS_ROOT = "Run `relvmoiscsi doctor` as root for a complete check."

_LONGEST = 2000  #: characters of a text that another host sent


class Finding(NamedTuple):
    """The result of one check."""

    name: str  #: of the check: "whitelist"
    status: str  #: one of STATUSES
    sentence: str
    advice: str = ""  #: advice for the administrator; only an ok finding may have none
    host: str = ""  #: name of the host; "" is the host that runs the check

    def facts(self) -> Dict[str, str]:
        return {
            "check_name": self.name,
            "check_status": self.status,
            "sentence": self.sentence,
            "advice": self.advice,
            "host": self.host,
        }


def ok(name: str, sentence: str) -> Finding:
    return Finding(name, OK, sentence)


def warning(name: str, sentence: str, advice: str) -> Finding:
    return Finding(name, WARNING, sentence, advice)


def problem(name: str, sentence: str, advice: str) -> Finding:
    return Finding(name, PROBLEM, sentence, advice)


def unknown(name: str, sentence: str, advice: str) -> Finding:
    return Finding(name, UNKNOWN, sentence, advice)


def reason(findings: Sequence[Finding]) -> Optional[Finding]:
    """Return why the host is not ready; None if it is.

    The first problem counts, because later problems often follow from the first; without a problem, an unknown.
    """
    return next((one for status in (PROBLEM, UNKNOWN) for one in findings if one.status == status), None)


def to_json(version: str, findings: Sequence[Finding]) -> str:
    """Return the answer of the host plugin."""
    return answer_text("plugin doctor", {"version": version, "findings": [finding.facts() for finding in findings]})


def from_json(text: str) -> Tuple[str, List[Finding]]:
    """Return the version and the findings of another host. Raises ValueError for another answer."""
    answer = untrusted.object_of(text)
    if not isinstance(answer.get("findings"), list):
        raise ValueError("it is no list of findings")
    version, found = _word(answer, "version"), []
    for item in answer["findings"]:
        if not isinstance(item, dict) or item.get("check_status") not in STATUSES:
            raise ValueError("it has a finding without a check_status that is known here")
        texts = _word(item, "sentence"), _word(item, "advice")
        found.append(Finding(_word(item, "check_name"), item["check_status"], *texts))
    return version, found


def _word(item: Any, key: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise ValueError(f"it has no {key}")
    return value[:_LONGEST]
