"""The gallery: the notebooks as the newest runs have left them, each with its first figure."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipekit.ledger.batches.experiment import load_all


def pages(root: Path, source: Path) -> list[str]:
    """Copy a checkout's notebooks to the site's source, executed if a run has them.

    Returns:
        The names of their pages, below ``gallery``; a figure lies beside each that has one.
    """
    executed = {path.stem: path for path in sorted((root / "results/runs").glob("*/*.ipynb"))}
    experiments = sorted((root / "experiments").glob("*.yaml"))
    jobs = load_all(experiments).jobs if experiments else ()
    runs = {job.notebook.resolve(): executed.get(job.name) for job in jobs}
    names = []
    for path in sorted((root / "notebooks").rglob("*.ipynb")):
        name, run = path.relative_to(root / "notebooks"), runs.get(path.resolve())
        into = source / "gallery" / name
        into.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(run or path, into)
        if figure := first_figure(json.loads(into.read_text(encoding="utf-8"))):
            into.with_suffix(".svg").write_text(figure, encoding="utf-8")
        names.append(name.with_suffix("").as_posix())
    return names


def first_figure(notebook: Mapping[str, Any]) -> str | None:
    """Return the first SVG among the outputs of a notebook."""
    outputs = (output for cell in notebook["cells"] for output in cell.get("outputs", []))
    svgs = (output.get("data", {}).get("image/svg+xml") for output in outputs)
    return next(("".join(svg) for svg in svgs if svg), None)


def title(notebook: Mapping[str, Any]) -> str:
    """Return a notebook's heading."""
    return "".join(notebook["cells"][0]["source"]).splitlines()[0].removeprefix("# ")


def front(source: Path, names: list[str]) -> str:
    """Return the gallery's own page: pictures that lead to the notebooks that have any."""
    cards = []
    for name in names:
        notebook = source / "gallery" / f"{name}.ipynb"
        if notebook.with_suffix(".svg").exists():
            text = title(json.loads(notebook.read_text(encoding="utf-8")))
            cards.append(f"[![{text}]({name}.svg)]({name}.ipynb)\n\n*{text}*")
    return "\n\n".join(cards) or "No run is on this machine: the notebooks are without outputs."
