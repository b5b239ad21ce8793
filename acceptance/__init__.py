# SPDX-License-Identifier: LGPL-2.1-only
"""Acceptance on a real pool: `make acceptance`. docs/acceptance.rst describes the run and its effects on the pool.

__main__.py   arguments; refuses an SR that is not a scratch SR; runs the steps; writes the report.
day.py        the steps, each with its expected result.
made.py       objects that the kit makes on the pool; how the kit recognises and removes its objects.
report.py     the report, as JSON and as reStructuredText, without secrets.
"""
