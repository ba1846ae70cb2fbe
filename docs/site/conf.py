"""How Sphinx makes the site: `make site`. Nothing that it makes asks another host for anything."""

import re
from pathlib import Path
from typing import Any

from pygments.lexers.python import PythonLexer
from pygments.lexers.special import TextLexer

HERE = Path(__file__).parent

project = "Penstock"
copyright = "the authors of Penstock, Apache-2.0"
_version = (HERE.parents[1] / "penstock" / "release.py").read_text()
(release,) = re.findall(r'^__version__ = "(.+)"$', _version, re.MULTILINE)

extensions = ["myst_parser"]
root_doc = "index"
source_suffix = {".md": "markdown"}
nitpicky = True

# Anchors as the files' own readers make them, to the depth that pages link to.
myst_heading_anchors = 5

html_theme = "furo"
html_title = f"Penstock {release}"
html_static_path = ["static"]
html_css_files = ["penstock.css"]
html_search_scorer = str(HERE / "scorer.js")
html_copy_source = False
html_show_sphinx = False
html_permalinks_icon = "#"
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
pygments_style, pygments_dark_style = "friendly", "native"


def setup(app: Any) -> None:
    app.add_lexer("output", TextLexer)
    app.add_lexer("pyi", PythonLexer)
