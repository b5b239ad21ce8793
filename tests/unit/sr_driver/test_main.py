# SPDX-License-Identifier: LGPL-2.1-only
"""Whatever a command comes to, xapi gets one answer it can read; only success reads as success."""

import pytest
from test_codes import NEVER, an, error_classes

from kit.driver_calls import DEVICE_CONFIG, SESSION, SR_UUID, SUCCESS_TEXT, call_of
from kit.pool import wire
from relvmoiscsi.errors import UsageError
from relvmoiscsi.sr_driver import create
from relvmoiscsi.sr_driver.hba import HBA
from relvmoiscsi.sr_driver.iscsi import ISCSI
from relvmoiscsi.sr_driver.main import success
from relvmoiscsi.sr_driver.transport import MissingKey

PASSWORD = "hunter2hunter2"
LIST = '<?xml version="1.0" ?>\n<iscsi-target>\n\t<LUN>\n\t</LUN>\n</iscsi-target>\n'


@pytest.fixture
def creating(monkeypatch, answer):
    """The answer to an sr_create that ends in this: a UUID, or an error."""

    def ends_in(outcome, device_config=None):
        def sr_create(_call, _config, _xapi, _smlog, _deadline, _transport):
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        monkeypatch.setattr(create, "sr_create", sr_create)
        return answer(call_of("sr_create", device_config))

    return ends_in


# --- success


def test_success_byte_for_byte(creating, smlog):
    """Also beside a password that looks like the sentence."""
    found = creating(SR_UUID, dict(DEVICE_CONFIG, chappassword="successfully"))

    assert (found.result, found.stderr) == (wire.Fault(1, SUCCESS_TEXT), b"")
    assert [text for _, text in smlog if f"the LUN is SR {SR_UUID} now" in text]
    assert found.stdout == (
        "<?xml version='1.0'?>\n<methodResponse>\n<fault>\n<value><struct>\n<member>\n<name>faultCode</name>\n"
        f"<value><int>1</int></value>\n</member>\n<member>\n<name>faultString</name>\n<value><string>{SUCCESS_TEXT}</string></value>\n"
        "</member>\n</struct></value>\n</fault>\n</methodResponse>\n"
    ).encode("ascii")


def test_success_names_the_stock_type_of_the_transport():
    assert success(ISCSI).faultString == SUCCESS_TEXT
    assert success(HBA).faultString == SUCCESS_TEXT.replace("lvmoiscsi", "lvmohba")
    assert {success(ISCSI).faultCode, success(HBA).faultCode} == {1}


# --- failure


@pytest.mark.parametrize("error", error_classes(), ids=lambda error: error.__name__)
def test_no_error_reads_as_success(creating, error):
    found = creating(an(error, "The SR 'successfully resigned' \u65e5\x1b is \udcff not."))

    assert found.result.code not in NEVER
    assert "SR 'successfully? resigned' \u65e5? is ? not." in found.result.text
    assert b"successfully resigned" not in found.stdout.lower()
    assert found.stderr == b""


@pytest.mark.parametrize(
    "document, sent",
    [(LIST, LIST), ("<a>successfully resigned \ufffd\x1b", "<a>successfully? resigned \ufffd?")],
)
def test_lists_go_to_stderr_in_utf_8_and_never_read_as_success(creating, document, sent):
    found = creating(MissingKey("It is missing.", "ConfigSCSIid", document))

    assert found.result == wire.Fault(107, "It is missing. [ConfigSCSIid]")
    assert found.stderr.decode("utf-8") == sent


@pytest.mark.parametrize("bug", [ValueError("successfully resigned"), MemoryError(), OSError(5, "EIO")])
def test_a_bug_is_named_and_its_traceback_is_in_smlog(creating, smlog, bug):
    found = creating(bug)

    assert found.result.code == 1200
    assert type(bug).__name__ in found.result.text
    assert "successfully resigned" not in found.result.text
    assert found.stderr == b""
    assert [text for _, text in smlog if "Traceback" in text and type(bug).__name__ in text]


# --- secrets


@pytest.mark.parametrize("key", ["chappassword", "incoming_chappassword", "novelty_password"])
@pytest.mark.parametrize("error", [RuntimeError, UsageError])
def test_no_secret_gets_out(creating, smlog, key, error):
    found = creating(
        error("{} and {} and {!r}".format(SESSION, PASSWORD, {"a": PASSWORD})), {"target": "a", key: PASSWORD}
    )

    assert PASSWORD not in found.result.text
    assert SESSION not in found.result.text
    assert smlog
    assert [text for _, text in smlog if PASSWORD in text or SESSION in text] == []


# --- other commands, and what is none


@pytest.mark.parametrize("command", ["sr_create", "sr_probe"])
def test_a_configuration_is_judged_before_anybody_is_asked_and_only_the_master_resignatures(answer, command):
    assert answer(call_of(command, {"SRmaster": "true"})).result.code == 95
    assert answer(call_of(command, dict(DEVICE_CONFIG, port="x"))).result.code == 142
    assert answer(call_of(command, dict(DEVICE_CONFIG, SCSIid="../x"))).result.code == 107
    if command == "sr_create":
        fault = answer(call_of(command, dict(DEVICE_CONFIG, SRmaster="false"))).result
        assert fault.code == 58 and "Nothing was written." in fault.text
