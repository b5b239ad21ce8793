# SPDX-License-Identifier: LGPL-2.1-only
"""The Java SDK that CloudStack pins says of each error what the stand-in of CloudStack's agent says."""

import pytest
import XenAPI

from clients.conftest import FETCHED, HERE
from kit.lun_world import World
from kit.pool import cloudstack, datamodel
from kit.pool.errors import XenError

pytestmark = pytest.mark.processes

#: of a driver; the data model cannot name them
OF_DRIVERS = {f"SR_BACKEND_FAILURE_{number}" for number in (1, 47, 107, 202)}

PARAMETERS = ["first", "second", "third"]


def test_what_an_error_is_for_cloudstack(run):
    codes = sorted(datamodel.ERRORS | OF_DRIVERS)
    with World().pool() as pool:

        def fail(method, params):
            if method == "SR.get_by_name_label":
                raise XenError(params[1], *PARAMETERS)

        pool.api.before = fail
        printed = run(pool, "java", "-cp", f"{FETCHED}/java/*", HERE / "Exceptions.java", stdin="\n".join(codes))

    said = dict(zip(codes, (tuple(line.split("\t")) for line in printed.splitlines())))
    assert len(said) == len(codes) > 600
    assert {code: kind for code, (kind, _) in said.items()} == {code: cloudstack.class_of(code) for code in codes}
    plain = {code: text for code, (kind, text) in said.items() if kind == "XenAPIException"}
    assert set(plain) > OF_DRIVERS
    assert plain == {code: cloudstack.to_string(XenAPI.Failure([code, *PARAMETERS])) for code in plain}
    sentences = {code: text for code, (_, text) in said.items() if code not in plain}
    stood_in = {code: cloudstack.to_string(XenAPI.Failure([code, *PARAMETERS])) for code in sentences}
    for told in (sentences, stood_in):
        assert [code for code, text in told.items() if code in text or "firstsecond" in text or "<LUN>" in text] == []
        assert not any("successfully resigned" in text for text in told.values())
