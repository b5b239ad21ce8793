# SPDX-License-Identifier: LGPL-2.1-only
"""Links of README.rst, which a page includes, lead to the pages and have their titles: `docs/host.rst <...>`__."""

import re

from docutils import nodes

PAGE = re.compile(r"docs/([\w/-]+)\.rst\Z")


def link_pages(app, doctree, docname):
    """A link to a file of the repository that is no page becomes its name alone."""
    for link in list(doctree.findall(nodes.reference)):
        uri = link.get("refuri", "")
        page = PAGE.match(uri)
        if page and page.group(1) in app.env.found_docs:
            link["refuri"] = app.builder.get_relative_uri(docname, page.group(1))
            link["internal"] = True
            link[:] = [nodes.Text(app.env.titles[page.group(1)].astext())]
        elif uri.endswith(".rst") and ":" not in uri:
            link.replace_self(nodes.literal("", link.astext()))


def setup(app):
    app.connect("doctree-resolved", link_pages)
    return {"parallel_read_safe": True}
