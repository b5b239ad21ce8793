# SPDX-License-Identifier: LGPL-2.1-only
"""The SR types of the product: the one list of its drivers. A driver has a row here, an executable, and a package.

SR.create of a type of the product gives a LUN new identities. An SR of that type belongs to a call that runs, or to a
call that died with xapi. The stock type attaches the result.

Here is also what the drivers' lists on stderr and their readers agree on.
"""

from typing import NamedTuple

LEFT_OUT = "left_out"  #: attribute of the root of a list on stderr: how many LUNs or targets the list lacks
MOST_LUNS = 4096  #: that a list of LUNs or targets has, and that are read for it: a target may list 65536


class SrType(NamedTuple):
    """An SR type of the product."""

    name: str
    stock: str  #: the type of SM that attaches the LUN
    executable: str  #: the file of the driver, which has the name of its class as xapi wants it


ISCSI_SR = SrType("relvmoiscsi", "lvmoiscsi", "ReLVMoISCSISR")
HBA_SR = SrType("relvmohba", "lvmohba", "ReLVMoHBASR")

SR_TYPES = (ISCSI_SR, HBA_SR)
OWN_TYPES = tuple(each.name for each in SR_TYPES)
STOCK_TYPES = tuple(each.stock for each in SR_TYPES)
