# SPDX-License-Identifier: LGPL-2.1-only
"""Appends the result of each task to the file RESULTS, as JSON: for the tests."""

from __future__ import annotations

import json
import os

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: results
type: notification
short_description: results as JSON lines
description: results as JSON lines
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "results"

    def v2_runner_on_ok(self, result):
        self._write(result, False)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._write(result, True)

    def _write(self, result, is_failure):
        row = {"host": result.host.get_name(), "result": {**result.result, "failed": is_failure}}
        with open(os.environ["RESULTS"], "a", encoding="utf-8") as file:
            file.write(json.dumps(row, default=str) + "\n")
