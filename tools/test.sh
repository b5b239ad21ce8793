#!/usr/bin/env bash
# Run stages of the tests and add up what they said: tools/test.sh unit unit36 judges
#
#   unit     everything that needs no root, on the newest Python found
#   unit36   the same on Python 3.6
#   judges   everything marked root: loop devices, real LVM2 and other programs read what we wrote
#   cinder   openstack/: Cinder's own manager, LVM driver and connector make volumes with our driver
#   collection   ansible/: playbooks run with the collection as it is built, against the simulated pool
#   vm       tests/vm inside a VM: real kernel, iSCSI target and initiator, multipath, LVM2 (tools/e2e.sh)
#
# The last line of the output is `N passed, N failed, N skipped`, over all stages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/lib.sh
. tools/lib.sh

reports=$(mktemp -d)
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local running
    running=$(jobs -p) # they do not hear a ctrl-c
    # shellcheck disable=SC2086 # a list
    [ -z "$running" ] || kill $running 2>/dev/null || true
    rm -rf "$reports"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

passed=0 failed=0 skipped=0
table=() absent=() problems=()
machines=() vms=() vms_began=() # of the stage vm, when it has begun
declare -A judges=()            # processes of the stage judges, when it has begun
judges_began=''

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

# pytest_for <name> <pytest argument>...: $command is it, with $python; its report is the one of that name
pytest_for() {
    command=("$python" -m pytest --junitxml="$reports/$1.xml" -o junit_logging=no "${@:2}")
}

# stage <name> <venv> <pytest argument>...
stage() {
    local name=$1 venv=$2 began=$SECONDS status=0 python command
    shift 2

    heading "$name"
    find_python "$name" "$venv" || return 0
    pytest_for "$name" "$@"
    "${command[@]}" </dev/null || status=$?
    account "$name" "$status" "$reports/$name.xml" "$python" "$began"
}

# Two at a time, one test of each: loop devices and LVM, of which a test sees those of all, beside packages, which have
# root directories of their own. Both wait for udev and the like much of their time, so they begin before unit36, which
# waits for nothing.
begin_judges() {
    local python command name
    [ -z "$judges_began" ] || return 0
    judges_began=$SECONDS
    find_python judges current || return 0
    for name in packages judges; do
        if [ "$name" = packages ]; then
            pytest_for packages -q -m root tests/judged/package
        else
            pytest_for judges -q -m root tests/judged --ignore=tests/judged/package
        fi
        "${command[@]}" </dev/null >"$reports/$name.txt" 2>&1 &
        judges[$name]=$!
    done
}

stage_judges() {
    local status name
    begin_judges
    heading judges
    for name in "${!judges[@]}"; do
        status=0
        wait "${judges[$name]}" || status=$?
        cat "$reports/$name.txt"
        account "$name" "$status" "$reports/$name.xml" .venv/current/bin/python "$judges_began"
    done
}

collection_arguments=(-q -c ansible/tests/played/pytest.ini ansible/tests/played)

# Each of one process, and they have nothing in common: beside each other they take as long as one.
stage_cinder_and_collection() {
    local began=$SECONDS status=0 collection='' python command
    if find_python collection ansible; then
        pytest_for collection "${collection_arguments[@]}"
        "${command[@]}" </dev/null >"$reports/collection.txt" 2>&1 &
        collection=$!
    fi
    stage_cinder
    [ -n "$collection" ] || return 0
    heading collection
    wait "$collection" || status=$?
    cat "$reports/collection.txt"
    account collection "$status" "$reports/collection.xml" .venv/ansible/bin/python "$began"
}

# Cinder's tests are unittest's, and so are those of a driver.
stage_cinder() {
    local began=$SECONDS status=0 python report=$reports/cinder.xml said=$reports/cinder.txt
    heading cinder
    find_python cinder cinder || return 0
    python=$PWD/$python
    (cd openstack && PYTHONPATH=.:..:../tests "$python" -W ignore -m unittest tests.test_cinder tests.test_drivers) \
        </dev/null >"$said" 2>&1 || status=$?
    if [ "$status" -eq 0 ]; then tail -n 3 "$said"; else cat "$said"; fi
    printf '<testsuite name="cinder" tests="%d" errors="%d" failures="%d" skipped="%d">\n' \
        "$(sed -n 's/^Ran \([0-9]*\) tests* in .*/\1/p' "$said")" \
        "$(counted errors "$said")" "$(counted failures "$said")" "$(counted skipped "$said")" >"$report"
    account cinder "$status" "$report" "$python" "$began"
}

# counted <word> <what unittest printed>: its last line is `OK (skipped=1)` or `FAILED (failures=1, errors=2)`
counted() {
    local number
    number=$(tail -n 1 "$2" | sed -n "s/.*[(, ]$1=\([0-9]*\).*/\1/p")
    echo "${number:-0}"
}

# The one stage whose pytest runs elsewhere: two User-mode Linuxes on each of two cores, as a third of their time they
# wait; and in an emulated machine, with the distribution's own kernel, what needs that. Without User-mode Linux all is
# emulated.
stage_vm() {
    local number status

    heading vm
    begin_vms
    for number in "${!machines[@]}"; do
        [ -n "${vms[number]:-}" ] || start_vm "$number"
    done
    for number in "${!machines[@]}"; do
        status=0
        wait "${vms[number]}" || status=$?
        cat "$reports/vm-$number.txt"
        if [ "$status" -eq 77 ]; then
            cannot_run vm "the VM cannot be started here, see above"
        else
            account "${machines[number]}-$number" "$status" "build/e2e-$number/junit.xml" .venv/current/bin/python \
                "${vms_began[number]}"
        fi
    done
}

