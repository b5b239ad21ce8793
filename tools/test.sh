#!/usr/bin/env bash
# Run stages of the tests and add up what they said: tools/test.sh unit unit36 judges
#
#   unit     everything that needs no root, on the newest Python found
#   unit36   on Python 3.6, what interpreters may differ in, and a smoke of every other room
#   judges   everything marked root: loop devices, real LVM2 and other programs read what we wrote
#   cinder   openstack/: Cinder's own manager, LVM driver and connector make volumes with our driver
#   collection   ansible/: playbooks run with the collection as it is built, against the simulated pool
#   clients  tests/clients: clients from npm and Maven Central, on the simulated pool
#   vm       tests/vm with kernels of their own (tools/e2e.sh): iSCSI target and initiator, multipath, udev, LVM2 in
#            User-Mode Linux; fc, Fibre Channel, in an emulated PC
#
# Of states, cuts and kills a run takes a sample, by a seed that it prints (tests/kit/examples.py); RELVMOISCSI_WHOLE=1
# takes all.
#
# The last line of the output is `N passed, N failed, N skipped`, over all stages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/lib.sh
. tools/lib.sh

own_tmpdir
reports=$(mktemp -d)
conductor='' # process of `conduct`, while it runs
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    [ -z "$conductor" ] || kill "$conductor" 2>/dev/null || true # it does not hear a ctrl-c
    rm -rf "$reports"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

passed=0 failed=0 skipped=0
table=() absent=() problems=()

# A stage that could not run: told at the end, a failure in CI.
cannot_run() {
    absent+=("$1: $2")
    if in_ci; then
        problems+=("$1 did not run, and CI must run everything")
        failed=$((failed + 1))
    fi
}

# attribute <name> <junit file>: a count from the report's testsuite element
attribute() {
    grep -o '<testsuite [^>]*>' "$2" | head -n 1 | sed -n "s/.* $1=\"\([0-9]*\)\".*/\1/p"
}

# find_python <stage> <venv>: $python is its interpreter; false, and told at the end, when there is none
find_python() {
    local name=$1 venv=$2
    if ! tools/venv.sh "$venv"; then
        cannot_run "$name" ".venv/$venv could not be made, see above"
        in_ci || { problems+=("$name: .venv/$venv could not be made"); failed=$((failed + 1)); }
        return 1
    fi
    python=.venv/$venv/bin/python
    if [ ! -x "$python" ]; then
        cannot_run "$name" "there is no Python for .venv/$venv on this machine"
        return 1
    fi
}

# Who opens an image or a disk for writing looks at every descriptor of every process, and each VM beside has tens of
# thousands: a quarter of a second of a processor for each such test. So these tests see no processes but their own, where
# that can be. What an ended process leaves is a child of this shell, and not of pytest.
apart=(unshare --pid --fork --kill-child --mount-proc bash -c '"$@"; exit $?' --)

# stage <name> <venv> <pytest argument>...: in a shell of its own, whose children are those of this stage alone
stage() {
    local name=$1 venv=$2 status took burnt python
    shift 2

    heading "$name"
    find_python "$name" "$venv" || return 0
    (
        began=$SECONDS answer=0
        ${apart[@]+"${apart[@]}"} "$python" -m pytest --junitxml="$reports/$name.xml" -o junit_logging=no "$@" </dev/null ||
            answer=$?
        tell_end "$name" "$answer" "$began"
    )
    await "$name"
    account "$name" "$status" "$reports/$name.xml" "$python" "$took" "$burnt"
}

# -- jobs: all but the unit tests waits for udev, disks and machines a good part of its time. So it runs beside them, and
# what it prints comes when they have ended. The unit tests of Python 3.6 are one beside those of the newest.
# A job is a function job_<name>, which ends as the program that it becomes.

job_judges() { job_apart judges current -m root tests/judged --ignore=tests/judged/package "${sample[@]}"; }

# Beside the judges, of which each sees the loop devices and volume groups of all: these have root directories of their own.
job_packages() { job_pytest packages current -m root tests/judged/package "${sample[@]}"; }

# One process: to collect the tests takes each more a tenth of all that it does.
job_unit36() { job_apart unit36 py36 "${units[@]}" "${sample[@]}"; }

job_collection() { job_pytest collection ansible -c ansible/tests/played/pytest.ini ansible/tests/played; }

# Without Node or a JDK it ends with 77, before the tests.
job_clients() {
    tools/need-packages.sh clients
    tools/clients.sh
    export RELVMOISCSI_CLIENTS=$PWD/.venv
    job_pytest clients current tests/clients
}

# job_apart <name> <venv> <pytest argument>...: `unshare` hears no TERM; what it has begun ends with it.
job_apart() {
    local within=(${apart[@]+"${apart[@]}"})
    trap 'kill -KILL "$!"; exit 143' TERM
    job_pytest "$@" &
    wait "$!"
}

# job_pytest <name> <venv> <pytest argument>...: as the words of $within say, if a caller has set any
job_pytest() {
    tools/venv.sh "$2"
    exec ${within[@]+"${within[@]}"} ".venv/$2/bin/python" -m pytest -q --junitxml="$reports/$1.xml" -o junit_logging=no "${@:3}"
}

