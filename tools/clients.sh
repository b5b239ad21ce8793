#!/usr/bin/env bash
# Create or renew .venv/node and .venv/java, what the tests in tests/clients need from npm and Maven Central; nothing
# happens when they are up to date.
#
#   tests/clients/package-lock.json   pins the packages of npm, with their checksums
#   tests/clients/jars.txt            a line for each jar: its SHA-256, and its path in a Maven repository
#
# It ends with 77 on a machine without Node 18 or a JDK. MAVEN_REPOSITORY is another place than Maven Central.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

pinned=$PWD/tests/clients
for program in node npm javac java python3; do
    command -v "$program" >/dev/null || { echo "tools/clients.sh: there is no $program" >&2; exit 77; }
done
node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)' || { echo "tools/clients.sh: Node is older than 18" >&2; exit 77; }

mkdir -p .venv
exec 9>.venv/clients.lock
flock 9

# fresh <directory> <stamp>: is it made, and of this?
fresh() { [ "$(cat "$1/stamp" 2>/dev/null)" = "$2" ]; }

# three_times <command>...: a registry may be busy
three_times() {
    "$@" || { sleep 3; "$@"; } || { sleep 10; "$@"; }
}

packages() {
    rm -rf .venv/node
    mkdir -p .venv/node
    cp "$pinned"/package{,-lock}.json .venv/node
    (cd .venv/node && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error </dev/null) 9<&-
}

jars() {
    rm -rf .venv/java
    mkdir -p .venv/java
    python3 - "$pinned/jars.txt" .venv/java <<'PYTHON'
import hashlib, os, sys, urllib.request

listed, directory = sys.argv[1:]
place = os.environ.get("MAVEN_REPOSITORY", "https://repo1.maven.org/maven2").rstrip("/")
with open(listed) as lines:
    for digest, path in map(str.split, lines):
        with urllib.request.urlopen(f"{place}/{path}", timeout=60) as answer:
            content = answer.read()
        if hashlib.sha256(content).hexdigest() != digest:
            sys.exit(f"{path} from {place} has another checksum")
        with open(os.path.join(directory, os.path.basename(path)), "wb") as jar:
            jar.write(content)
PYTHON
}

stamp="$(node --version) $(cat "$pinned"/package{,-lock}.json | sha256sum)"
if ! fresh .venv/node "$stamp"; then
    echo "making .venv/node with Node $(node --version)"
    three_times packages
    printf '%s\n' "$stamp" >.venv/node/stamp
fi
stamp=$(sha256sum <"$pinned/jars.txt")
if ! fresh .venv/java "$stamp"; then
    echo "making .venv/java"
    three_times jars
    printf '%s\n' "$stamp" >.venv/java/stamp
fi
