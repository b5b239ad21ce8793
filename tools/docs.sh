#!/usr/bin/env bash
# Build the pages of docs/ as HTML in build/docs. Every warning is an error: a page nobody links to, a link to nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/venv.sh docs
# -E: all pages are read each time, as a page that is read from a cache gives no warnings
.venv/docs/bin/python -m sphinx -q -E -W --keep-going -n -b html -d build/doctrees docs build/docs
echo "build/docs/index.html"
