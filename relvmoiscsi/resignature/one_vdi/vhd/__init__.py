# SPDX-License-Identifier: LGPL-2.1-only
"""A chain of VHDs becomes one VHD.

members     the block tables of the chain
homes       for each block of the disk, where its newest sectors are, and what is missing there
layout      which extents and which slots the new image has
image       its bytes: what is written, and what is copied
ways        the ways to do it, the cheapest first
"""
