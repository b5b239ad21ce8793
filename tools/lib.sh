# shellcheck shell=bash
# Sourced by the other scripts, which run in the top directory of the project.

# In CI what cannot run is a failure: a green run must have had every judge.
in_ci() {
    [ "${CI:-}" = true ]
}

heading() {
    printf '\n== %s\n' "$*"
}

# not_run <what, and why>: says so loudly; fails in CI.
not_run() {
    printf 'NOT RUN: %s\n' "$*"
    if in_ci; then
        return 1
    fi
}

# From here on, temporary files go where no other user can replace them. A bare Debian has no Python yet: then to /tmp.
own_tmpdir() {
    if ! command -v python3 >/dev/null; then
        unset TMPDIR
        return
    fi
    TMPDIR=$(python3 -I tools/tmpdir.py)
    export TMPDIR
}