# The emulated machine takes longest, and a good part of its time it waits: it starts beside other stages.
begin_vms() {
    [ ${#machines[@]} -eq 0 ] || return 0
    machines=(qemu uml uml uml uml)
    mkdir -p build
    tools/need-packages.sh e2e
    tools/venv.sh cinder # one of the tests runs it in the VM
    uml_boots || machines=(qemu qemu)
    start_vm 0
    until_vm_starts build/e2e-0 "${vms[0]}" # what it installs and makes is there for the others
}

# start_vm <number>: in the background; its process is in $vms
start_vm() {
    local number=$1 results=build/e2e-$1 places=(last first first last last) arguments
    vms_began[number]=$SECONDS
    rm -f "$results/junit.xml" "$results/arguments"
    "${machines[number]}_part" "$number"
    # the emulated one has what the others leave of the cores, and takes its time
    E2E_BOOT_LIMIT=900 E2E_RESULTS=$results E2E_CPUS=1 E2E_MACHINE=${machines[number]} E2E_CORE=${places[number]} \
        tools/e2e.sh "${arguments[@]}" >"$reports/vm-$number.txt" 2>&1 &
    vms[number]=$!
}

# part_of <file of tests>: that is the number of its VM; each has about as much to do as the others
part_of() {
    case $(basename "$1" .py) in
        test_sr_create | test_parallel | test_pool_client) echo 1 ;;
        test_sr_create_*) echo 2 ;;
        test_cinder | test_cloudstack | test_direct) echo 4 ;;
        *) echo 3 ;;
    esac
}

# It is there, and may trace processes, as it must: not every container allows that.
uml_boots() {
    local said
    said=$({ TMPDIR=/dev/shm timeout 60 linux.uml mem=64M root=/dev/root rootfstype=hostfs rootflags=/ ro uml_dir=/dev/shm/ \
        con=null con0=null,fd:1 panic=-1 loglevel=0 init=/bin/echo -- it boots </dev/null || true; } 2>/dev/null)
    [[ $said == *"it boots"* ]] # and then it panics, as its init has ended
}

# uml_part <number>, qemu_part <number>: $arguments are for that VM
# shellcheck disable=SC2317 # called by the name of the machine
uml_part() {
    local file
    arguments=()
    for file in tests/vm/test_*.py; do
        [ "$(part_of "$file")" -ne "$1" ] || arguments+=("$file")
    done
    arguments+=(-m "vm and not execs and not fabric")
}

# shellcheck disable=SC2317
qemu_part() {
    local file
    arguments=(tests/vm -m "vm and (execs or emulated)")
    [ "${#machines[@]}" -eq 2 ] || return 0
    arguments=()
    for file in tests/vm/test_*.py; do
        [ $((($(part_of "$file") - 1) / 2)) -ne "$1" ] || arguments+=("$file")
    done
}

# until_vm_starts <results> <process>: its packages and venvs are there then; or it has ended
until_vm_starts() {
    while kill -0 "$2" 2>/dev/null && [ ! -e "$1/arguments" ]; do sleep 0.5; done
}

# account <name> <exit status of pytest> <junit file> <python> <when it began>: add what a stage said
account() {
    local name=$1 status=$2 report=$3 python=$4 began=$5
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
        absent+=("$name: $left_out tests were skipped, the reasons are above")
        if in_ci; then
            problems+=("$name: $left_out tests were skipped, and CI must run them all")
            bad=$((bad + 1)) tests=$((tests + 1))
        fi
    fi

    local good=$((tests - bad - left_out))
    [ "$good" -ge 0 ] || good=0
    passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + left_out))
    table+=("$(printf '%-10s %-8s %8d %8d %8d %8ds' "$name" \
        "$("$python" -c 'import platform; print(platform.python_version())')" \
        "$good" "$bad" "$left_out" $((SECONDS - began)))")
}

summary() {
    heading "summary"
    printf '%-10s %-8s %8s %8s %8s %9s\n' tests Python passed failed skipped time
    [ ${#table[@]} -eq 0 ] || printf '%s\n' "${table[@]}"
    local line
    for line in "${absent[@]}"; do
        not_run "$line" || true # counted in cannot_run
    done
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

unset PYTHONDONTWRITEBYTECODE # what one process has compiled no other needs to: workers, stages, calls of the driver
tools/need-packages.sh
cores=$(nproc)
states=all
! asked_for unit36 "$@" || states=others # it has every fourth (tests/conftest.py)
for name in "$@"; do
    case $name in
        unit) stage unit current -q -n "$cores" -m "not root" --states "$states" ;;
        unit36)
            ! asked_for vm "$@" || begin_vms
            ! asked_for judges "$@" || begin_judges
            stage unit36 py36 -q -n "$cores" -m "not root"
            ;;
        judges)
            ! asked_for vm "$@" || begin_vms
            stage_judges
            ;;
        cinder) if asked_for collection "$@"; then stage_cinder_and_collection; else stage_cinder; fi ;;
        collection) asked_for cinder "$@" || stage collection ansible "${collection_arguments[@]}" ;;
        vm) stage_vm ;;
        *)
            echo "tools/test.sh: there is no stage called $name" >&2
            exit 2
            ;;
    esac
done
summary
