# SPDX-License-Identifier: LGPL-2.1-only
"""What the pages draw from the code: the steps of a run, its states and what leads from one to another.

    .. protocol-steps::     a table of resignature.steps.STEPS
    .. protocol-states::    tables of resignature.states, and a drawing of them where the output is HTML

And links are made where a page names another: docs/host.rst, or docs/host.rst, "Adapters".
"""

import re

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from state_drawing import drawing

from relvmoiscsi.resignature.protocol.states import STATES, TRANSITIONS, taken
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


def grouped(transitions):
    """One row for all that leads from one state to another."""
    pairs = dict.fromkeys((way.state, way.becomes) for way in transitions)
    for state, becomes in pairs:
        events = [way.event for way in transitions if (way.state, way.becomes) == (state, becomes)]
        yield state, "; ".join(events), becomes


def walk():
    """The states through which the steps of a run lead."""
    found = [STATES[0].name]
    for step in STEPS:
        found += [way.becomes for way in TRANSITIONS if way[:2] == (found[-1], taken(step))]
    return list(dict.fromkeys(found))


class Steps(SphinxDirective):
    """The steps of a run."""

    def run(self):
        rows = [(str(step.number), step.writes, step.leaves) for step in STEPS]
        return [table((8, 46, 46), ("step", "writes", "after its flush the LUN holds"), rows)]


class States(SphinxDirective):
    """The states of a run, as a table and as a drawing, and what leads from one to another."""

    def run(self):
        rows = [(state.name, state.mark, state.holds, state.shown) for state in STATES]
        known = table((14, 24, 46, 16), ("state", "mark in the label", "the LUN holds", "in show"), rows)
        row = walk()
        side = [state.name for state in STATES if state.name not in row]
        drawn = nodes.raw("", drawing(row, side, TRANSITIONS), format="html")
        said = "What leaves a state as it is is not drawn. What has no row cannot be there, or is refused."
        ways = table((20, 60, 20), ("in the state", "what happens", "leads to"), list(grouped(TRANSITIONS)))
        return [known, drawn, nodes.paragraph("", said), ways]


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
            made += [nodes.reference("", found.group(), internal=True, refuri=target)]
            done = found.end()
        if made:
            text.parent.replace(text, [*made, nodes.Text(text[done:])])


def setup(app):
    app.add_directive("protocol-steps", Steps)
    app.add_directive("protocol-states", States)
    app.connect("doctree-resolved", link_pages)
    return {"parallel_read_safe": True}
