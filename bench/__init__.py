# SPDX-License-Identifier: LGPL-2.1-only
"""Benchmarks side by side: what a resignature costs, beside what people would use instead. `make bench` runs all."""
