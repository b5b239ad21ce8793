# SPDX-License-Identifier: LGPL-2.1-only
# fmt: off
"""Positions in the MGT volume. There are no integers and no checksums in it, only padded text.

    0        header: XSSM:<length>:<major>:<minor>, padded with spaces
    512      SR: <uuid> and <allocation>
    1024     SR: <name_label>
    1536     SR: <name_description>
    2048     VDI records of 1024 bytes: <vdi><name_label>..<name_description>.. | all other tags </vdi>

Source: SM drivers/srmetadata.py (LVMMetadataHandler), drivers/metadata.py.
"""

MAGIC          = b"XSSM"
HEADER_FIELDS  = 4             #: magic, length, major, minor; separated by colons
MAJOR          = 1
HEADER_BYTES   = 512
SR_START       = 512           #: bytes from the start of the volume
SR_END         = 2048          #: the VDI records start here
RECORD_BYTES   = 1024
MAX_RECORDS    = 4094          #: the volume has 4 MiB
#: tags of an experiment of 2015 (xenvm) that kept its own allocation map
XENVM_TAGS     = (b"initial_allocation", b"allocation_quantum")
