# SPDX-License-Identifier: LGPL-2.1-only
"""SM's error numbers, and the number that the driver answers for each error of relvmoiscsi.

xapi drops the text of faults 16, 24, 38, 39 and 144. Callers take fault 1 for the success of a resignature. So the
driver answers an error with such a number as SMGeneral, with the error's own text.
"""

import re
from typing import Dict
from xmlrpc.client import Fault

from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.wording import cut

UNIMPLEMENTED = 38
SM_GENERAL = 202
GENERIC_EXCEPTION = 1200
#: faults whose text xapi drops, and the fault that means success
_SILENT = (1, 16, 24, 38, 39, 144)

#: the keys that errors of relvmoiscsi have. Source: SM drivers/XE_SR_ERRORCODES.xml
NUMBERS: Dict[str, int] = {
    "InvalidArg": 1,
    "SRInUse": 16,
    "InvalidDev": 19,
    "InvalidSecret": 20,
    "LockErr": 37,
    "Unimplemented": 38,
    "SRNoSpace": 44,
    "SRUnavailable": 47,
    "LVMMaster": 58,
    "ISCSIDevice": 67,
    "ISCSILogin": 68,
    "ISCSILogout": 69,
    "ISCSIInitiator": 70,
    "ISCSIDaemon": 71,
    "ISCSIDiscovery": 83,
    "ISCSIIQN": 84,
    "ISCSIQueryDaemon": 86,
    "VolNotFound": 92,
    "ConfigTargetMissing": 95,
    "ConfigTargetIQNMissing": 96,
    "ConfigISCSIIQNMissing": 97,
    "LVMRefCount": 104,
    "ConfigSCSIid": 107,
    "LVMRead": 117,
    "DNSError": 140,
    "ISCSITarget": 141,
    "ISCSIPort": 142,
    "BadRequest": 143,
    "APISession": 150,
    "APILocalhost": 151,
    "APIPBDQuery": 152,
    "APIFailure": 153,
    "MetadataError": 181,
    "EIO": 200,
    "SMGeneral": SM_GENERAL,
    "MultipathGenericFailure": 431,
}


def fault_of(error: RelvmoiscsiError) -> Fault:
    """Return the fault for an error."""
    code = NUMBERS.get(error.sm_key, SM_GENERAL)
    return Fault(SM_GENERAL if code in _SILENT else code, unmistakable(f"{cut(str(error))} [{error.sm_key}]"))


def unmistakable(text: str) -> str:
    """Return the text without the words that callers take for success; a name from the LUN may contain these words."""
    return re.sub("successfully(?= resigned)", "successfully?", text, flags=re.IGNORECASE)
