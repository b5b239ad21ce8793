# SPDX-License-Identifier: LGPL-2.1-only
"""The search of the HTML pages finds what samples have: --not-in-use and sr-create as one word, numbers of errors.

Sphinx takes words apart at each dash, and leaves out "not", "in" and numbers. Here a word with dashes is in the index
with and without them, and the query keeps them. Sphinx drops numbers, so a number has letters before it in both.
"""

import re

from sphinx.search.en import SearchEnglish

WORD = re.compile(r"\w+(?:-\w+)*")
#: before a number; no word of the pages begins so
NUMBER = "zqn"

#: the same for the query, in the browser
QUERY = """
function splitQuery(query) {
  return (query.match(/[\\p{L}\\p{N}_]+(?:-[\\p{L}\\p{N}_]+)*/gu) || [])
    .map((word) => (/^\\d+$/.test(word) ? "NUMBER" + word : word));
}
""".replace("NUMBER", NUMBER)


class SampleSearch(SearchEnglish):
    """English, and words of samples."""

    js_splitter_code = QUERY

    def split(self, input):
        found = []
        for word in WORD.findall(input):
            parts = word.split("-")
            found += [NUMBER + part if part.isdigit() else part for part in parts]
            found += [word] if len(parts) > 1 else []
        return found


def setup(app):
    app.add_search_language(SampleSearch)
    return {"parallel_read_safe": True}
