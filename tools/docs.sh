#!/usr/bin/env bash
# Build the pages of docs/ as HTML in build/docs: tools/docs.sh [--update]
#
# Every warning is an error: a page nobody links to, a link to nothing. So is a manual page, supp-pack/relvmoiscsi.8, that
# is not what docs/command.rst and the command's --help give now; --update writes it. The manual page is kept in the
# repository because the RPM is built where there is no Sphinx.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

page=supp-pack/relvmoiscsi.8

# -E: all pages are read each time, as a page that is read from a cache gives no warnings
build() {
    .venv/docs/bin/python -B -m sphinx -q -E -W --keep-going -n -b "$1" -d "build/doctrees" docs "$2"
}

tools/venv.sh docs
build html build/docs
.venv/docs/bin/python -B tools/docs_search.py
if grep -rE '>docs/[a-z/-]+\.rst[<,]' --include='*.html' build/docs; then
    echo 'A link has the name of a file for its text: docs/_ext' >&2
    exit 1
fi
build man build/man
{
    echo '.\" SPDX-License-Identifier: LGPL-2.1-only'
    echo '.\" Made from docs/command.rst and --help: tools/docs.sh --update'
    grep -v '^\.\\" \|^'"'"'\\" t' build/man/relvmoiscsi.8
} >build/man/page
if [ "${1:-}" = --update ]; then
    cp build/man/page "$page"
elif ! cmp build/man/page "$page"; then
    echo "$page is not what docs/command.rst and --help give: run tools/docs.sh --update" >&2
    exit 1
fi
echo "build/docs/index.html"
