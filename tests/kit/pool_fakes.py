# SPDX-License-Identifier: LGPL-2.1-only
"""Small drivers for tests of the simulated pool: shell scripts that answer what a test says."""

import os
import sys
import time

NIL = "<?xml version='1.0'?><methodResponse><params><param><value><nil/></value></param></params></methodResponse>"

INFO = {
    "name": "<string>LVHD over iSCSI with resigning of duplicates</string>",
    "description": "<string>a fake</string>",
    "vendor": "<string/>",
    "copyright": "",
    "driver_version": "1.0",
    "required_api_version": "<string>1.0</string>",
    "capabilities": "<array><data><value>SR_PROBE</value><value>VDI_CLONE/3</value><value>SR_JUGGLE</value>"
    "</data></array>",
    "configuration": "<array><data><value><struct>"
    "<member><name>key</name><value>target</value></member>"
    "<member><name>description</name><value>IP address</value></member></struct></value></data></array>",
}


def result(value):
    """An answer with this XML inside its value."""
    return f"<methodResponse><params><param><value>{value}</value></param></params></methodResponse>"


def fault(code, text):
    return (
        "<?xml version='1.0'?><methodResponse><fault><value><struct>"
        f"<member><name>faultCode</name><value><int>{code}</int></value></member>"
        f"<member><name>faultString</name><value><string>{text}</string></value></member>"
        "</struct></value></fault></methodResponse>"
    )


def struct(members):
    rows = ("<member><name>{}</name><value>{}</value></member>".format(*item) for item in members.items())
    return "<struct>{}</struct>".format("".join(rows))


def say(text):
    """Shell that prints a text."""
    return f"cat <<'END_OF_TEXT'\n{text}\nEND_OF_TEXT"


def shell(commands, info=INFO):
    """A driver: {command: shell}, and an answer to sr_get_driver_info unless that is among the commands."""
    cases = {"sr_get_driver_info": say(result(struct(info)))}
    cases.update(commands)
    body = "".join("*'<name>command</name><value>{}</value>'*)\n{}\n;;\n".format(*item) for item in cases.items())
    return '#!/bin/sh\ncase "$1" in\n{}*)\n{}\n;;\nesac\n'.format(body, say(fault(38, "not known")))


def python(text):
    """A driver in Python: the body, and an answer to sr_get_driver_info before it."""
    head = "#!{}\nimport sys\nif '<value>sr_get_driver_info</value>' in sys.argv[1]:\n    print({!r})\n    sys.exit()\n"
    return head.format(sys.executable, result(struct(INFO))) + text


def install(directory, name, text, mode=0o755):
    path = os.path.join(str(directory), name)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, mode)
    return path


def until(condition, timeout_s=300):
    """Wait for a condition that nothing announces."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true within {timeout_s} s"
        time.sleep(0.002)
