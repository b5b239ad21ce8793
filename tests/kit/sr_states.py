# SPDX-License-Identifier: LGPL-2.1-only
"""What a pool may have of the SR whose UUID is on a LUN, and whether a run may then take that SR off the LUN.

for state in STATES: state.put(pool.db, hosts, sr_uuid, scsi_id); is the LUN scsi_id written? -> state.is_written
"""

from itertools import product
from typing import NamedTuple

OTHER_LUN = "3600140500000000000000000000other"

UNKNOWN, INTRODUCED, MAINTENANCE = "unknown", "introduced", "in maintenance"
UNPLUGGED, ATTACHED, ON_A_DEAD_HOST = "unplugged", "attached", "attached on a dead host"
OTHER, SAME, NONE = "another LUN", "this LUN", "no LUN"


class State(NamedTuple):
    """`sr` says what the pool has of the SR, `lun` which LUN the PBDs of the SR name."""

    sr: str
    lun: str = NONE

    @property
    def is_written(self):
        """The LUN is a copy for certain, or nobody in the pool has ever had its SR."""
        return self.sr in (UNKNOWN, INTRODUCED) or (self.sr, self.lun) == (ATTACHED, OTHER)

    @property
    def is_believed(self):
        """Nothing in the pool contradicts a LUN that says that it got this SR in a resignature."""
        return self.sr in (UNKNOWN, INTRODUCED) or self.lun == SAME

    def put(self, db, hosts, sr_uuid, scsi_id):
        """Give the pool an SR of this state; gives its reference, None without one. The first of the hosts is live."""
        if self.sr == UNKNOWN:
            return None
        sr = db.create("SR", sr_uuid, name_label="production", type="lvmoiscsi", shared=True)
        if self.sr == MAINTENANCE:  # the PBDs were destroyed, to be made anew; xapi keeps VDIs and what SM has noted
            db.set("SR", sr, "sm_config", {"devserial": "scsi-" + OTHER_LUN})
        if self.sr in (INTRODUCED, MAINTENANCE):
            return sr
        config = {OTHER: {"SCSIid": OTHER_LUN}, SAME: {"SCSIid": scsi_id}, NONE: {"device": "/dev/sdz3"}}[self.lun]
        for host in hosts:
            is_dead = self.sr == ON_A_DEAD_HOST and host == hosts[-1]
            if is_dead:
                db.set("host_metrics", db.get("host", host, "metrics"), "live", False)
            is_attached = is_dead or self.sr == ATTACHED and host == hosts[0]
            db.create("PBD", SR=sr, host=host, device_config=config, currently_attached=is_attached)
        return sr


STATES = [State(UNKNOWN), State(INTRODUCED), State(MAINTENANCE)]
STATES += [State(*pair) for pair in product((UNPLUGGED, ATTACHED, ON_A_DEAD_HOST), (OTHER, SAME, NONE))]


def name_of(state):
    return f"{state.sr}, {state.lun}"
