# SPDX-License-Identifier: LGPL-2.1-only
"""How drivers are found and run, and what becomes of each kind of answer. The drivers are scripts of these tests."""

import json
import os
import sys

import pytest

from kit import pool_fakes
from kit.pool import cloudstack
from kit.pool.runner import PATH
from kit.pool.simulator import DRIVERS, sm_directory
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


# -- discovery --------------------------------------------------------------------------------------------------------


def test_a_name_that_ends_in_sr_and_is_executable_is_a_driver(start, tmp_path, connect):
    text = pool_fakes.shell({})
    (tmp_path / "elsewhere").mkdir()
    pool_fakes.install(tmp_path / "elsewhere", "code", text)
    os.symlink(str(tmp_path / "elsewhere" / "code"), str(tmp_path / "sm" / "LinkedSR"))
    pool_fakes.install(tmp_path / "sm", "PlainSR", text, mode=0o644)

    pool = start({"ReLVMoISCSISR": text, "FakeSR.py": text, "Fakesr": text, "FakeSr": text})

    assert connect(pool).xenapi.SR.get_supported_types() == ["linked", "relvmoiscsi"]
    assert pool.storage.drivers["relvmoiscsi"].path.endswith("/sm/ReLVMoISCSISR")
    assert pool.rejected == {"PlainSR": "it is not executable"}


@pytest.mark.parametrize(
    "sm_plugins, taken",
    [
        ("ext FAKE", ["fake"]),
        ("*", ["fake", "other"]),
        ("fake\tother nfs", ["fake", "other"]),
        ("", []),
        (None, ["fake", "other"]),
    ],
)
def test_the_white_list(start, sm_plugins, taken):
    text = pool_fakes.shell({})
    pool = start({"FakeSR": text, "OtherSR": text}, sm_plugins=sm_plugins)

    assert sorted(pool.storage.drivers) == taken
    assert len(pool.log) == len(taken), "what is not on the list is not executed"


@pytest.mark.parametrize(
    "text",
    [
        pool_fakes.shell({"sr_get_driver_info": pool_fakes.say(pool_fakes.NIL)}),
        pool_fakes.shell({"sr_get_driver_info": pool_fakes.say("nonsense")}),
        pool_fakes.shell({"sr_get_driver_info": "exit 1"}),
        pool_fakes.shell({"sr_get_driver_info": pool_fakes.say(pool_fakes.fault(38, ""))}),
        pool_fakes.shell({}, info={key: value for key, value in pool_fakes.INFO.items() if key != "vendor"}),
        pool_fakes.shell({}, info=dict(pool_fakes.INFO, required_api_version="one")),
        pool_fakes.shell({}, info=dict(pool_fakes.INFO, capabilities="")),
        pool_fakes.shell({}, info=dict(pool_fakes.INFO, configuration=pool_fakes.INFO["capabilities"])),
        pool_fakes.shell(
            {}, info=dict(pool_fakes.INFO, configuration=pool_fakes.INFO["configuration"].replace("key", "k"))
        ),
        "no script",
    ],
)
def test_a_driver_that_cannot_tell_what_it_is_is_left_out_alone(start, text):
    pool = start({"BadSR": text, "GoodSR": pool_fakes.shell({})})

    assert list(pool.storage.drivers) == ["good"]
    assert list(pool.rejected) == ["BadSR"]


def test_driver_info_is_asked_without_session_or_configuration(start):
    pool = start({"FakeSR": pool_fakes.shell({})})

    (entry,) = pool.log
    assert entry.params == {
        "host_ref": pool.master, "command": "sr_get_driver_info", "args": [], "device_config": {},
    }  # fmt: skip


