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
  - Makes halted VMs with the disks of the copy. No original is changed, and no new VM has a disk of an original.
  - The module finds an existing clone by its marks, and makes no clone twice. An existing clone on other networks than
    O(isolated) or O(networks) is refused, and not started.
  - The new VMs get new MACs, but no HA, PCI devices, tags or keys of backup tools.
  - A new VM has the hostname, the machine SID, the keys and the static addresses of its original.
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
      - V(present) makes the VMs.
      - V(started) also starts the VMs. Suspended and paused VMs are resumed.
      - V(absent) destroys the VMs that were made on O(sr). Their disks stay on the copy. A missing copy is no error.
    type: str
    choices: [ present, started, absent ]
    default: present
  vms:
    description:
      - VMs whose disks are on the copy, by UUID or name. With V(absent), names of the new VMs are accepted too.
    type: list
    elements: str
    default: []
  all:
    description:
      - All VMs that have disks on the copy. If no VM has a disk there, the module warns.
    type: bool
    default: false
  name:
    description:
      - Name of the new VMs. C({vm}), C({sr}) and C({date}) are replaced. Several VMs need C({vm}).
      - C({date}) is the day of the last change of the SR by LVM.
    type: str
    default: "{vm} on {sr}"
  isolated:
    description:
      - Connect all new VMs to this isolated network. The module makes a missing network. A network with a physical interface is
        refused. An empty name is an error.
    type: str
  networks:
    description:
      - The new network for each network of the originals, as a dict of old names or UUIDs to new names or UUIDs.
    type: dict
  same_networks:
    description:
      - Connect the new VMs to the networks of their originals. Their addresses may conflict.
      - Without O(isolated), O(networks) and this option, a VM with a network of its original is refused.
    type: bool
  keep_mac:
    description:
      - Keep the MACs of the originals.
    type: bool
    default: false
  snapshots:
    description:
      - Also make the VMs' snapshots that are on the copy.
    type: bool
    default: false
  from_snapshot:
    description:
      - Use the VM records that C(relvmoiscsi pool save-vms) has saved on the copy.
    type: bool
    default: false
  trust_records:
    description:
      - UUID of the VDI on the copy whose records are trusted although their writer is unknown.
      - Needed where another pool has saved the records, for example after a disaster. Only with I(from_snapshot=true).
    type: str
    default: ""
  vtpm:
    description:
      - Whether to copy the vTPMs, whose contents are secrets.
    type: bool
    default: true
  vgpu:
    description:
      - Whether to copy the virtual GPUs.
    type: bool
    default: true
  mark:
    description:
      - A word of letters, digits and C(-_.), stored with the new VMs.
      - With a mark, the module refuses an existing clone that was made without the mark. V(absent) skips such a clone.
    type: str
  force:
    description:
      - With V(absent), first shut down running, suspended or paused VMs hard.
    type: bool
    default: false
  last_copies:
    description:
      - With V(absent), also destroy VMs whose originals the pool no longer has. By default, the module refuses them.
    type: bool
    default: false
  jobs:
    description:
      - Number of VMs in parallel.
    type: int
    default: 10
"""

EXAMPLES = r"""
- name: Clone all VMs of Production, on an isolated network
  relvmoiscsi.pool.vm_clone:
    hostname: xs1.example
    password: "{{ xenserver_password }}"
    sr: "Production changed 2026-11-21"
    all: true
    isolated: lab
    state: started
"""

RETURN = r"""
vms:
  description: A row for each VM.
  returned: unless the task was refused before the first change
  type: list
  elements: dict
  contains:
    old_vm:
      description: UUID of the original VM.
      type: str
    new_vm:
      description: UUID of the clone.
      type: str
    old_name:
      description: Name of the original VM. None with the state V(absent).
      type: str
    new_name:
      description: Name of the clone.
      type: str
    status:
      description: The result, such as C(cloned), C(already there), C(destroyed), C(failed).
      type: str
    changed:
      description: Whether the VM was changed.
      type: bool
    disks:
      description: Disks of the clone. Empty with the state V(absent).
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
    networks:
      description: By device, the networks C(old_network) and C(new_network) of the virtual interface. Empty with the state V(absent).
      type: dict
    snapshot_names:
      description: Names of the snapshots of the clone. Empty with the state V(absent).
      type: list
      elements: str
    notes:
      description: Differences between the clone and the original. Empty with the state V(absent).
      type: list
      elements: str
    problem:
      description: Why the VM is not in the requested state.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.relvmoiscsi.pool.plugins.module_utils import client, vm_states


def main():
    spec = {
        "sr": {"type": "str", "required": True},
        "state": {"type": "str", "choices": ["present", "started", "absent"], "default": "present"},
        "vms": {"type": "list", "elements": "str", "default": []},
        "all": {"type": "bool", "default": False},
        "name": {"type": "str", "default": "{vm} on {sr}"},
        "isolated": {"type": "str"},
        "networks": {"type": "dict"},
        "same_networks": {"type": "bool"},  # a default would exclude the others
        "keep_mac": {"type": "bool", "default": False},
        "snapshots": {"type": "bool", "default": False},
        "from_snapshot": {"type": "bool", "default": False},
        "trust_records": {"type": "str", "default": ""},
        "vtpm": {"type": "bool", "default": True},
        "vgpu": {"type": "bool", "default": True},
        "force": {"type": "bool", "default": False},
        "last_copies": {"type": "bool", "default": False},
        "jobs": {"type": "int", "default": 10},
    }
    module = AnsibleModule(
        argument_spec={**client.CONNECTION, **client.MARK, **spec},
        mutually_exclusive=[("isolated", "networks", "same_networks")],
        supports_check_mode=True,
    )
    works = {"present": vm_states.present, "started": vm_states.present, "absent": vm_states.absent}
    client.play(module, works[module.params["state"]])


if __name__ == "__main__":
    main()
