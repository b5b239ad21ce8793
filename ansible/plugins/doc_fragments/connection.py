# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of all modules of the collection."""

from __future__ import annotations


class ModuleDocFragment:
    """Options for the pool."""

    DOCUMENTATION = r"""
options:
  hostname:
    description:
      - Any host of the pool, by name, address or URL. Without a scheme it is C(https://).
      - If it is not given, E(XENSERVER_HOST) is used.
    type: str
    required: true
    aliases: [ host, pool ]
  username:
    description:
      - A user with the role pool-operator; some things take pool-admin, and say so.
      - If it is not given, E(XENSERVER_USER) is used.
    type: str
    default: root
    aliases: [ admin, user ]
  password:
    description:
      - That user's password.
      - If it is not given, E(XENSERVER_PASSWORD) is used.
    type: str
    required: true
    aliases: [ pass, pwd ]
  validate_certs:
    description:
      - Whether the certificate of the pool must be one that is believed.
      - If it is not given, E(XENSERVER_VALIDATE_CERTS) is used.
    type: bool
    default: true
  ca_path:
    description:
      - A PEM file with the certificates to be believed, that of the host itself, say. Otherwise those of the system are.
    type: path
requirements:
  - python >= 3.9
  - relvmoiscsi, where the module runs and on the hosts of the pool
  - XenAPI
notes:
  - It talks to the pool by XenAPI, from where it runs. C(delegate_to=localhost) or C(connection=local) is the usual place;
    dom0 is none, as its Python is too old for Ansible.
author:
  - the authors of relvmoiscsi (!UNKNOWN)
"""

    PORTAL = r"""
options:
  target:
    description:
      - Address of an iSCSI portal behind which LUNs are looked for; otherwise those of all SRs of the pool.
    type: str
  iqn:
    description:
      - IQN of a target there; otherwise all that there are.
    type: str
  port:
    description:
      - Port of the portal.
    type: str
  hba:
    description:
      - Whether to look at what the master's adapters have, Fibre Channel or SAS. It takes the role pool-admin.
    type: bool
    default: false
  chap_user:
    description:
      - CHAP user of O(target); otherwise as the SR of that target has it.
    type: str
  chap_password:
    description:
      - The password that goes with O(chap_user).
    type: str
  jobs:
    description:
      - How many LUNs at once.
    type: int
    default: 10
"""
