#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-only
"""Does the search of the HTML pages find what samples have? Run by tools/docs.sh, in its venv, after the build.

The words are made and looked up as the browser does. Prints each that is not found, with its page.
"""

import json
import re
import sys
from pathlib import Path
from typing import Dict, List, Union

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "docs/_ext"))

from search_words import SampleSearch  # noqa: E402

BLOCK = re.compile(r"::\n\n((?:(?:    .*)?\n)+)")
#: what is looked for: options, commands and keys with dashes, numbers of errors
SAMPLE = re.compile(r"(?<![\w-])(?:--)?([a-z]+(?:-[a-z]+)+|\d{2,4})(?![\w.-])")


def pages_of(terms: Dict[str, Union[int, List[int]]], term: str) -> List[int]:
    """The numbers of the pages that have a term; the index writes a single page without a list."""
    pages = terms.get(term, [])
    return [pages] if isinstance(pages, int) else pages


def main() -> int:
    index = json.loads((TOP / "build/docs/searchindex.js").read_text()[len("Search.setIndex(") : -1])
    language, looked, missed = SampleSearch({}), 0, []
    for number, name in enumerate(index["docnames"]):
        text = (TOP / "docs" / (name + ".rst")).read_text()
        for word in {word for block in BLOCK.findall(text) for word in SAMPLE.findall(block)}:
            term = language.split(word)[-1]
            pages = {page for where in ("terms", "titleterms") for page in pages_of(index[where], language.stem(term))}
            looked += 1
            if number not in pages:
                missed.append(f"docs/{name}.rst: the search does not find {word}")
    print("\n".join(missed) or f"the search finds all {looked} words of samples")
    return 1 if missed or looked < 50 else 0


if __name__ == "__main__":
    sys.exit(main())
