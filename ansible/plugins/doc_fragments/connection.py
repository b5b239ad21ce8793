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
      - Any host of the pool, by name, address or URL. The default scheme is C(https://).
      - The default is the value of E(XENSERVER_HOST).
    type: str
    required: true
    aliases: [ host, pool ]
  username:
    description:
      - A user with the role pool-operator. Lists of LUNs behind adapters need the role pool-admin.
      - The default is the value of E(XENSERVER_USER).
    type: str
    default: root
    aliases: [ admin, user ]
  password:
    description:
      - The password of O(username).
      - The default is the value of E(XENSERVER_PASSWORD).
    type: str
    required: true
    aliases: [ pass, pwd ]
  validate_certs:
    description:
      - Whether to verify the certificate of the pool.
      - The default is the value of E(XENSERVER_VALIDATE_CERTS).
    type: bool
    default: true
  ca_path:
    description:
      - A PEM file with trusted certificates, for example the certificate of the host. By default, the certificates of the system are trusted.
    type: path
requirements:
  - python >= 3.9
  - relvmoiscsi, on the machine of the module and on the hosts of the pool
notes:
  - The module uses XenAPI. Run the module with C(delegate_to=localhost) or C(connection=local), not in dom0. The Python of
    dom0 is too old for Ansible.
author:
  - the authors of relvmoiscsi (!UNKNOWN)
"""

    PORTAL = r"""
options:
  target:
    description:
      - Address of an iSCSI portal whose LUNs are listed. By default, the portals of all SRs of the pool are used.
    type: str
  iqn:
    description:
      - IQN of a target at O(target). By default, all targets are used.
    type: str
  port:
    description:
      - Port of the portal.
    type: str
  hba:
    description:
      - Whether to list the LUNs behind the master's adapters, Fibre Channel or SAS. This needs the role pool-admin.
    type: bool
    default: false
  chap_user:
    description:
      - CHAP user of O(target). By default, the CHAP user of the SR on that target is used.
    type: str
  chap_password:
    description:
      - The password of O(chap_user).
    type: str
  jobs:
    description:
      - Number of LUNs in parallel.
    type: int
    default: 10
"""
