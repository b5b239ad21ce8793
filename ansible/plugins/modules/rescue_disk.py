#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lend a disk of a copy to a VM."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rescue_disk
short_description: Lend one disk of an attached copy to a VM, and take it back
version_added: 0.1.0
description:
  - The disk becomes one more of the VM, and is plugged in if that runs. The VM must not have the original as well.
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
      - V(present), the VM has the disk.
      - V(absent), it was unplugged and taken away; without O(vdi) and O(vm) all that are lent.
    type: str
    choices: [ present, absent ]
    default: present
  vdi:
    description:
      - By its UUID, that of the original, or its name.
    type: str
  vm:
    description:
      - The VM, by UUID or name.
    type: str
  writable:
    description:
      - The VM may write, to the copy alone.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Have the helper read yesterday's disk
  relvmoiscsi.pool.rescue_disk:
    hostname: xs1.example
    password: "{{ xenserver_password }}"
    sr: "Production 2026-11-22"
    vdi: root disk
    vm: helper
"""

RETURN = r"""
disks:
  description: A row for each disk, with C(vdi), C(name), C(vm), C(status), C(mode) and C(userdevice).
  returned: success
  type: list
  elements: dict
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
