# SPDX-License-Identifier: LGPL-2.1-only
"""A chain of QCOW2 images, with a raw one below them perhaps, becomes one QCOW2.

members     the tables of the chain, and for each cluster of the disk where its newest data is
layout      which extents stay, which clusters are copied, and how large all of it becomes
image       its bytes: new tables and counts, and what is copied
ways        the ways to do it, the better first
"""