# Cinder's tests are unittest's, and so are those of a driver.
job_cinder() {
    tools/venv.sh cinder
    local python=$PWD/.venv/cinder/bin/python
    cd openstack
    PYTHONPATH=.:..:../tests exec "$python" -W ignore -m unittest tests.test_cinder tests.test_drivers tests.test_iscsi \
        tests.test_rootwrap
}

job_vm() { run_machine uml e2e tests/vm "--ignore-glob=*fibre_channel*"; }

# All would wait for the emulated PC in the end, so it goes first.
job_fc() {
    renice -n -5 -p "$BASHPID" >/dev/null 2>&1 || true
    run_machine qemu e2e-fc tests/vm/test_fibre_channel.py
}

# run_machine uml|qemu <results, in build> <pytest argument>...; the limits end a machine that hangs
run_machine() { E2E_BOOT_LIMIT=900 E2E_SUITE_LIMIT=$vm_limit E2E_RESULTS=build/$2 exec tools/e2e.sh "$1" "${@:3}"; }

# conduct <job>...: all of them, in this order, so many at once as there are places; what a job prints is in
# $reports/<job>.txt, and when it is over its exit status and its seconds are in $reports/<job>.ended.
conduct() {
    local job
    # shellcheck disable=SC2064,SC2046 # a list, of then
    trap 'kill $(jobs -p) 2>/dev/null; exit 143' TERM
    for job in "$@"; do
        until [ "$(jobs -pr | wc -l)" -lt "$(places)" ]; do sleep 1; done
        run_job "$job" &
    done
    wait
}

# Beside the unit tests, which have a process for each core and take what the jobs leave: a job waits a third of its time,
# and the unit tests at the end for nothing. Behind them one more.
places() {
    if [ -e "$reports/units-ended" ]; then echo 5; else echo 4; fi
}

run_job() {
    local began=$SECONDS status=0 child
    trap 'kill "$child" 2>/dev/null; exit 143' TERM
    "job_$1" </dev/null >"$reports/$1.txt" 2>&1 &
    child=$!
    wait "$child" || status=$?
    tell_end "$1" "$status" "$began"
}

# tell_end <stage or job> <exit status> <when it began>: to `await`, with the CPU time, in seconds, of all ended children of
# this shell, and of their children
tell_end() {
    local took=$((SECONDS - $3)) ended=$reports/$1.ended
    times >"$ended.times" # in a pipe it would count those of the pipe
    tail -n 1 "$ended.times" | tr 'ms' '  ' |
        awk -v "told=$2 $took" '{ printf "%s %d\n", told, ($1 + $3) * 60 + $2 + $4 }' >"$ended.new"
    mv "$ended.new" "$ended"
}

# await <job>: $status, $took and $burnt are its exit status, its seconds, and its seconds of a processor
await() {
    until [ -e "$reports/$1.ended" ]; do
        kill -0 "$conductor" 2>/dev/null || [ -e "$reports/$1.ended" ] || echo "70 0 0" >"$reports/$1.ended"
        sleep 0.5
    done
    read -r status took burnt <"$reports/$1.ended"
}

# stage_behind <name> <venv>: a job of pytest
stage_behind() {
    local name=$1 status took burnt python
    heading "$name"
    await "$name"
    cat "$reports/$name.txt"
    find_python "$name" "$2" || return 0
    account "$name" "$status" "$reports/$name.xml" "$python" "$took" "$burnt"
}

stage_cinder() {
    local status took burnt python report=$reports/cinder.xml said=$reports/cinder.txt
    heading cinder
    await cinder
    if [ "$status" -eq 0 ]; then tail -n 3 "$said"; else cat "$said"; fi
    find_python cinder cinder || return 0
    printf '<testsuite name="cinder" tests="%d" errors="%d" failures="%d" skipped="%d">\n' \
        "$(sed -n 's/^Ran \([0-9]*\) tests* in .*/\1/p' "$said")" \
        "$(counted errors "$said")" "$(counted failures "$said")" "$(counted skipped "$said")" >"$report"
    account cinder "$status" "$report" "$python" "$took" "$burnt"
}

# counted <word> <what unittest printed>: its last line is `OK (skipped=1)` or `FAILED (failures=1, errors=2)`
counted() {
    local number
    number=$(tail -n 1 "$2" | sed -n "s/.*[(, ]$1=\([0-9]*\).*/\1/p")
    echo "${number:-0}"
}

# stage_that_may_lack <job> <junit file> <what is told where it ended with 77>
stage_that_may_lack() {
    local status took burnt
    heading "$1"
    await "$1"
    cat "$reports/$1.txt"
    if [ "$status" -eq 77 ]; then
        cannot_run "$1" "$3, see above"
    else
        account "$1" "$status" "$2" .venv/current/bin/python "$took" "$burnt"
    fi
}

# stage_machine <job> <its results, in build>
stage_machine() { stage_that_may_lack "$1" "build/$2/junit.xml" "the machine cannot be started here"; }

