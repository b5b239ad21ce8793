# SPDX-License-Identifier: LGPL-2.1-only
"""The command that checks whether this host and its pool are ready for SR.create type=relvmoiscsi."""

import os
from typing import List

from relvmoiscsi import __version__
from relvmoiscsi import doctor as health
from relvmoiscsi.cli.output import Answer, Maker, waiting
from relvmoiscsi.doctor.finding import PROBLEM, STATUSES, UNKNOWN, WARNING, Finding, reason
from relvmoiscsi.errors import Refused
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.wording import printable, said

HOST = THIS_HOST

_DOCTOR = """\
Run the command as root in dom0 of one host of the pool. Run it after each installation, when `xe sr-create` with
type=relvmoiscsi fails, and when CloudStack no longer finds the driver.

The command checks this host and xapi's records. Through xapi it also checks the other hosts of the pool. It
changes nothing. The last line begins with "Ready" or "Not ready". After "Not ready" the line has the reason,
and what to do.

exit status:
  0 ready, maybe with warnings     4 not ready, or a check was impossible

example:
  relvmoiscsi doctor"""


def add_doctor(make: Maker) -> None:
    make(lambda _arguments: _doctor, _DOCTOR)


def _doctor() -> Answer:
    with waiting("the hosts of the pool"):
        found = health.examine(HOST._replace(is_superuser=os.geteuid() == 0))
    lines: List[str] = []  # the worst findings last, then the verdict
    for finding in sorted(found, key=lambda finding: STATUSES.index(finding.status)):
        lines.append(printable(f"{finding.status:9}{finding.name:14}{_sentence(finding)}"))
        if finding.advice:
            lines.append(printable(" " * 23 + "What to do: " + finding.advice))
    counts = []
    for status, one, many in _COUNTED:
        number = sum(finding.status == status for finding in found)
        counts += [f"{number} {one if number == 1 else many}"] if number else []
    first, said = reason(found), ", ".join(counts)
    if first is None:
        verdict = f"Ready, with {said}." if said else "Ready."
    else:
        verdict = f"Not ready ({said}): {_sentence(first)} {first.advice}"
    facts = {
        "ready": first is None,
        "verdict": verdict,
        "version": __version__,
        "findings": [finding.facts() for finding in found],
    }
    text, is_ready = "\n".join([*lines, "", printable(verdict)]), first is None
    return Answer(facts, text, 0 if is_ready else Refused.exit_status, alerts=[] if is_ready else [verdict])


_COUNTED = (
    (PROBLEM, "problem", "problems"),
    (UNKNOWN, "thing unknown", "things unknown"),
    (WARNING, "warning", "warnings"),
)


def _sentence(finding: Finding) -> str:
    """Return the sentence of a finding, with the name of the host in front for another host."""
    names_it = not finding.host or finding.sentence.startswith(said(finding.host) + " ")
    return finding.sentence if names_it else f"{said(finding.host)}: {finding.sentence}"
