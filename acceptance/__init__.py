# SPDX-License-Identifier: LGPL-2.1-only
"""Acceptance on a real pool: `make acceptance`. docs/acceptance.rst tells how to run it and what it does to the pool.

__main__.py   arguments; refuses an SR that is not a scratch SR; runs the steps; writes the report
day.py        the steps: what each does, and what is expected
made.py       what the kit makes on the pool, how its objects are known, and how they are taken away
report.py     the report, as JSON and as reStructuredText, without secrets
"""
