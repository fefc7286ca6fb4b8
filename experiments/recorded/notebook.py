"""What every notebook of the papers needs beside its own subject, set up by one call.

A notebook begins with ``nb = open_notebook(results_dir, scale, ...)``.  From then on ``nb`` shows
and saves figures and tables, and records values of claims.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import torch
from IPython import get_ipython
from IPython.display import display, update_display

from experiments.recorded.findings import Finding
from pipekit import plots
from pipekit.host.provenance import provenance, write
from pipekit.ledger import claims
from pipekit.ledger.batches import grid
from pipekit.ledger.batches.experiment import GIVEN
from pipekit.ledger.batches.ranges import Parameter, read
from pipekit.ledger.report import scoreboard
from pipekit.traces import Memory, Trace

_BOARD, _FIGURE = "pipekit-scoreboard", "pipekit-figure"
"""Jupyter's names of the outputs that :meth:`Notebook.scoreboard` makes, one each a notebook."""
_QUALIFIED = "repeats", "invalid", "shown_only", "causes", "contradiction", "known_error"
"""What a finding may say of its value, for :func:`pipekit.claims.record`."""


@dataclass(frozen=True)
class Notebook:
    """A notebook's folder of results, and what is kept with each value that it records."""

    folder: Path
    origin: Mapping[str, Any] = field(default_factory=dict)
    _shown: dict[str, dict[str, str]] = field(default_factory=dict, init=False, repr=False)

    def show(self, figure: go.Figure, name: str, numbers: pd.DataFrame) -> str:
        """Display a figure, and save it as ``<name>.svg`` with its numbers as ``<name>.csv``.

        Jupyter shows the plotly figure; where no script runs (GitHub), the SVG is shown. Returns
        the SVG's name, for claims that it supports.
        """
        svg = plots.save(figure, self.folder / name, numbers)["svg"]
        pictures = {
            "application/vnd.plotly.v1+json": json.loads(figure.to_json()),
            "image/svg+xml": svg.read_text(encoding="utf-8"),
        }
        display(pictures, raw=True)
        return svg.name

    def show_traces(
        self, name: str, *traces: Trace, titles: Sequence[str] | None = None, versions: bool = False
    ) -> str:
        """Display and save timelines, one under another, versions if asked; see :meth:`show`."""
        events = [trace.frame.assign(name=trace.name, label=trace.label) for trace in traces]
        figure = plots.compare(*traces, titles=titles and list(titles), versions=versions)
        return self.show(figure, name, pd.concat(events))

    def show_memory(
        self, name: str, memory: Memory, other: Memory | None = None, *, title: str
    ) -> str:
        """Display and save what workers hold over time, the other's as lines; see :meth:`show`."""
        each = [memory] if other is None else [memory, other]
        both = pd.concat([one.frame.assign(label=one.label) for one in each])
        return self.show(plots.memory(memory, other=other, title=title), name, both)

    def table(
        self,
        frame: pd.DataFrame,
        name: str | None = None,
        *,
        precision: int = 2,
        index: bool = False,
        caption: str = "",
        formats: Mapping[str, str] | None = None,
    ) -> None:
        """Display a table, and save it as ``<name>.csv`` if it has a name.

        ``precision`` counts digits after the point; ``formats`` are of single columns, as
        ``"{:+.1%}"``.
        """
        if name:
            frame.to_csv(self.folder / f"{name}.csv", index=index)
        shown = frame.style.format(precision=precision, na_rep="–")
        for column, text in (formats or {}).items():
            shown = shown.format(text, subset=column)
        shown = shown if index else shown.hide(axis="index")
        display(shown.set_caption(caption) if caption else shown)

    def grid(self, frame: pd.DataFrame) -> None:
        """Leave the numbers of one run of a grid, for the table of them all."""
        frame.to_csv(self.folder / grid.OWN, index=False)

    def record(
        self,
        claim: str,
        value: object,
        label: str,
        note: str = "",
        figure: str | None = None,
        **more: object,
    ) -> None:
        """Record our value of a claim and print its outcome.

        ``more`` are arguments of :func:`pipekit.claims.record`, say repeats, or provenance.
        """
        self._record(claim, value, label, {"note": note, "figure": figure, **more})
        self._update_scoreboard()

    def record_all(
        self, findings: Iterable[Finding], figure: str | None = None, **more: object
    ) -> None:
        """Record findings; ``figure`` shows those that name none.  See :meth:`record`."""
        for found in findings:
            shown = found.figure or figure
            kept: dict[str, Any] = {name: getattr(found, name) for name in _QUALIFIED}
            kept |= {"note": found.note, "figure": shown, **more}
            self._record(found.claim, found.value, found.label, kept)
        self._update_scoreboard()

    def _record(self, claim: str, value: object, label: str, kept: Mapping[str, Any]) -> None:
        kept = {**self.origin, **kept}
        print(claims.record(claim, value, label, results_dir=self.folder, **kept))

    def scoreboard(self) -> None:
        """Show what this notebook finds, kept up to date by its later cells.

        In a saved notebook it stands where this was called, on its first screen: a card a claim,
        and the figure that most of the claims name, once more where it is made.
        """
        for name, shown in self._found():
            self._shown[name] = shown
            display(shown, raw=True, display_id=name)

    def _update_scoreboard(self) -> None:
        if get_ipython() is not None:
            for name, shown in self._found():
                if shown != self._shown.get(name):  # else the figure would flicker at each claim
                    self._shown[name] = shown
                    update_display(shown, raw=True, display_id=name)

    def _found(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the scoreboard's outputs: name and data, by MIME type."""
        outcomes = claims.outcomes(self.folder)
        yield _BOARD, {"text/html": scoreboard(outcomes)}
        figures = [o.record.figure for o in outcomes if o.record and o.record.figure]
        drawn = [name for name in figures if name.endswith(".svg")]
        if drawn:
            most = self.folder / Counter(drawn).most_common(1)[0][0]
            yield _FIGURE, {"image/svg+xml": most.read_text(encoding="utf-8")}
        else:
            yield _FIGURE, {"text/html": ""}  # none is there yet, and here it will be

    def claims(self) -> pd.DataFrame:
        """Return the claims recorded so far: paper, ours, ratio, label and outcome, a row each."""
        return claims.table(self.folder)


def open_notebook(
    results_dir: str | Path,
    scale: str,
    *,
    name: str,
    label: str,
    seed: int | None = None,
    threads: int | None = None,
    **given: object,
) -> Notebook:
    """Make a notebook's folder of results, with ``provenance.json`` in it.

    Args:
        results_dir: the folder.
        scale: "quick" or "full".
        name: of the notebook.
        label: of most of its numbers: "measured", "emulated", "simulated" or "exact".
        seed: of its random numbers, if it has any; it is kept with every claim.
        threads: of torch's operators, here and at most in every worker; None leaves both alone.  A
            sum that is split over threads is rounded otherwise, so that bits are compared with 1.
        given: what else the notebook was given, say by :func:`parameters`.
    """
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # see pipekit.host.operator_threads
        torch.set_num_threads(threads)
    folder = Path(results_dir).resolve()
    record = provenance(label, seed=seed, notebook=name, scale=scale, parameters=given)
    write(folder / "provenance.json", record)
    return Notebook(folder, {"scale": scale} | ({} if seed is None else {"seed": seed}))


def parameters(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a notebook was given: the scalars of its ``globals()``, in its first cell.

    What the cell tagged ``parameters`` declares must be in the range that its comment says, see
    :mod:`pipekit.ledger.batches.ranges`: it is refused at once, not by the notebook's fifth figure.

    Args:
        namespace: the notebook's ``globals()``.

    Raises:
        ValueError: a parameter is out of its range; the sentence names both.
    """
    given = {
        name: value
        for name, value in namespace.items()
        if not name.startswith("_") and isinstance(value, bool | int | float | str)
    }
    for parameter in _declared(namespace.get("In", ())).values():
        parameter.check(given[parameter.name])
    return given


def _declared(cells: Sequence[str]) -> dict[str, Parameter]:
    """Return the parameters that the cell tagged so declares, by the cells run so far.

    Jupyter tells no tag: it is the last one that declares what every notebook is given.
    """
    for cell in reversed(cells):
        if all(f"{name}: " in cell for name in GIVEN):
            return read(cell)
    return {}
