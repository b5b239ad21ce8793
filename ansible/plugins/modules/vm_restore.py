#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Replace a VM's disks by disks of a copy."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vm_restore
short_description: Replace the disks of a VM by disks of an attached copy, and back
version_added: 0.1.0
description:
  - The module replaces the disks of a halted VM by disks of the copy. No data is copied. A journal in the VM record names the old disks.
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
      - The copy, by UUID or name, for the state V(restored).
    type: str
  vm:
    description:
      - The VM, by UUID or name.
    type: str
    required: true
  state:
    description:
      - V(restored) gives the VM the disks of the copy.
      - V(undone) puts the old disks back. Later writes of the VM stay on the copy.
      - V(home) moves the disks to the SR of the old disks, also while the VM runs, and removes the journal.
      - V(kept) leaves all disks as they are and removes the journal. Use V(kept) if the disks were changed since, so that
        V(undone) and V(home) fail.
      - With V(undone), V(home) and V(kept), a VM without a restore is no error. With V(undone) and V(home), it is an error
        if the VM has a disk of a copy all the same.
    type: str
    choices: [ restored, undone, home, kept ]
    default: restored
  disks:
    description:
      - The disks to replace, by device, such as V(0). By default, all disks are replaced.
    type: list
    elements: str
    default: []
  shutdown:
    description:
      - Shut the VM down first. By default, a running VM is refused.
    type: bool
    default: false
  on_copy:
    description:
      - With the state V(kept), leave disks of the VM on the copy. By default, a VM that still has a disk of the copy is
        refused.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Restore the VM from the snapshot
  relvmoiscsi.pool.vm_restore:
    hostname: xs1.example
    password: "{{ xenserver_password }}"
    sr: "Production changed 2026-11-21"
    vm: web
    shutdown: true
"""

RETURN = r"""
restore:
  description: The result for the VM.
  returned: success
  type: dict
  contains:
    vm:
      description: UUID of the VM.
      type: str
    vm_name:
      description: Name of the VM.
      type: str
    status:
      description: The result, such as C(restored), C(already restored), C(undone), C(home).
      type: str
    disks:
      description: The disks that were swapped.
      type: list
      elements: dict
      contains:
        userdevice:
          description: Position of the disk in the VM.
          type: str
        old_vdi:
          description: UUID of the original VDI.
          type: str
        new_vdi:
          description: UUID of the VDI on the copy.
          type: str
    no_longer_needed:
      description: UUIDs of the VDIs that the VM no longer needs.
      type: list
      elements: str
    notes:
      description: Sentences about the result.
      type: list
      elements: str
    shuts_down:
      description: Whether the VM is shut down for the result.
      type: bool
    problem:
      description: Why the VM is not in the requested state. None where the task succeeds.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.relvmoiscsi.pool.plugins.module_utils import client, vm_states


def main():
    spec = {
        "sr": {"type": "str"},
        "vm": {"type": "str", "required": True},
        "state": {"type": "str", "choices": ["restored", "undone", "home", "kept"], "default": "restored"},
        "disks": {"type": "list", "elements": "str", "default": []},
        "shutdown": {"type": "bool", "default": False},
        "on_copy": {"type": "bool", "default": False},
    }
    module = AnsibleModule(
        argument_spec={**client.CONNECTION, **spec},
        required_if=[("state", "restored", ("sr",))],
        supports_check_mode=True,
    )
    client.play(module, vm_states.restored)


if __name__ == "__main__":
    main()
