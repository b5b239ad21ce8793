# SPDX-License-Identifier: LGPL-2.1-only
"""How hypothesis searches. It is no part of what tests in a VM import: an emulated one needs seconds for it."""

import os

from hypothesis import HealthCheck, settings

from kit.examples import examples


def load_profile(in_ci):
    """A time per example says more about the machine than about the code. CI looks at the same examples every time, so
    that a red run is about the change; the random search is what people run. What a test asks for of its own it asks
    of `kit.examples`.
    """
    everywhere = {
        "deadline": None,
        # a sector or a metadata area of chance bytes is large, and how many are too large is a matter of the seed
        "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
        "max_examples": examples(settings.default.max_examples),
    }
    settings.register_profile("dev", **everywhere)
    settings.register_profile("ci", derandomize=True, print_blob=True, **everywhere)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if in_ci else "dev"))
