# SPDX-License-Identifier: LGPL-2.1-only
"""Merge the live leaf of a LUN and its hidden parents into one image; snapshots go.

choice      which volumes are meant, or why there is none; whether an earlier run leads to the same VDI
strategy    what the merge strategies share: their costs, and the extents of the new volume
compact     millions of small values in little memory

    vhd_chain   vhd_layout   vhd_image           qcow2_chain   qcow2_layout   qcow2_image

    chain       the tables of the images, and which image owns each block of the disk
    layout      which extents stay, which blocks are copied, and how large the new image becomes
    image       the strategies, the better first; the bytes of the new image, and what is copied

`planning.collapse` puts these together: the LUN that a merge leads to, and how.
"""
