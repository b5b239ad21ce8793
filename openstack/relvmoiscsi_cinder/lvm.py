# SPDX-License-Identifier: LGPL-2.1-only
"""Cinder's LVM driver with resignature; the class for an array's driver has the same three lines."""

from cinder import interface
from cinder.volume.drivers import lvm

from relvmoiscsi_cinder.resignature import ResignatureMixin


@interface.volumedriver
class ResignatureLVMVolumeDriver(ResignatureMixin, lvm.LVMVolumeDriver):
    """`volume_driver = relvmoiscsi_cinder.lvm.ResignatureLVMVolumeDriver`."""
