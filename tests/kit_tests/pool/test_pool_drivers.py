# SPDX-License-Identifier: LGPL-2.1-only
"""How drivers are run, and which answers the pool takes. The drivers are scripts of these tests."""

import json
import os

import pytest

from kit import pool_fakes
from kit.pool.runner import PATH
from kit.pool_fakes import until

pytestmark = pytest.mark.processes

CREATE = ({"target": "a"}, "0", "label", "text", "fake", "user", True, {})


@pytest.fixture
def answers(start, connect, errors):
    """The ErrorDescription of an SR.create whose driver runs this shell."""

    def of(shell, **options):
        pool = start({"FakeSR": pool_fakes.shell({"sr_create": shell})}, **options)
        return errors(connect(pool).xenapi.SR.create, pool.master, *CREATE)

    return of


# -- the process ------------------------------------------------------------------------------------------------------

SNOOP = """
import json, os
print("<methodResponse><fault><value><struct><member><name>faultCode</name><value><int>7</int></value></member>"
      "<member><name>faultString</name><value/></member></struct></value></fault></methodResponse>")
sys.stderr.write(json.dumps({
    "argv": sys.argv, "environment": dict(os.environ), "cwd": os.getcwd(), "stdin": sys.stdin.read(),
    "files": [os.path.isfile("/proc/self/fd/1"), os.path.isfile("/proc/self/fd/2")],
    "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name)),
}))
"""


def test_what_a_driver_is_given(start, connect, errors, tmp_path):
    pool = start({"FakeSR": pool_fakes.python(SNOOP)})
    code, _, _, stderr = errors(connect(pool).xenapi.SR.create, pool.master, *CREATE)
    assert code == "SR_BACKEND_FAILURE_7"
    seen = json.loads(stderr)
    seen["environment"].pop("LC_CTYPE", None)  # Python sets it for itself in the C locale

    (entry,) = pool.log.of("sr_create")
    path = str(tmp_path / "sm" / "FakeSR")
    assert seen["argv"] == [path, entry.argv[1]] and entry.argv[0] == path
    assert seen["environment"] == {"PATH": PATH, "ORIGINATOR": "SM"} == entry.environment
    assert seen["cwd"] == "/" and seen["stdin"] == "" and seen["files"] == [True, True]
    assert seen["descriptors"] == [0, 1, 2]


# -- answers ----------------------------------------------------------------------------------------------------------


def test_the_success_of_resignaturing_byte_for_byte(answers):
    text = (
        "Error reporting error, unknown key The SR has been successfully resigned. Use the lvmoiscsi type to attach it"
    )

    assert answers(pool_fakes.say(pool_fakes.fault(1, text))) == ["SR_BACKEND_FAILURE_1", "", text, ""]


def test_stderr_is_the_third_parameter_of_a_fault(answers):
    shell = pool_fakes.say(pool_fakes.fault(107, "no SCSIid")) + "\nprintf '<iscsi-target>\\n' >&2"

    assert answers(shell) == ["SR_BACKEND_FAILURE_107", "", "no SCSIid", "<iscsi-target>\n"]


def test_an_exit_status_hides_the_fault(answers):
    shell = pool_fakes.say(pool_fakes.fault(107, "text")) + "\necho problem >&2; exit 3"

    assert answers(shell) == ["SR_BACKEND_FAILURE", "non-zero exit", pool_fakes.fault(107, "text") + "\n", "problem\n"]


@pytest.mark.parametrize(
    "output", ["", "Traceback", "debug\n" + pool_fakes.NIL, pool_fakes.NIL + "\n" + pool_fakes.NIL]
)
def test_output_that_is_not_one_document(answers, output):
    description = answers(pool_fakes.say(output) + "\necho oops >&2")

    assert description[0] == "SR_BACKEND_FAILURE" and description[1].startswith("XML Error")
    assert description[2:] == [output + "\n", "oops\n"]


@pytest.mark.parametrize("value", ["", "<string>done</string>", "<int>0</int>", "<boolean>1</boolean>"])
def test_success_must_be_nil(answers, value):
    description = answers(pool_fakes.say(pool_fakes.result(value)))

    assert description[0] == "INTERNAL_ERROR" and "RunTimeTypeError" in description[1]


# -- the log ----------------------------------------------------------------------------------------------------------


def test_the_log_has_every_call_and_finds_a_secret(start, connect, errors, tmp_path):
    shell = "echo hush >&2\n" + pool_fakes.say(pool_fakes.fault(7, "psst"))
    pool = start({"FakeSR": pool_fakes.shell({"sr_create": shell})}, log_path=tmp_path / "calls.log")
    errors(connect(pool).xenapi.SR.create, pool.master, {"target": "whisper"}, *CREATE[1:])

    assert [entry.command for entry in pool.log] == ["sr_get_driver_info", "sr_create"]
    assert pool.log.grep("whisper") == ["call 2 (sr_create): argv"]
    assert pool.log.grep("hush") == ["call 2 (sr_create): stderr"]
    assert pool.log.grep("psst") == ["call 2 (sr_create): stdout"]
    assert pool.log.grep("ORIGINATOR") == [
        "call 1 (sr_get_driver_info): environment",
        "call 2 (sr_create): environment",
    ]
    assert pool.log[1].status == 0 and pool.log[1].stderr == b"hush\n" and pool.log[1].duration > 0

    lines = [json.loads(line) for line in (tmp_path / "calls.log").read_text().splitlines()]
    assert [line["command"] for line in lines] == ["sr_get_driver_info", "sr_create"]
    assert lines[1]["stdout"] == pool_fakes.fault(7, "psst") + "\n" and lines[1]["params"]["args"] == ["0"]


def test_the_end_of_the_pool_is_the_end_of_its_drivers(start, connect):
    pool = start({"FakeSR": pool_fakes.shell({"sr_create": "exec sleep 3600"})})
    connect(pool).xenapi.Async.SR.create(pool.master, *CREATE)
    pid = pool.log.wait_for_start("sr_create").pid

    pool.stop()

    until(lambda: not pool.log.running())
    assert not os.path.exists(f"/proc/{pid}/exe")
