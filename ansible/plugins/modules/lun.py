#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring array clones of SRs to a state: resignatured, attached, detached, forgotten."""

from __future__ import annotations

DOCUMENTATION = r"""
module: lun
short_description: Bring array clones of SRs of XenServer or XCP-ng to a state
version_added: 0.1.0
description:
  - Gives clones identities of their own, attaches them on all hosts of a pool, detaches and forgets them again.
  - It takes a list, and works on up to O(jobs) LUNs at a time. One that fails stops no LUN behind another target, and
    one whose SR is in use stops no other; the task fails when all have ended, and RV(luns) says what became of each.
  - What cannot be meant is refused before anything is done, such as a SCSIid that the pool does not see, or an original.
  - No state destroys an SR or what is on a LUN. To unmap or delete a LUN is the array's.
extends_documentation_fragment:
  - relvmoiscsi.pool.connection
  - relvmoiscsi.pool.connection.portal
attributes:
  check_mode:
    description: Can run in check mode, which is the dry run.
    support: full
  diff_mode:
    description: Shows the SRs and how they are on each host, before and after.
    support: full
options:
  state:
    description:
      - V(resignatured), new identities and nothing more.
      - V(attached), the same, and the SR introduced and plugged on all hosts. It fails as long as a host is down.
      - V(detached), unplugged on all hosts, and no PBD is left; the pool keeps the SR, its VDIs and who has them.
      - V(forgotten), the same, and the pool does not know the SR any more. The LUN is as it was.
    type: str
    choices: [ resignatured, attached, detached, forgotten ]
    default: attached
  scsi_ids:
    description:
      - SCSIids of LUNs.
    type: list
    elements: str
    default: []
  clones_of:
    description:
      - All copies of these SRs, by UUID or name.
    type: list
    elements: str
    default: []
  srs:
    description:
      - Copies, by UUID or name, for the states V(detached) and V(forgotten). One that is not there is done.
    type: list
    elements: str
    default: []
  all:
    description:
      - All copies that there are. What another pool may have in use is left out.
    type: bool
    default: false
  name:
    description:
      - Name of the new SRs, with C({sr}), C({date}) and C({scsi_id}).
    type: str
    default: "{sr} {date}"
  foreign:
    description:
      - LUNs in O(scsi_ids) or O(clones_of) with SRs that this pool does not know are clones that no other pool uses.
    type: bool
    default: false
  leave_others:
    description:
      - Attach although hosts will see clones behind the same target that are not named, or that did not get new
        identities. A host with an iSCSI session to the target sees them at once, the others when they log in.
    type: bool
    default: false
  with_vms:
    description:
      - With the state V(forgotten), destroy the VMs that M(relvmoiscsi.pool.vm_clone) has made on the copies.
    type: bool
    default: false
  leave_vms:
    description:
      - With the state V(forgotten), leave halted VMs that have disks on the copies without them. Else such a copy is
        refused.
    type: bool
    default: false
  force:
    description:
      - With O(with_vms), turn those VMs off first, hard. VMs of others that have disks there hinder it all the same.
    type: bool
    default: false
  again:
    description:
      - LUNs that are copies of O(clones_of), have identities of their own already, and that no SR of this pool is on, are
        meant as well. They were attached and forgotten before; you know that no other pool uses them now.
    type: bool
    default: false
  mark:
    description:
      - A word of letters, digits and C(-_.) which the SRs that are introduced bear.
      - With it, O(clones_of) and O(all) mean no copy of the pool that was introduced without it, and such a copy is refused
        where it is named otherwise. With the state V(forgotten), VMs that were made without it stay, and so do the
        copies on which they have disks.
    type: str
seealso:
  - module: relvmoiscsi.pool.lun_info
"""

EXAMPLES = r"""
- name: Attach all clones of Production, ten at a time
  relvmoiscsi.pool.lun:
    hostname: xs1.example
    password: "{{ xenserver_password }}"
    clones_of: [ Production ]
  register: copies

- name: Say which VDI is which
  ansible.builtin.debug:
    var: copies.map

- name: Attach one LUN, by a name of its own
  relvmoiscsi.pool.lun:
    scsi_ids: [ 3600a098038303053453f463045727a31 ]
    target: 10.0.0.5
    name: "Test {date}"

- name: Forget what was attached
  relvmoiscsi.pool.lun:
    state: forgotten
    srs: "{{ copies.luns | map(attribute='sr.new') }}"
    with_vms: true
"""

RETURN = r"""
luns:
  description: A row for each LUN, in the order in which they were named or seen.
  returned: unless the task was refused before anything was done
  type: list
  elements: dict
  contains:
    scsi_id:
      description: Its SCSIid.
      type: str
    status:
      description:
        - What became of it, such as C(attached), C(already attached), C(partial), C(failed); in check mode C(would be attached).
      type: str
    changed:
      description: Whether anything of it was changed.
      type: bool
    sr:
      description: UUIDs of the SR that it was a clone of, C(old), and of the one that it is, C(new).
      type: dict
    name:
      description: Name of the SR.
      type: str
    hosts:
      description: How the SR is on each host.
      type: dict
    vdis:
      description: VDIs, each with C(old), C(new), C(name_label), C(size_bytes), C(is_a_snapshot) and C(is_managed).
      type: list
      elements: dict
    vms:
      description: Names of the VMs that go with it.
      type: list
      elements: str
    error:
      description: Why it is not in the state asked for.
      type: str
map:
  description: New UUIDs of VDIs by old ones, by UUID of the new SR. Only the state V(attached) knows them.
  returned: unless the task was refused before anything was done
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.relvmoiscsi.pool.plugins.module_utils import client, lun_states


def main():
    spec = {
        "state": {
            "type": "str",
            "choices": ["resignatured", "attached", "detached", "forgotten"],
            "default": "attached",
        },
        "scsi_ids": {"type": "list", "elements": "str", "default": []},
        "clones_of": {"type": "list", "elements": "str", "default": []},
        "srs": {"type": "list", "elements": "str", "default": []},
        "all": {"type": "bool", "default": False},
        "name": {"type": "str", "default": "{sr} {date}"},
        "foreign": {"type": "bool", "default": False},
        "leave_others": {"type": "bool", "default": False},
        "with_vms": {"type": "bool", "default": False},
        "leave_vms": {"type": "bool", "default": False},
        "force": {"type": "bool", "default": False},
        "again": {"type": "bool", "default": False},
    }
    module = AnsibleModule(
        argument_spec={**client.CONNECTION, **client.PORTAL, **client.MARK, **spec},
        required_together=client.PORTAL_TOGETHER,
        required_by=client.PORTAL_REQUIRED_BY,
        supports_check_mode=True,
    )
    is_forward = module.params["state"] in ("resignatured", "attached")
    if is_forward and module.params["srs"]:
        module.fail_json(msg="srs is for what is attached: the states detached and forgotten.")
    if not any(module.params[name] for name in ("scsi_ids", "clones_of", "srs", "all")):
        module.fail_json(msg="Nothing is named: give scsi_ids, clones_of, srs or all.")
    work = lun_states.forward if is_forward else lun_states.backward
    client.play(module, work)


if __name__ == "__main__":
    main()
