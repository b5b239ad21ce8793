# SPDX-License-Identifier: LGPL-2.1-only
"""How Sphinx builds these pages: `make docs`. They use as little of it as they can, to be read as plain files too."""

import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "docs/_ext"), str(TOP)]

project = "relvmoiscsi"
author = "the developers of relvmoiscsi"
copyright = "the developers of relvmoiscsi; LGPL 2.1"
release = version = re.findall('__version__ = "(.+)"', (TOP / "relvmoiscsi/__init__.py").read_text(encoding="utf-8"))[0]

extensions = ["answer_tables", "help_pages", "protocol_tables", "readme_links", "search_words"]
exclude_patterns = ["_ext", "_static", "requirements.txt"]
#: most literal blocks are sessions and drawings; a block in a language says so itself
highlight_language = "none"
#: the pages are written as they shall be read: -- stays --, quotes stay straight
smartquotes = False

man_pages = [("command", "relvmoiscsi", "give an array clone of a XenServer or XCP-ng SR new identities", "", 8)]
#: where a manual page has its date: the same source gives the same page on any day
today = "relvmoiscsi " + release

html_theme = "furo"
html_title = "relvmoiscsi " + release
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sphinx = False
