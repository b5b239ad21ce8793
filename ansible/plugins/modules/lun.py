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
  - Gives clones new identities, attaches clones on all hosts of a pool, detaches and forgets copies.
  - The module works on up to O(jobs) LUNs in parallel. A failed LUN does not stop LUNs behind other targets. A LUN whose
    SR is in use stops no other LUN. The task fails after the last LUN has ended. RV(luns) has the result for each LUN.
  - The module refuses invalid selections before the first change, for example a SCSIid that the pool does not see, or an original.
  - No state destroys an SR or the content of a LUN. Unmap or delete a LUN on the array.
extends_documentation_fragment:
  - relvmoiscsi.pool.connection
  - relvmoiscsi.pool.connection.portal
attributes:
  check_mode:
    description: Can run in check mode, which is the dry run.
    support: full
  diff_mode:
    description: Shows the SRs and their state on each host, before and after.
    support: full
options:
  state:
    description:
      - V(resignatured) gives the clones new identities and makes no SR.
      - V(attached) does the same, and introduces and plugs the SR on all hosts. The task fails while a host is down.
      - V(detached) unplugs the SR on all hosts and destroys its PBDs. The pool keeps the SR, its VDIs and their VBDs.
      - V(forgotten) does the same, and forgets the SR. The LUN is not changed.
    type: str
    choices: [ resignatured, attached, detached, forgotten ]
    default: attached
  scsi_ids:
    description:
      - SCSIids of LUNs, as the host or the array prints them.
    type: list
    elements: str
    default: []
  clones_of:
    description:
      - All copies of these SRs, by UUID or name. A LUN with new identities and without an SR in this pool is no such copy,
        whatever its label says. Name it in O(scsi_ids).
    type: list
    elements: str
    default: []
  srs:
    description:
      - Copies, by UUID or name, for the states V(detached) and V(forgotten). A missing copy is no error.
    type: list
    elements: str
    default: []
  all:
    description:
      - All copies. A LUN that another pool may use is skipped.
    type: bool
    default: false
  name:
    description:
      - Name of the new SRs. C({sr}), C({date}), C({changed}) and C({scsi_id}) are replaced.
      - C({date}) and C({changed}) are the day and the time of the last change of the SR by LVM.
    type: str
    default: "{sr} changed {date}"
  foreign:
    description:
      - Accept clones of SRs unknown to this pool in O(scsi_ids) and O(clones_of). You confirm that no other pool uses the clones.
    type: bool
    default: false
  unplugged:
    description:
      - Accept clones in O(scsi_ids) and O(clones_of) of SRs that no host has attached. You confirm that no such LUN is the SR
        itself under a new SCSIid.
    type: bool
    default: false
  leave_others:
    description:
      - Attach even if hosts will see clones behind the same target that are not selected, or did not get new identities.
        A host with an iSCSI session to the target sees these clones at once. Other hosts see these clones after a login.
    type: bool
    default: false
  with_vms:
    description:
      - With the state V(forgotten), destroy the VMs that M(relvmoiscsi.pool.vm_clone) has made on the copies.
    type: bool
    default: false
  last_copies:
    description:
      - With the states V(detached) and V(forgotten), also let VMs go that M(relvmoiscsi.pool.vm_clone) has made, and
        whose originals the pool no longer has. By default, the module refuses such a copy.
    type: bool
    default: false
  leave_vms:
    description:
      - With the state V(forgotten), let halted VMs lose their disks on the copies. By default, the module refuses such
        a copy.
    type: bool
    default: false
  force:
    description:
      - With O(with_vms), shut these VMs down hard first. Other VMs with disks on a copy still stop the task.
    type: bool
    default: false
  mark:
    description:
      - A word of letters, digits and C(-_.), stored with the introduced SRs.
      - With a mark, O(clones_of) and O(all) skip copies that were introduced without the mark. The module refuses such a
        copy in O(srs) or O(scsi_ids). With the state V(forgotten), VMs that were made without the mark stay, and their
        copies stay too.
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

