# SPDX-License-Identifier: LGPL-2.1-only
"""Merge the live leaf of a LUN and its hidden parents into one image. Snapshots and other VDIs are dropped.

vdi_choice  the volumes of the chain, or the reason for a refusal; whether an earlier run has retained the same VDI
strategy    the common part of all merge strategies: costs, and the extents of the new volume
compact     millions of small values in little memory

    vhd_chain   vhd_layout   vhd_image           qcow2_chain   qcow2_layout   qcow2_image

    chain       the tables of the images, and the image that owns each block of the disk
    layout      the extents that stay, the blocks that are copied, and the size of the new image
    image       the strategies, the cheapest first; the bytes of the new image, and the copies of guest data

`planning.selection` chooses a strategy, and gives the LUN after the merge.
"""
