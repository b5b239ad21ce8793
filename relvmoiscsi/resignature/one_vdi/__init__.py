# SPDX-License-Identifier: LGPL-2.1-only
"""One VDI: the live leaf of a LUN and its hidden parents become one image, snapshots go.

choice      which volumes are meant, or why it cannot be
way         what a format has to say of its chains: the ways to make one an image, and what each takes
extents     which extents of the LUN the new image may have
compact     millions of small values in little memory
vhd         the ways of a chain of VHDs
qcow2       the ways of a chain of QCOW2 images
fit         whether an earlier run leads to the VDIs that are asked for now

`planning.collapse` puts these together: the LUN that this leads to, and how.
"""
