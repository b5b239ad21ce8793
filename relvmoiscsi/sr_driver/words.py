# SPDX-License-Identifier: LGPL-2.1-only
"""The device-config keys that mean the same with every transport, checked."""

from typing import Mapping, Optional

from relvmoiscsi.errors import UsageError
from relvmoiscsi.host.settings import VDIS
from relvmoiscsi.scsi_id_text import is_scsi_id


def scsi_id_in(device_config: Mapping[str, str]) -> str:
    """The SCSIid; "" when it is missing. Raises UsageError (ConfigSCSIid)."""
    scsi_id = device_config.get("SCSIid", "").strip()
    if scsi_id and not is_scsi_id(scsi_id):
        raise UsageError(f"{scsi_id!r} is no SCSIid (device-config:SCSIid).", "ConfigSCSIid")
    return scsi_id


def vdis_in(device_config: Mapping[str, str]) -> Optional[str]:
    """One, all, or None: as the host has it. Raises UsageError."""
    text = device_config.get("vdis", "").strip()
    if text and text not in VDIS:
        raise UsageError(f"{text!r} is neither `one` nor `all` (device-config:vdis).", "InvalidArg")
    return text or None


def vdi_in(device_config: Mapping[str, str]) -> Optional[str]:
    """The UUID of the VDI that stays; None where it is not said. Raises UsageError."""
    from relvmoiscsi.formats.identity import is_uuid  # noqa: PLC0415 - few calls have the key

    text = device_config.get("vdi", "").strip().lower()
    if text and not is_uuid(text):
        raise UsageError(f"{text!r} is no UUID of a VDI (device-config:vdi).", "InvalidArg")
    return text or None


def clear_databases_in(device_config: Mapping[str, str]) -> bool:
    """Is no VDI to hold the database of a pool any more?"""
    return device_config.get("clear-metadata-vdi", "").strip() == "true"
