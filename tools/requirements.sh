#!/usr/bin/env bash
# Write each requirements*.txt from the .in file beside it: every package that comes along, with its version and with the
# SHA-256 of each of its files. pip and uv install nothing else (`--require-hashes` in tools/venv.sh).
#
# A version stays as it is in the .txt, unless the .in names another one. To renew what comes along, delete the .txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/venv.sh uv
for listed in */requirements*.in; do
    case $listed in
        *-py36.in) python=3.6.8 ;;
        ansible/*) python=3.12 ;;
        *) python=3.11 ;;
    esac
    .venv/uv/bin/uv pip compile --quiet --universal --python-version "$python" --generate-hashes --no-annotate \
        --custom-compile-command tools/requirements.sh "$listed" --output-file "${listed%.in}.txt"
done
