# SPDX-License-Identifier: LGPL-2.1-only
"""Calls of xapi to a program are read, and answers written; nothing else is taken for a call."""

import xmlrpc.client

import pytest

from relvmoiscsi.host.xapi.xml_rpc import BadDocument, fault_text, parse_call, response_text


def test_a_call_is_its_method_and_its_parameters():
    assert parse_call(xmlrpc.client.dumps(({"a": ["<&>", ""]}, "b"), "sr_create")) == (
        "sr_create",
        [{"a": ["<&>", ""]}, "b"],
    )


@pytest.mark.parametrize(
    "document",
    ["", "text", "<methodCall/>", response_text("an answer"), fault_text(3, "a fault"), "<value>" * 5000],
)
def test_nothing_else_is_a_call(document):
    with pytest.raises(BadDocument):
        parse_call(document)


def test_an_answer_and_a_fault():
    assert xmlrpc.client.loads(response_text("<a> & \u65e5")) == (("<a> & \u65e5",), None)
    with pytest.raises(xmlrpc.client.Fault) as caught:
        xmlrpc.client.loads(fault_text(68, "no"))
    assert (caught.value.faultCode, caught.value.faultString) == (68, "no")
