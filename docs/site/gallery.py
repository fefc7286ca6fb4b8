"""The notebooks as pages, each with its first figure."""

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from pipekit.ledger.batches.experiment import load
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


def pages(root: Path, source: Path, linked: Callable[[str, Path], str]) -> list[str]:
    """Copy a checkout's notebooks to the site's source, ``linked``, executed if a run has them."""
    executed = {path.stem: path for path in sorted((root / "results/runs").glob("*/*.ipynb"))}
    experiments = sorted((root / "experiments").glob("*.yaml"))
    jobs = load(*experiments).jobs if experiments else ()
    called = {job.notebook: job.name for job in jobs}
    names = []
    for path in sorted((root / "notebooks").rglob("*.ipynb"), key=_place):
        name, job = path.relative_to(root / "notebooks"), called.get(path.resolve())
        text = executed.get(job or "", path).read_text(encoding="utf-8")
        notebook = json.loads(text.replace(f"{root}/", ""))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = linked("".join(cell["source"]), path.parent)
            elif not HIDDEN.isdisjoint(cell["metadata"].get("tags", [])):
                cell["metadata"] = {"tags": ["hide-input"]}
            elif any(
                "worker 0 |" in "".join(each.get("text", "")) for each in cell.get("outputs", ())
            ):
                cell["metadata"] = {"tags": [DRAWN]}
        into = source / "gallery" / name
        into.parent.mkdir(parents=True, exist_ok=True)
        into.write_text(json.dumps(notebook), encoding="utf-8")
        if figure := first_figure(notebook):
            into.with_suffix(".svg").write_text(figure, encoding="utf-8")
        names.append(name.with_suffix("").as_posix())
    return names


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
