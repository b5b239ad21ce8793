#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Replace a VM's disks by disks of a copy."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vm_restore
short_description: Put disks of an attached copy in place of a VM's own, and back
version_added: 0.1.0
description:
  - The disks of a halted VM are swapped for those of the copy, at once, and nothing is copied. A journal on the VM says what was there.
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
      - V(restored), the VM has the disks of the copy.
      - V(undone), it has its own again. What it has written since stays on the copy.
      - V(home), the disks were moved to the SR of its own, running or not, and the journal is ended.
      - V(kept), no disk is touched, and the journal is ended. It is for a VM that neither of the two before can end, as somebody has
        changed its disks since.
      - A VM that was not restored is done, for the last three.
    type: str
    choices: [ restored, undone, home, kept ]
    default: restored
  disks:
    description:
      - Only these, by device, such as V(0); otherwise all.
    type: list
    elements: str
    default: []
  shutdown:
    description:
      - Shut the VM down first. Otherwise one that runs is refused.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Back to the snapshot
  relvmoiscsi.pool.vm_restore:
    hostname: xs1.example
    password: "{{ xenserver_password }}"
    sr: "Production 2026-11-22"
    vm: web
    shutdown: true
"""

RETURN = r"""
restore:
  description: What became of the VM, with C(vm), C(name), C(status), C(disks) and C(no_longer_needed), UUIDs of VDIs.
  returned: success
  type: dict
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
    }
    module = AnsibleModule(
        argument_spec={**client.CONNECTION, **spec},
        required_if=[("state", "restored", ("sr",))],
        supports_check_mode=True,
    )
    works = {"restored": vm_states.restored, "undone": vm_states.back, "home": vm_states.back, "kept": vm_states.back}
    client.play(module, works[module.params["state"]])


if __name__ == "__main__":
    main()
