#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make VMs from the disks of an attached copy."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vm_clone
short_description: Make VMs of the disks of an attached copy, without copying a byte
version_added: 0.1.0
description:
  - Each is a new VM, halted, whose disks are those of the copy. No original is changed, and none of its disks is ever reached.
  - A VM that is there already is found by its marks, and none is made twice. One that is not on the networks that are asked
    for, O(isolated) or O(networks), is refused, and not started.
  - HA, PCI devices, tags and keys of backup tools stay behind, and MACs are new.
  - The hostname, the machine SID, keys and static addresses are those of the original.
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
      - V(present), the VMs are there.
      - V(started), and run. Those that are suspended or paused go on.
      - V(absent), those that were made on O(sr) are destroyed, and their disks stay on the copy. A copy that is not there has none.
    type: str
    choices: [ present, started, absent ]
    default: present
  vms:
    description:
      - VMs whose disks the copy has, by UUID or name; with V(absent) the names of the new ones do as well.
    type: list
    elements: str
    default: []
  all:
    description:
      - All VMs that have disks there. That there are none is a warning.
    type: bool
    default: false
  name:
    description:
      - Name of the new VMs, with C({vm}), C({date}) and C({sr}).
    type: str
    default: "{vm} {date}"
  isolated:
    description:
      - Put all of them on this network, which leads nowhere. It is made if there is none of this name, and refused if it has a
        physical interface. An empty name is an error.
    type: str
  networks:
    description:
      - Networks of the originals, and those that take their places.
    type: dict
  keep_mac:
    description:
      - Keep the MACs of the originals.
    type: bool
    default: false
  snapshots:
    description:
      - With the snapshots of the VMs that are on the copy.
    type: bool
    default: false
  from_snapshot:
    description:
      - VMs as C(relvmoiscsi pool save-vms) has saved them, with their records of then.
    type: bool
    default: false
  vtpm:
    description:
      - With their vTPMs, whose contents are secrets.
    type: bool
    default: true
  vgpu:
    description:
      - With their virtual GPUs.
    type: bool
    default: true
  mark:
    description:
      - A word of letters, digits and C(-_.) which the VMs that are made bear.
      - With it, a copy that is there and was made without it is refused, and V(absent) means none of them.
    type: str
  force:
    description:
      - With V(absent), turn off those that run, are suspended or paused, hard.
    type: bool
    default: false
  jobs:
    description:
      - How many VMs at once.
    type: int
    default: 10
"""

EXAMPLES = r"""
- name: Copies of all VMs of Production, on a network that leads nowhere
  relvmoiscsi.pool.vm_clone:
    hostname: xs1.example
    password: "{{ xenserver_password }}"
    sr: "Production 2026-11-22"
    all: true
    isolated: lab
    state: started
"""

RETURN = r"""
vms:
  description: A row for each VM, with C(vm), C(name), C(status), C(disks), C(networks), C(snapshots), C(notes), C(changed) and C(error).
  returned: unless the task was refused before anything was done
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.relvmoiscsi.pool.plugins.module_utils import client, vm_states


def main():
    spec = {
        "sr": {"type": "str", "required": True},
        "state": {"type": "str", "choices": ["present", "started", "absent"], "default": "present"},
        "vms": {"type": "list", "elements": "str", "default": []},
        "all": {"type": "bool", "default": False},
        "name": {"type": "str", "default": "{vm} {date}"},
        "isolated": {"type": "str"},
        "networks": {"type": "dict"},
        "keep_mac": {"type": "bool", "default": False},
        "snapshots": {"type": "bool", "default": False},
        "from_snapshot": {"type": "bool", "default": False},
        "vtpm": {"type": "bool", "default": True},
        "vgpu": {"type": "bool", "default": True},
        "force": {"type": "bool", "default": False},
        "jobs": {"type": "int", "default": 10},
    }
    module = AnsibleModule(
        argument_spec={**client.CONNECTION, **client.MARK, **spec},
        mutually_exclusive=[("isolated", "networks")],
        supports_check_mode=True,
    )
    works = {"present": vm_states.present, "started": vm_states.present, "absent": vm_states.absent}
    client.play(module, works[module.params["state"]])


if __name__ == "__main__":
    main()