- name: Print the map of VDIs
  ansible.builtin.debug:
    var: copies.map

- name: Attach one LUN under a given name
  relvmoiscsi.pool.lun:
    scsi_ids: [ 3600a098038303053453f463045727a31 ]
    target: 10.0.0.5
    name: "Test {date}"

- name: Forget the attached copies
  relvmoiscsi.pool.lun:
    state: forgotten
    srs: "{{ copies.luns | selectattr('new_sr', 'defined') | map(attribute='new_sr') }}"
    with_vms: true
"""

RETURN = r"""
luns:
  description: A row for each LUN, in the order of the selection or of the list of LUNs.
  returned: unless the task was refused before the first change
  type: list
  elements: dict
  contains:
    scsi_id:
      description: SCSIid of the LUN.
      type: str
    status:
      description:
        - The result, such as C(attached), C(already attached), C(partial), C(failed); in check mode C(would be attached).
      type: str
    changed:
      description: Whether the LUN or its SR was changed.
      type: bool
    old_sr:
      description: UUID of the original SR.
      type: str
    new_sr:
      description: UUID of the SR on the LUN.
      returned: if the pool has the SR; in check mode, a clone has no new SR yet
      type: str
    sr_name_label:
      description: Name of the SR.
      type: str
    hosts:
      description: State of the SR on each host.
      type: dict
    vdi_pairs:
      description:
        - VDIs of the SR. Empty in check mode, and with the states V(resignatured), V(detached) and V(forgotten).
      type: list
      elements: dict
      contains:
        old_vdi:
          description: UUID of the original VDI. None for a VDI that was made on the copy.
          type: str
        new_vdi:
          description: UUID of the VDI on the copy.
          type: str
        vdi_name:
          description: Name of the VDI.
          type: str
        virtual_size_bytes:
          description: Size of the disk that a VM sees.
          type: int
        is_a_snapshot:
          description: Whether the VDI is a snapshot.
          type: bool
        is_managed:
          description: Whether the VDI is no internal part of a chain.
          type: bool
    notes:
      description: What the copy lacks, in sentences. Empty in check mode, and with all states but V(attached).
      type: list
      elements: str
    destroyed_vm_names:
      description: Names of the VMs that are destroyed with the SR. Empty with the states V(resignatured) and V(attached).
      type: list
      elements: str
    problem:
      description: Why the LUN is not in the requested state.
      type: str
map:
  description: New UUIDs of VDIs by old UUID, by UUID of the new SR. Only with the state V(attached).
  returned: unless the task was refused before the first change
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
        "name": {"type": "str", "default": "{sr} changed {date}"},
        "foreign": {"type": "bool", "default": False},
        "unplugged": {"type": "bool", "default": False},
        "leave_others": {"type": "bool", "default": False},
        "with_vms": {"type": "bool", "default": False},
        "last_copies": {"type": "bool", "default": False},
        "leave_vms": {"type": "bool", "default": False},
        "force": {"type": "bool", "default": False},
    }
    module = AnsibleModule(
        argument_spec={**client.CONNECTION, **client.PORTAL, **client.MARK, **spec},
        required_together=client.PORTAL_TOGETHER,
        required_by=client.PORTAL_REQUIRED_BY,
        supports_check_mode=True,
    )
    is_forward = module.params["state"] in ("resignatured", "attached")
    if is_forward and module.params["srs"]:
        module.fail_json(msg="srs is for the states detached and forgotten.")
    if not any(module.params[name] for name in ("scsi_ids", "clones_of", "srs", "all")):
        module.fail_json(msg="No LUN is named: give scsi_ids, clones_of, srs or all.")
    work = lun_states.forward if is_forward else lun_states.backward
    client.play(module, work)


if __name__ == "__main__":
    main()