# reasons <junit file>: why tests were skipped, each reason once; nothing where the report does not say
reasons() {
    { grep -o '<skipped [^>]*' "$1" || true; } | sed -n 's/.* message="\([^"]*\)".*/\1/p' | sort -u | paste -s -d '|' | sed 's/|/; /g'
}

# account <name> <exit status of pytest> <junit file> <python> <seconds> <seconds of a processor>: add what a stage said
account() {
    local name=$1 status=$2 report=$3 python=$4 took=$5 burnt=$6
    local tests=0 bad=0 left_out=0

    if [ "$status" -eq 5 ] && { [ "$name" = judges ] || [ "$name" = packages ]; }; then
        cannot_run "$name" "no test is marked root"
        return
    fi
    if [ -s "$report" ]; then
        tests=$(attribute tests "$report")
        bad=$(($(attribute errors "$report") + $(attribute failures "$report")))
        left_out=$(attribute skipped "$report")
    elif [ "$status" -eq 0 ]; then
        status="0, without a report"
    fi
    if [ "$status" != 0 ] && [ "$bad" -eq 0 ]; then
        problems+=("$name: pytest ended with exit status $status")
        bad=1 tests=$((tests + 1))
    fi
    if [ "$name" != unit ] && [ "$name" != unit36 ] && [ "$left_out" -gt 0 ]; then
        absent+=("$name: $left_out tests were skipped: $(reasons "$report")")
        if in_ci; then
            problems+=("$name: $left_out tests were skipped, and CI must run them all")
            bad=$((bad + 1)) tests=$((tests + 1))
        fi
    fi

    local good=$((tests - bad - left_out))
    [ "$good" -ge 0 ] || good=0
    passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + left_out))
    table+=("$(printf '%-10s %-8s %8d %8d %8d %8ds %8ds' "$name" \
        "$("$python" -c 'import platform; print(platform.python_version())')" \
        "$good" "$bad" "$left_out" "$took" "$burnt")")
}

summary() {
    heading "summary"
    local line
    for line in "${absent[@]}"; do
        not_run "$line" || true # counted in cannot_run
    done
    [ "${#sample[@]}" -eq 0 ] || echo "states and steps were sampled: RELVMOISCSI_SEED=$RELVMOISCSI_SEED takes the same ones again"
    printf '%-10s %-8s %8s %8s %8s %9s %9s\n' tests Python passed failed skipped time processor
    [ ${#table[@]} -eq 0 ] || printf '%s\n' "${table[@]}"
    for line in "${problems[@]}"; do
        printf 'FAILED: %s\n' "$line"
    done
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    [ "$failed" -eq 0 ]
}

# asked_for <stage> <stages>...
asked_for() {
    [[ " ${*:2} " == *" $1 "* ]]
}

for name in "$@"; do
    if ! asked_for "$name" unit unit36 judges cinder collection clients vm; then
        echo "tools/test.sh: there is no stage called $name" >&2
        exit 2
    fi
done
unset PYTHONDONTWRITEBYTECODE # what one process has compiled no other needs to: workers, stages, calls of the driver
tools/need-packages.sh
"${apart[@]}" true 2>/dev/null || apart=()
cores=$(nproc)
sample=(--sample) vm_limit=3600
# What needs root is in tests/judged alone (tests/conftest.py), which takes seconds to collect.
units=(tests --ignore=tests/judged)
[ "${RELVMOISCSI_WHOLE:-}" != 1 ] || sample=() vm_limit=21600
# One seed for all stages; CI has always the same one, so that a red run is about the change.
if in_ci; then seed=1; else seed=$RANDOM; fi
export RELVMOISCSI_SEED=${RELVMOISCSI_SEED:-$seed}
rm -f build/{e2e,e2e-fc}/junit.xml # of before
behind=() # the longest first
! asked_for vm "$@" || behind+=(fc vm)
! asked_for judges "$@" || behind+=(judges packages)
! asked_for collection "$@" || behind+=(collection)
! asked_for clients "$@" || behind+=(clients)
! { asked_for unit "$@" && asked_for unit36 "$@"; } || behind+=(unit36)
! asked_for cinder "$@" || behind+=(cinder)
conduct "${behind[@]}" &
conductor=$!
! asked_for unit "$@" || stage unit current -q -n "$cores" "${units[@]}" "${sample[@]}"
! asked_for unit36 "$@" || asked_for unit "$@" || stage unit36 py36 -q -n "$cores" "${units[@]}" "${sample[@]}"
touch "$reports/units-ended"
for name in "$@"; do
    case $name in
        unit) ;; # done
        unit36) ! asked_for unit "$@" || stage_behind unit36 py36 ;;
        judges)
            stage_behind packages current
            stage_behind judges current
            ;;
        collection) stage_behind collection ansible ;;
        clients) stage_that_may_lack clients "$reports/clients.xml" "Node or a JDK is missing" ;;
        cinder) stage_cinder ;;
        vm)
            stage_machine vm e2e
            stage_machine fc e2e-fc
            ;;
    esac
done
summary