def test_sm_records_follow_from_what_drivers_say(start, connect, tmp_path):
    pool = start({"ReLVMoISCSISR": pool_fakes.shell({})})
    (record,) = connect(pool).xenapi.SM.get_all_records().values()

    assert record["type"] == "relvmoiscsi"
    assert record["name_label"] == "LVHD over iSCSI with resigning of duplicates"
    assert record["capabilities"] == ["SR_PROBE", "VDI_CLONE"], "unknown ones are dropped"
    assert record["features"] == {"SR_PROBE": "1", "VDI_CLONE": "3"}
    assert record["configuration"] == {"target": "IP address"}
    assert record["driver_filename"] == str(tmp_path / "sm" / "ReLVMoISCSISR")

    os.unlink(str(tmp_path / "sm" / "ReLVMoISCSISR"))
    pool_fakes.install(tmp_path / "sm", "RELVMOISCSISR", pool_fakes.shell({}))
    pool.restart_toolstack()
    (record,) = connect(pool).xenapi.SM.get_all_records().values()
    assert record["driver_filename"] == str(tmp_path / "sm" / "RELVMOISCSISR")

    os.unlink(str(tmp_path / "sm" / "RELVMOISCSISR"))
    sr = pool.db.create("SR", type="relvmoiscsi")
    pool.restart_toolstack()
    assert len(pool.db.refs("SM")) == 1, "a type that an SR has stays"
    pool.db.destroy("SR", sr)
    pool.restart_toolstack()
    assert pool.db.refs("SM") == []


def test_sm_list_as_xe_prints_it(start):
    pool = start({"ReLVMoISCSISR": pool_fakes.shell({})})
    (ref,) = pool.db.refs("SM")
    lines = pool.sm_list().split("\n")

    assert lines[0] == "uuid ( RO)                         : " + pool.db.get("SM", ref, "uuid")
    assert lines[1] == "                   name-label ( RO): LVHD over iSCSI with resigning of duplicates"
    assert lines[7:9] == [
        "    capabilities ( RO) [DEPRECATED]: SR_PROBE; VDI_CLONE",
        "                     features (MRO): SR_PROBE: 1; VDI_CLONE: 3",
    ]
    assert lines[12:] == ["", "", ""]
    assert cloudstack.supports_resign(pool.sm_list())
    assert not cloudstack.supports_resign(pool.sm_list().replace("resigning", "signing"))


def test_a_directory_of_links_to_drivers(tmp_path):
    path = sm_directory(tmp_path / "drivers", DRIVERS / "LVMoISCSISR")

    assert os.path.samefile(str(path / "LVMoISCSISR"), str(DRIVERS / "LVMoISCSISR"))
    assert os.access(str(path / "LVMoISCSISR"), os.X_OK)


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


def snooped(start, connect, errors, **options):
    pool = start({"FakeSR": pool_fakes.python(SNOOP)}, **options)
    code, _, _, stderr = errors(connect(pool).xenapi.SR.create, pool.master, *CREATE)
    assert code == "SR_BACKEND_FAILURE_7"
    seen = json.loads(stderr)
    seen["environment"].pop("LC_CTYPE", None)  # Python sets it for itself in the C locale
    return pool, seen


def test_what_a_driver_is_given(start, connect, errors, tmp_path):
    pool, seen = snooped(start, connect, errors)

    (entry,) = pool.log.of("sr_create")
    path = str(tmp_path / "sm" / "FakeSR")
    assert seen["argv"] == [path, entry.argv[1]] and entry.argv[0] == path
    assert seen["environment"] == {"PATH": PATH, "ORIGINATOR": "SM"} == entry.environment
    assert seen["cwd"] == "/" and seen["stdin"] == "" and seen["files"] == [True, True]
    assert seen["descriptors"] == [0, 1, 2]


def test_older_versions_set_no_originator(start, connect, errors):
    _, seen = snooped(start, connect, errors, originator=False)

    assert seen["environment"] == {"PATH": PATH}


def test_tests_may_add_to_the_environment(start, connect, errors):
    _, seen = snooped(start, connect, errors, extra_env={"LAB": "x"})

    assert seen["environment"]["LAB"] == "x"


def test_the_observer_runs_the_file_as_python_whatever_its_first_line(start, connect, errors, tmp_path):
    text = pool_fakes.python(SNOOP).replace("#!" + sys.executable, "#!/bin/false", 1)
    pool = start({"FakeSR": text, "ShellSR": pool_fakes.shell({})}, observer=sys.executable)
    seen = json.loads(errors(connect(pool).xenapi.SR.create, pool.master, *CREATE)[3])

    assert seen["argv"][0] == str(tmp_path / "sm" / "FakeSR")
    assert seen["environment"]["PYTHONPATH"] == str(tmp_path / "sm")
    assert "OBSERVER_CONFIG_DIR" in seen["environment"]
    assert pool.rejected == {"ShellSR": pool.rejected["ShellSR"]}
    assert "non-zero exit" in pool.rejected["ShellSR"]


