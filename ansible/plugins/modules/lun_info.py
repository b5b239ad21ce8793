#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List and classify the LUNs that a pool sees."""

from __future__ import annotations

DOCUMENTATION = r"""
module: lun_info
short_description: Tell what LUNs a pool of XenServer or XCP-ng sees, and what each is
version_added: 0.1.0
description:
  - Each LUN is named for what it is, an original, a clone of which SR, an attached copy. Nothing is written.
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
- name: Tell what is behind the targets of the pool's SRs
  relvmoiscsi.pool.lun_info:
    hostname: xs1.example
    password: "{{ xenserver_password }}"
  register: seen

- name: Name the clones
  ansible.builtin.debug:
    msg: "{{ seen.luns | selectattr('kind', 'eq', 'clone') | map(attribute='scsi_id') }}"
"""

RETURN = r"""
luns:
  description: A row for each LUN.
  returned: success
  type: list
  elements: dict
  contains:
    scsi_id:
      description: SCSIid. None for a target that has not told its LUNs.
      type: str
    kind:
      description:
        - C(original), C(attached), C(clone), C(unknown SR), C(unconnected), C(resignatured), C(unfinished), C(empty),
          C(foreign), C(damaged), C(busy) or C(unreachable).
      type: str
    size_bytes:
      description: Its size.
      type: int
    target:
      description: Address of its portal. Empty for what is on adapters.
      type: str
    iqn:
      description: IQN of its target.
      type: str
    sr:
      description: UUID of the SR that is on it now.
      type: str
    copy_of:
      description: UUID of the SR that it is a copy of, if any.
      type: str
    name:
      description: Name of the SR on it, or of the one that it is a copy of.
      type: str
    one_vdi:
      description: Whether it has one VDI, or could be made a LUN with one.
      type: str
    is_known_copy:
      description: Whether it is a copy of an SR of this pool beyond doubt.
      type: bool
    database_of_this_pool:
      description: Whether a VDI on it is to hold the database of this very pool.
      type: bool
    vms:
      description: Names of VMs whose records are on it.
      type: list
      elements: str
    vms_saved:
      description: When those were saved.
      type: str
    problem:
      description: What is wrong with it.
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
