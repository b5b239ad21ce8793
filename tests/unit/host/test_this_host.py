# SPDX-License-Identifier: LGPL-2.1-only
"""What a host says of itself in its files."""

import pytest

from relvmoiscsi.host.this_host import Host

UUID = "1a3e7f52-52ab-4f5f-9d4f-7e1f0a6b6c11"


@pytest.mark.parametrize(
    "record, uuid",
    [
        (f"PRODUCT_BRAND='XCP-ng'\nINSTALLATION_UUID='{UUID}'\n".encode(), UUID),
        (b'\xff\nno equals sign\nINSTALLATION_UUID = "a" \r\nINSTALLATION_UUID=b\n', "b"),
        (b"OTHER_INSTALLATION_UUID=a\n", ""),
        (None, ""),
    ],
)
def test_the_uuid_of_a_host_is_in_the_record_of_the_installer(tmp_path, record, uuid):
    if record is not None:
        (tmp_path / "etc").mkdir()
        (tmp_path / "etc/xensource-inventory").write_bytes(record)

    assert Host(str(tmp_path)).installation_uuid == uuid
