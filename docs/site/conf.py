"""How Sphinx makes the site; the pages are written by build.py."""

from pathlib import Path
from typing import Any

project = "pipekit"
author = "pipekit contributors"
copyright = "pipekit contributors, MIT license"
extensions = ["myst_nb", "sphinx_copybutton", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"  # follows the reader's light or dark, and fits a phone
html_title = "pipekit"
html_copy_source = False
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_favicon = "_static/favicon.svg"
html_search_scorer = str(Path(__file__).with_name("_static") / "scorer.js")
html_static_path = ["_static"]  # the report, and the pictures of the page with a slider
templates_path: list[str] = []
exclude_patterns = ["reference/**.md"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are shown as the last run has left them
# A figure's SVG before its plotly JSON: pages then need no script from elsewhere.
nb_mime_priority_overrides = [
    ("html", "image/svg+xml", 0),
    ("html", "text/html", 5),
    ("html", "application/vnd.plotly.v1+json", None),
    ("html", "application/vnd.jupyter.widget-view+json", None),
]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
add_module_names = False
napoleon_use_ivar = True
# Notebooks have headings and outputs that a book would not: no reader is hurt.
suppress_warnings = [
    "myst.header",
    "ref.python",
    "mystnb.unknown_mime_type",
    "misc.highlighting_failure",
]


def setup(app: Any) -> None:
    """Leave out what Python itself says of a named tuple's fields: the class has told them."""
    app.connect("autodoc-skip-member", said_by_python)


def said_by_python(app: Any, what: str, name: str, thing: Any, skip: bool, options: Any) -> Any:
    """Return True for a named tuple's field, and None, Sphinx's own choice, for all else."""
    told = str(getattr(thing, "__doc__", None))
    return True if told.startswith("Alias for field number") else None