# -- answers ----------------------------------------------------------------------------------------------------------


def test_the_success_of_resignaturing_byte_for_byte(answers):
    text = (
        "Error reporting error, unknown key The SR has been successfully resigned. Use the lvmoiscsi type to attach it"
    )

    assert answers(pool_fakes.say(pool_fakes.fault(1, text))) == ["SR_BACKEND_FAILURE_1", "", text, ""]


def test_stderr_is_the_third_parameter_of_a_fault(answers):
    shell = pool_fakes.say(pool_fakes.fault(107, "no SCSIid")) + "\nprintf '<iscsi-target>\\n' >&2"

    assert answers(shell) == ["SR_BACKEND_FAILURE_107", "", "no SCSIid", "<iscsi-target>\n"]


@pytest.mark.parametrize(
    "code, description",
    [(16, ["SR_DEVICE_IN_USE"]), (24, ["VDI_IN_USE"]), (39, ["SR_NOT_EMPTY"])],
)
def test_codes_that_lose_their_text(answers, code, description):
    assert answers(pool_fakes.say(pool_fakes.fault(code, "text"))) == description


@pytest.mark.parametrize("code, error", [(38, "SR_OPERATION_NOT_SUPPORTED"), (144, "VDI_MISSING")])
def test_codes_that_come_back_with_the_sr(answers, code, error):
    description = answers(pool_fakes.say(pool_fakes.fault(code, "text")))

    assert description[0] == error and description[1].startswith("OpaqueRef:")
    assert description[2:] == ([""] if code == 144 else [])


def test_an_exit_status_hides_the_fault(answers):
    shell = pool_fakes.say(pool_fakes.fault(107, "text")) + "\necho problem >&2; exit 3"

    assert answers(shell) == ["SR_BACKEND_FAILURE", "non-zero exit", pool_fakes.fault(107, "text") + "\n", "problem\n"]


def test_a_signal(answers):
    assert answers("echo half; kill -9 $$") == ["SR_BACKEND_FAILURE", "received signal: SIGKILL", "half\n", ""]


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


def test_an_answer_of_another_kind(answers):
    assert answers(pool_fakes.say("<html/>"))[0] == "INTERNAL_ERROR"


def test_a_driver_that_has_gone(start, connect, errors, tmp_path):
    pool = start({"FakeSR": pool_fakes.shell({})})
    os.unlink(str(tmp_path / "sm" / "FakeSR"))

    assert errors(connect(pool).xenapi.SR.create, pool.master, *CREATE)[:2] == ["SR_BACKEND_FAILURE", "non-zero exit"]


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
    assert pool.log[1].status == 0 and pool.log[1].stderr == b"hush\n" and 0 < pool.log[1].duration < 5

    lines = [json.loads(line) for line in (tmp_path / "calls.log").read_text().splitlines()]
    assert [line["command"] for line in lines] == ["sr_get_driver_info", "sr_create"]
    assert lines[1]["stdout"] == pool_fakes.fault(7, "psst") + "\n" and lines[1]["params"]["args"] == ["0"]


def test_a_driver_that_runs_is_known_by_its_pid(start, connect):
    shell = "exec sleep 60"
    pool = start({"FakeSR": pool_fakes.shell({"sr_create": shell})})
    api = connect(pool).xenapi
    task = api.Async.SR.create(pool.master, *CREATE)

    running = pool.log.wait_for_start("sr_create")
    os.kill(running.pid, 9)
    until(lambda: api.task.get_status(task) != "pending")

    assert api.task.get_error_info(task)[:2] == ["SR_BACKEND_FAILURE", "received signal: SIGKILL"]
    assert pool.log.running() == []


def test_the_end_of_the_pool_is_the_end_of_its_drivers(start, connect):
    pool = start({"FakeSR": pool_fakes.shell({"sr_create": "exec sleep 60"})})
    connect(pool).xenapi.Async.SR.create(pool.master, *CREATE)
    pid = pool.log.wait_for_start("sr_create").pid

    pool.stop()

    until(lambda: not pool.log.running())
    assert not os.path.exists(f"/proc/{pid}/exe")
