#!/usr/bin/env bash
# What a user of a release takes, in build/release: tools/release.sh [--key KEY] [--output DIRECTORY]; tools/release.py
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/need-packages.sh
for venv in current docs ansible; do tools/venv.sh "$venv"; done
exec .venv/current/bin/python -B tools/release.py "$@"
