"""A notebook: begun by one call, it shows figures and tables, and records claims."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import plotly.graph_objects as go
import torch
from IPython import get_ipython
from IPython.display import display, update_display

from experiments.study.claims import Changed, Rounds, evaluated, passes, points
from pipekit import plots
from pipekit.choices import require_choice
from pipekit.devices import stay_on_cpu
from pipekit.host.provenance import provenance, write
from pipekit.ledger import claims
from pipekit.ledger.batches.experiment import GIVEN
from pipekit.ledger.batches.ranges import assigned, read
from pipekit.ledger.batches.runs import GRID
from pipekit.ledger.report import scoreboard
from pipekit.traces import Memory, Trace

F = TypeVar("F", bound=Callable[..., Any])

_BOARD, _FIGURE = "pipekit-scoreboard", "pipekit-figure"
"""Jupyter's names of two outputs below :func:`begin`, where claims get a card each, and the figure
of most of them, as later cells record them; without claims both stay empty."""


@dataclass(frozen=True)
class Notebook:
    """A notebook's folder of results, and what is kept with each value that it records."""

    folder: Path
    origin: Mapping[str, Any] = field(default_factory=dict)
    _shown: dict[str, dict[str, str]] = field(default_factory=dict, init=False, repr=False)

    def claim(
        self,
        id: str,
        label: str,
        note: str = "",
        *,
        figure: str | None = None,
        over: Sequence[Any] | Rounds[Any] | None = None,
        because: Sequence[Changed] = (),
        **axes: Sequence[Any],
    ) -> Callable[[F], F]:
        """Record what the function below finds of a claim, and print the claim's outcome.

        The function returns our value: a number, a truth value, a text, a list of these, or a
        :class:`.Found` with more.  It is called at once, and stays a function.

        Args:
            id: of the claim, or of one for each of the axes' points: ``"gpipe-{column}-params"``.
            label: "measured", "emulated", "simulated" or "exact".
            note: what a reader must know beside the value.
            figure: the file that shows it, as :meth:`show` returned it.
            over: rounds, of which the function gets one at a time; the value is their median.
            because: the experiments made to explain a miss, see :func:`.claims.changed`.
            axes: values of the function's arguments.
        """

        def record(function: F) -> F:
            for point in points(axes):
                claim = id.format(**point)
                found, causes = evaluated(claim, label, function, point, over, because)
                kept = asdict(found)
                kept["note"] = "; ".join(filter(None, [note, kept["note"]]))
                kept["function"] = getattr(function, "__qualname__", "")
                self.record(claim, **kept, figure=figure, causes=causes)
            return function

        return record

    def proved(self, claims: Mapping[str, str], note: str = "", figure: str | None = None) -> None:
        """Record that claims hold as tests of the toolkit prove them, which are run here.

        By claim the test, say ``tests/planning/test_balance.py::test_equal_layers``, or several,
        separated by spaces; no such test, or no pytest, is a ValueError.
        """
        are_all_passed = passes(*claims.values())
        for id, tests in claims.items():
            kept = "; ".join(filter(None, [note, f"proved by {tests}"]))
            self.record(id, are_all_passed or passes(tests), "exact", kept, figure)

    def record(
        self,
        id: str,
        value: object,
        label: str,
        note: str = "",
        figure: str | None = None,
        **more: Any,
    ) -> None:
        """Record a value that is known already, and print the claim's outcome."""
        kept = {**self.origin, "note": note, "figure": figure, **more}
        print(claims.record(id, value, label, results_dir=self.folder, **kept))
        if get_ipython() is not None:
            for name, shown in self._found():
                if shown != self._shown.get(name):  # else the figure would flicker at each claim
                    self._shown[name] = shown
                    update_display(shown, raw=True, display_id=name)

    def show(self, figure: go.Figure, name: str, numbers: pd.DataFrame) -> str:
        """Display a figure, save it and its numbers; return the SVG's name, for claims."""
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
        """Display a table, and save it as ``<name>.csv`` if it has one; ``formats`` by column."""
        if name:
            frame.to_csv(self.folder / f"{name}.csv", index=index)
        floats = [name for name, kind in frame.dtypes.items() if kind == "float"]
        shown = frame.style.format(precision=precision, na_rep="–")
        shown = shown.format(f"{{:z.{precision}f}}", subset=floats, na_rep="–")  # no "-0.00"
        for column, text in (formats or {}).items():
            shown = shown.format(text, subset=column)
        shown = shown if index else shown.hide(axis="index")
        display(shown.set_caption(caption) if caption else shown)

    def grid(self, frame: pd.DataFrame) -> None:
        """Leave the numbers of one run of a grid, for the table of them all."""
        frame.to_csv(self.folder / GRID, index=False)

    def _found(self) -> Iterator[tuple[str, dict[str, str]]]:
        outcomes = claims.outcomes(self.folder)
        yield _BOARD, {"text/html": scoreboard(outcomes)}
        figures = [o.record.figure for o in outcomes if o.record and o.record.figure]
        drawn = [name for name in figures if name.endswith(".svg")]
        if drawn:
            most = self.folder / Counter(drawn).most_common(1)[0][0]
            yield _FIGURE, {"image/svg+xml": most.read_text(encoding="utf-8")}


def begin(
    namespace: Mapping[str, Any], name: str, *, label: str, threads: int | None = None
) -> Notebook:
    """Make a notebook's folder of results, with ``provenance.json`` in it.

    ``namespace`` are the notebook's ``globals()``, with its parameters; a ``seed`` among them is
    kept with every claim, as is ``name``, its path below ``notebooks/`` without suffix. ``threads``
    are those of torch's operators, here and at most in every worker, which decide how a sum is
    rounded. GPUs are used only if PIPEKIT_DEVICE is set.
    """
    stay_on_cpu()
    given = parameters(namespace)
    folder = Path(given.pop("results_dir")).resolve()
    scale, seed = given.pop("scale"), given.pop("seed", None)
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # see pipekit.host.operator_threads
        torch.set_num_threads(threads)
    record = provenance(label, seed=seed, notebook=name, scale=scale, parameters=given)
    write(folder / "provenance.json", record)
    origin = {"notebook": name, "scale": scale} | ({} if seed is None else {"seed": seed})
    if get_ipython() is not None:
        for output in (_BOARD, _FIGURE):
            display({"text/html": ""}, raw=True, display_id=output)
    return Notebook(folder, origin)


def parameters(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a notebook was given: the scalars of its ``globals()``, in its first cell.

    A parameter out of its range (:mod:`pipekit.ledger.batches.ranges`), or one that papermill was
    given and the notebook does not have, is a ValueError.
    """
    cells = namespace.get("In", ())
    declaring = (c for c in reversed(cells) if all(f"{name}: " in c for name in GIVEN))
    declared = read(next(declaring, ""))
    for cell in cells if declared else ():
        if cell.startswith("# Parameters\n"):  # papermill's own, with the values that it was given
            for name in assigned(cell):
                require_choice("a parameter of this notebook", name, declared)
    given = {
        name: value
        for name, value in namespace.items()
        if (name in declared if declared else not name.startswith("_"))
        and isinstance(value, bool | int | float | str)
    }
    for parameter in declared.values():
        parameter.check(given[parameter.name])
    return given
