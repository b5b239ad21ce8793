# SPDX-License-Identifier: LGPL-2.1-only
"""What the pages draw from the code: the steps of a run.

    .. protocol-steps::     a table of resignature.protocol.steps.STEPS

And links are made where a page names another: docs/host.rst, or docs/host.rst, "Adapters". A link has the page's title.
"""

import re

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from relvmoiscsi.resignature.protocol.steps import STEPS

log = logging.getLogger(__name__)

#: a page of ours; QEMU has a docs/ too
PAGE = re.compile(r'(?<!QEMU[ \n])docs/([\w/-]+)\.rst(?:,\s+"([^"]+)")?')


def table(widths, head, rows):
    """A table of plain texts."""
    group = nodes.tgroup("", cols=len(widths))
    group += [nodes.colspec(colwidth=width) for width in widths]
    group += nodes.thead("", row(head))
    group += nodes.tbody("", *map(row, rows))
    return nodes.table("", group)


def row(texts):
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", text)) for text in texts))


class Steps(SphinxDirective):
    """The steps of a run."""

    def run(self):
        rows = [(str(step.number), step.writes, step.leaves) for step in STEPS]
        return [table((8, 46, 46), ("step", "writes", "after its flush the LUN holds"), rows)]


def link_pages(app, doctree, docname):
    """Make links of the names of pages in running text."""
    for text in list(doctree.findall(nodes.Text)):
        if isinstance(text.parent, (nodes.literal, nodes.literal_block, nodes.reference, nodes.raw)):
            continue
        made, done = [], 0
        for found in PAGE.finditer(text):
            if found.group(1) not in app.env.found_docs:
                log.warning("%s is no page", found.group(), location=text.parent)
                continue
            target = app.builder.get_relative_uri(docname, found.group(1))
            target += "#" + nodes.make_id(found.group(2)) if found.group(2) else ""
            made += [nodes.Text(text[done : found.start()])]
            title = app.env.titles[found.group(1)].astext() + (f', "{found.group(2)}"' if found.group(2) else "")
            made += [nodes.reference("", title, internal=True, refuri=target)]
            done = found.end()
        if made:
            text.parent.replace(text, [*made, nodes.Text(text[done:])])


def setup(app):
    app.add_directive("protocol-steps", Steps)
    app.connect("doctree-resolved", link_pages)
    return {"parallel_read_safe": True}
