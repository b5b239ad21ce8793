# SPDX-License-Identifier: LGPL-2.1-only
"""One VDI: the live leaf of a LUN and its hidden parents become one image, snapshots go.

choice      which volumes are meant, or why it cannot be
members     the block tables of the chain
homes       for each block of the disk, where its newest sectors are, and what is missing there
layout      which extents and which slots the new image has
image       its bytes: what is written, and what is copied
collapse    all of it: the LUN that it leads to, and how
"""
