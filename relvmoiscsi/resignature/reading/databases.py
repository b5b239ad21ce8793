# SPDX-License-Identifier: LGPL-2.1-only
"""VDIs that are to hold the database of a pool, for disaster recovery; and a LUN on which they do not.

MGT has the reference of the pool, and a clone has the original's MGT. When a shared SR with such a VDI of its own pool
is plugged on the master, xapi begins to write its database into it: into the clone. So the reference is taken out where
somebody asks for that; the VDI stays, and what is in it.
Source: xen-api ocaml/xapi/xapi_dr.ml (handle_metadata_vdis), message_forwarding.ml (PBD.plug); SM drivers/LVHDSR.py.
"""

from typing import Dict

from relvmoiscsi.formats import naming
from relvmoiscsi.formats.mgt import without_pools
from relvmoiscsi.resignature.reading.lun import Lun, Work


def databases(lun: Lun) -> Dict[str, str]:
    """The reference of the pool, by the UUID of the VDI that is to hold its database."""
    disks = lun.disks()
    records = lun.records().items()
    return {uuid: record.metadata_of_pool for uuid, record in records if uuid in disks and record.metadata_of_pool}


def without_databases(lun: Lun) -> Lun:
    """The LUN, whose work is now also that no VDI on it is to hold a database; as it is where none does."""
    settled = lun.settled()
    found = databases(settled)
    if not found or settled.mgt is None:
        return lun
    after = settled._replace(mgt=without_pools(settled.mgt, naming.MGT), work=None)
    sentences = [f"VDI {uuid} is not to hold the database of the pool {pool} any more." for uuid, pool in found.items()]
    known = lun.work.sentences if lun.work else ()
    return lun._replace(work=Work(after, [*known, *sentences], lun.work.rebuilt if lun.work else frozenset()))
