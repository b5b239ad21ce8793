# SPDX-License-Identifier: LGPL-2.1-only
"""Who logs in to the target of an iscsi:// URL: initiator name and CHAP secrets.

initiator name    --initiator-name; otherwise from /etc/iscsi/initiatorname.iscsi, as xapi writes the IQN
                  of a host; otherwise derived from the UUID of this machine
CHAP secrets      from the environment variables of libiscsi, or from --chap-file with the same names; never
                  from an argument
"""

import hashlib
import os
from typing import Optional

from relvmoiscsi.errors import UsageError
from relvmoiscsi.host import secret_file
from relvmoiscsi.host.files import attribute, lines_of
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.iscsi import Credentials, Initiator
from relvmoiscsi.iscsi.names import checked_initiator, is_initiator
from relvmoiscsi.lun.lun_url import parse_url
from relvmoiscsi.lun.opened import SessionOptions
from relvmoiscsi.lun.url_source import UrlSource

USER, SECRET = "LIBISCSI_CHAP_USERNAME", "LIBISCSI_CHAP_PASSWORD"
TARGET_USER, TARGET_SECRET = "LIBISCSI_CHAP_TARGET_USERNAME", "LIBISCSI_CHAP_TARGET_PASSWORD"
_NAMES = (USER, SECRET, TARGET_USER, TARGET_SECRET)

INITIATOR_FILE = "etc/iscsi/initiatorname.iscsi"
#: Nobody can register this domain (RFC 2606). A naa. name would need no domain, but NetApp's arrays reject naa. names,
#: and targetcli rejects locally assigned naa. names (naa.3).
OWN_NAME = "iqn.2026-11.invalid.relvmoiscsi:{}"


def url_of(word: str, host: Host, session: SessionOptions) -> UrlSource:
    """Return what a URL names, with who logs in. Raises UsageError."""
    url = parse_url(word)
    initiator = Initiator(initiator_name(session.initiator_name, host), host_uuid(host))
    secrets = credentials(session.chap_file, url.user)
    return UrlSource(word, url, initiator, secrets, host, session.waiting, scsi_id=session.scsi_id)


def host_uuid(host: Host = THIS_HOST) -> str:
    """Return an id that no other machine has: on a host of xapi, the UUID of the host."""
    machine = attribute(host.at("etc/machine-id"))
    return host.installation_uuid or machine or host.boot_id


def initiator_name(given: Optional[str], host: Optional[Host] = None) -> str:
    """Return the initiator name for the login. Raises UsageError for a malformed name."""
    if given is not None:
        return checked_initiator(given)
    host = host or THIS_HOST
    for line in lines_of(host.at(INITIATOR_FILE)):
        key, _, value = line.partition("=")
        if key.strip() == "InitiatorName" and is_initiator(value.strip()):
            return value.strip()
    return OWN_NAME.format(hashlib.sha256(f"initiator of {host_uuid(host)}".encode()).hexdigest()[:16])


def credentials(chap_file: Optional[str], user: str) -> Credentials:
    """Return the CHAP users and secrets, from the environment or --chap-file. Raises UsageError.

    `user` is the user in the URL, which takes precedence; "" without one.
    """
    values = {name: os.environ.get(name, "") for name in _NAMES}
    if chap_file is not None:
        values = dict.fromkeys(_NAMES, "")
        for number, line in enumerate(secret_file.lines_of(chap_file), 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, is_set, value = line.partition("=")
            if name.strip() not in values or not is_set:  # the message contains no line of the file
                names = ", ".join(_NAMES)
                raise UsageError(f"Line {number} of {chap_file} is not NAME=VALUE with one of the names {names}.")
            values[name.strip()] = value.strip()
        if not any(values.values()):
            raise UsageError(f"The CHAP file {chap_file} holds no CHAP user and no password.")
    try:
        return Credentials(user or values[USER], values[SECRET], values[TARGET_USER], values[TARGET_SECRET])
    except UsageError as problem:
        problem.message += f" The environment or a CHAP file gives them as {', '.join(_NAMES)}."
        raise
