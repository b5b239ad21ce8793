#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List and classify the LUNs that a pool sees."""

from __future__ import annotations

DOCUMENTATION = r"""
module: lun_info
short_description: List and classify the LUNs that a pool of XenServer or XCP-ng sees
version_added: 0.1.0
description:
  - The module classifies each LUN, for example as an original, a clone of an SR, or an attached copy. Nothing is written.
extends_documentation_fragment:
  - relvmoiscsi.pool.connection
  - relvmoiscsi.pool.connection.portal
attributes:
  check_mode:
    description: Can run in check mode.
    support: full
seealso:
  - module: relvmoiscsi.pool.lun
"""

EXAMPLES = r"""
- name: List the LUNs behind the targets of the pool's SRs
  relvmoiscsi.pool.lun_info:
    hostname: xs1.example
    password: "{{ xenserver_password }}"
  register: seen

- name: Print the SCSIids of the clones
  ansible.builtin.debug:
    msg: "{{ seen.luns | selectattr('lun_kind', 'eq', 'clone') | map(attribute='scsi_id') }}"
"""

RETURN = r"""
luns:
  description: A row for each LUN.
  returned: success
  type: list
  elements: dict
  contains:
    scsi_id:
      description: SCSIid. None for a target that gave no list.
      type: str
    lun_kind:
      description:
        - C(original), C(attached), C(clone), C(unknown SR), C(unconnected), C(resignatured), C(unfinished), C(empty),
          C(foreign), C(damaged), C(busy) or C(unreachable).
      type: str
    size_bytes:
      description: Size of the LUN.
      type: int
    portal_address:
      description: Address of the portal. Empty for a LUN behind adapters.
      type: str
    iqn:
      description: IQN of the target.
      type: str
    sr:
      description: UUID of the SR on the LUN.
      type: str
    copy_of:
      description: UUID of the original SR, for a copy.
      type: str
    sr_name_label:
      description: Name of the SR on the LUN, or of the original SR.
      type: str
    one_vdi_state:
      description: Whether the LUN has one VDI, or can be reduced to one VDI.
      type: str
    is_known_copy:
      description: Whether the LUN is certainly a copy of an SR of this pool.
      type: bool
    hosts_not_plugged:
      description: Names of the hosts on which an attached copy is not plugged.
      type: list
      elements: str
    database_of_this_pool:
      description: Whether this pool may write its database to a VDI on the LUN.
      type: bool
    changed_at:
      description:
        - Time of the last change of the SR by LVM, not of the snapshot.
        - Of an attached copy, as C(attach) or a later read of the LUN found it.
      type: str
    saved_vm_names:
      description: Names of VMs whose records are on the LUN. Null where the records were not read.
      type: list
      elements: str
    saved_at:
      description: Time when the records were saved.
      type: str
    problem:
      description: The problem of the LUN.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.relvmoiscsi.pool.plugins.module_utils import client


def main():
    module = AnsibleModule(
        argument_spec={**client.CONNECTION, **client.PORTAL},
        required_together=client.PORTAL_TOGETHER,
        required_by=client.PORTAL_REQUIRED_BY,
        supports_check_mode=True,
    )

    client.play(module, listed)


def listed(module, calls, pool):
    with client.seen(module, calls, pool) as found:
        return {"luns": [lun.facts(pool) for lun in found]}


if __name__ == "__main__":
    main()
