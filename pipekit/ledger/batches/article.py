"""An executed notebook as a page that a browser shows without Jupyter, and finds each cell of."""

from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import FileSystemLoader

if TYPE_CHECKING:  # the report asks for anchors, and is made without Jupyter, too
    from nbformat import NotebookNode

INJECTED = "injected-parameters"
"""papermill's tag of the cell with the values that a run chose."""


def write(executed: Path) -> Path:
    """Write ``<executed>.html``, which follows the reader's light or dark; return its path.

    A cell is found by :func:`anchor`; code that the notebook hides is folded, and figures are
    their SVGs. Nothing is loaded, but MathJax where there is a network.

    Args:
        executed: the notebook; an older page of it is replaced.
    """
    from nbconvert import HTMLExporter  # here, since it takes a second that no report needs

    exporter = HTMLExporter(
        template_file=f"{Path(__file__).stem}.html.j2",
        extra_loaders=[FileSystemLoader(Path(__file__).parent)],
        exclude_input_prompt=True,
        exclude_output_prompt=True,
    )
    text, _ = exporter.from_filename(str(executed))
    page = executed.with_suffix(".html")
    page.write_text(text, encoding="utf-8")
    return page


def anchor(cell: str) -> str:
    """Return the fragment of a page's address that leads to the cell of an id."""
    return f"cell-id={cell}"


def fold_what_was_injected(notebook: "NotebookNode") -> None:
    """Hide the code of papermill's own cell, as that of the parameters above it is hidden."""
    for cell in notebook.cells:
        if INJECTED in cell.metadata.get("tags", []):
            cell.metadata["jupyter"] = {"source_hidden": True}
