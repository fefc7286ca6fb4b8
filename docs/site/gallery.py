"""Pages that runs have left: the notebooks, each with its first figure, and the report."""

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from pipekit.ledger.batches.experiment import load
from pipekit.ledger.report.page import anchor
from pipekit.ledger.report.scoreboard import TITLES as PAPERS

TITLES = {
    "": "In general",
    "explore": "Explorers",
    **{paper.replace("-", "_"): title for paper, title in PAPERS.items()},
    "memory": "Activations elsewhere, or shorter",
    "schedules": "All schedules",
    "staleness": "What delayed gradients cost",
}
"""Of the folders of notebooks, in the gallery's order."""
HIDDEN = {"hide-input", "injected-parameters"}  # tags of cells whose code is folded away
DRAWN = "drawn"  # the tag of cells that print a schedule as a picture, whose lines must not wrap
NO_RUN = (
    '<!doctype html><html lang="en"><title>No report</title>'
    "<main><h1>No run is here yet</h1><p><code>make papers</code> makes one.</p></main></html>"
)
_ADDRESS = re.compile(r'(href|src)="([^"#]+)(#[^"]*)?"')


def pages(root: Path, source: Path, linked: Callable[[str, Path], str]) -> dict[str, str | None]:
    """Copy a checkout's notebooks to the site's source, ``linked``, executed if a run has them."""
    executed = {path.stem: path for path in sorted((root / "results/runs").glob("*/*.ipynb"))}
    experiments = sorted((root / "experiments").glob("*.yaml"))
    jobs = load(*experiments).jobs if experiments else ()
    called = {job.notebook: job.name for job in jobs}
    names = {}
    for path in sorted((root / "notebooks").rglob("*.ipynb"), key=_place):
        name, job = path.relative_to(root / "notebooks"), called.get(path.resolve())
        text = executed.get(job or "", path).read_text(encoding="utf-8")
        notebook = json.loads(text.replace(f"{root}/", ""))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = linked("".join(cell["source"]), path.parent)
        notebook["cells"] = list(folded(notebook["cells"]))
        into = source / "gallery" / name
        into.parent.mkdir(parents=True, exist_ok=True)
        into.write_text(json.dumps(notebook), encoding="utf-8")
        if figure := first_figure(notebook):
            into.with_suffix(".svg").write_text(figure, encoding="utf-8")
        names[name.with_suffix("").as_posix()] = job
    return names


def report(root: Path, static: Path, shown: Mapping[str, str]) -> str:
    """Return the report's HTML, without links to what the site does not have."""
    newest = sorted((root / "results/runs").glob("*/report.html"))
    if not newest:
        return NO_RUN
    run = newest[-1].parent

    def target(link: re.Match[str]) -> str:
        path = Path(link[2])
        to: str | None = None
        if path.suffix in (".ipynb", ".html"):
            page = shown.get(path.stem)
            to = page and f"../gallery/{page}.html"
        elif (run / path).is_file():
            to = Path("report", *path.parts[-2:]).as_posix()
            (static / to).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(run / path, static / to)
        return f'{link[1]}="{to}{link[3] or ""}"' if to else ""

    return _ADDRESS.sub(target, newest[-1].read_text(encoding="utf-8"))


def folded(cells: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield a notebook's cells, and before one of code what the report's links lead to."""
    for cell in cells:
        if cell["cell_type"] != "code":
            yield cell
            continue
        place = f'<div id="{anchor(cell["id"])}"></div>'
        yield {
            "cell_type": "markdown",
            "id": f"place-{cell['id']}",
            "metadata": {},
            "source": place,
        }
        texts = ("".join(each.get("text", "")) for each in cell["outputs"])
        is_hidden = not HIDDEN.isdisjoint(cell["metadata"].get("tags", []))
        is_drawn = any("worker 0 |" in text for text in texts)
        tags = ["hide-input"] * is_hidden + [DRAWN] * is_drawn
        yield {**cell, "metadata": {"tags": tags}}


def first_figure(notebook: Mapping[str, Any]) -> str | None:
    """Return the first SVG among the outputs of a notebook."""
    outputs = (output for cell in notebook["cells"] for output in cell.get("outputs", []))
    svgs = (output.get("data", {}).get("image/svg+xml") for output in outputs)
    return next(("".join(svg) for svg in svgs if svg), None)


def front(source: Path, names: Iterable[str]) -> str:
    """Return the gallery's own page: by folder, a card with the figure of each notebook."""
    sections = []
    for folder, members in groupby(names, key=lambda name: name.rpartition("/")[0]):
        cards = []
        for name in members:
            notebook = source / "gallery" / f"{name}.ipynb"
            begin = "".join(json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"])
            text = begin.splitlines()[0].removeprefix("# ")
            is_drawn = notebook.with_suffix(".svg").exists()
            shown = f"![{text}]({name}.svg) {text}" if is_drawn else text
            cards.append(f"[{shown}]({name}.ipynb){'' if is_drawn else ' (not run here)'}")
        every = "\n\n".join(cards)
        sections.append(
            f'## {TITLES.get(folder, folder)}\n\n<div class="cards">\n\n{every}\n\n</div>'
        )
    return "\n\n".join(sections)


def _place(path: Path) -> tuple[int, str]:
    folder = "" if path.parent.name == "notebooks" else path.parent.name
    known = list(TITLES)
    return known.index(folder) if folder in known else len(known), path.as_posix()
