# SPDX-License-Identifier: LGPL-2.1-only
"""Each answer and each error of xapi that the code reads has a form, or is refused where it comes in."""

import pytest

from relvmoiscsi.pool import answer_forms
from relvmoiscsi.pool.calls import failure

PBD = "OpaqueRef:0a0b0c0d-0000-4000-8000-000000000001"


def test_a_method_without_a_form_is_refused():
    for method in ("SR.scan", "host.call_plugin", "VM.query_services"):
        with pytest.raises(ValueError, match="no form is known"):
            answer_forms.verify(method, "x")
    for method in ("SR.forget", "VM.set_name_label", "pool.remove_from_other_config", "session.logout"):
        answer_forms.verify(method, "")


def test_a_field_that_nobody_reads_has_any_form_that_json_has():
    answer_forms.verify("host_metrics.get_record", {"live": True, "x": [[[[[{"y": [None, 1.5]}]]]]]})


@pytest.mark.parametrize("value", ["7", "", 7.0, True, None])
def test_a_whole_number_is_a_number_of_json(value):
    for number in (7, 2**63 - 1, -(2**63)):
        answer_forms.verify("VDI.get_virtual_size", number)
    with pytest.raises(ValueError, match="no value of that field"):
        answer_forms.verify("VDI.get_virtual_size", value)


@pytest.mark.parametrize("parameters", [[], ["sr"], ["sr", "host"], ["sr", "host", "x y"], ["sr", "host", ""]])
def test_an_error_without_its_parameters_is_not_taken_for_it(parameters):
    found = failure("PBD.create", ["PBD_EXISTS", *parameters])
    assert found.code == "" and "PBD_EXISTS to PBD.create, without the parameters" in str(found)


def test_an_error_with_its_parameters_is_taken_for_it():
    found = failure("PBD.create", ["PBD_EXISTS", "sr", "host", PBD])
    assert (found.code, found.description[3]) == ("PBD_EXISTS", PBD)
    assert failure("SR.scan", []).code == ""
