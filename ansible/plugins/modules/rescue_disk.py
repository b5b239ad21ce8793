#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lend a disk of a copy to a VM."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rescue_disk
short_description: Lend a disk of an attached copy to a VM, and take the disk back
version_added: 0.1.0
description:
  - The module adds the disk to the VM, and plugs the disk in if the VM runs. The VM must not have the original disk.
extends_documentation_fragment:
  - relvmoiscsi.pool.connection
attributes:
  check_mode:
    description: Can run in check mode, which is the dry run.
    support: full
  diff_mode:
    description: Shows the disks before and after.
    support: full
options:
  sr:
    description:
      - The copy, by UUID or name.
    type: str
    required: true
  state:
    description:
      - V(present) adds the disk to the VM.
      - V(absent) unplugs and removes the disk. Without O(vdi) and O(vm), all lent disks of the copy are removed.
    type: str
    choices: [ present, absent ]
    default: present
  vdi:
    description:
      - The disk, by its UUID, the UUID of the original VDI, or its name.
    type: str
  vm:
    description:
      - The VM, by UUID or name.
    type: str
  writable:
    description:
      - Whether the VM may write to the disk on the copy.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Lend yesterday's disk to the helper
  relvmoiscsi.pool.rescue_disk:
    hostname: xs1.example
    password: "{{ xenserver_password }}"
    sr: "Production changed 2026-11-21"
    vdi: root disk
    vm: helper
"""

RETURN = r"""
disks:
  description: A row for each disk.
  returned: success
  type: list
  elements: dict
  contains:
    vdi:
      description: UUID of the VDI.
      type: str
    vdi_name:
      description: Name of the VDI.
      type: str
    vm_name:
      description: Name of the VM.
      type: str
    status:
      description: The result, such as C(lent), C(already lent), C(taken back).
      type: str
    mode:
      description: C(RO) for read-only, or C(RW).
      type: str
    userdevice:
      description: Position of the disk in the VM.
      type: str
    problem:
      description: Why the disk is not in the requested state.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.relvmoiscsi.pool.plugins.module_utils import client, vm_states


def main():
    spec = {
        "sr": {"type": "str", "required": True},
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "vdi": {"type": "str"},
        "vm": {"type": "str"},
        "writable": {"type": "bool", "default": False},
    }
    module = AnsibleModule(
        argument_spec={**client.CONNECTION, **spec},
        required_if=[("state", "present", ("vdi", "vm"))],
        supports_check_mode=True,
    )
    works = {"present": vm_states.lent, "absent": vm_states.taken_back}
    client.play(module, works[module.params["state"]])


if __name__ == "__main__":
    main()
