"""Experiment files: which notebooks to run, with which parameters.

An experiment file is YAML::

    name: quickstart
    cell_timeout_s: 600              # optional: the longest that one cell may take
    notebooks:
      - notebook: ../notebooks/quickstart.ipynb    # relative to this file
        name: quickstart             # optional: tells two runs of one notebook apart
        parameters: {stages: 4}      # optional: at every scale
        quick: {epochs: 1}           # optional: at this scale only
        full: {epochs: 10}
        alone: true                  # optional: it measures times, nothing may run beside it
        grid:                        # optional: one run for each combination of these values
          lr: [0.01, 0.1]            # a scale that sets it (quick: {lr: 0.1}) does not vary it
          method: {ours: "2bw", theirs: "pipedream"}    # labels, where a value says little

Everything is checked before anything runs: a parameter must be assigned in the notebook's cell
tagged ``parameters``, and be in the range that its comment there says
(:mod:`pipekit.ledger.batches.ranges`).  So must ``scale`` and ``results_dir`` (the folder for the
notebook's own files), which every notebook gets.
"""

import hashlib
import json
import os
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field

from pipekit.ledger.batches import ranges
from pipekit.reading import parse_json, read_json, read_text

SCALES = ("quick", "full")
GIVEN = ("scale", "results_dir")  # parameters that the batch runner sets in every notebook

_NAME = re.compile(r"\w[\w -]{0,99}")
_LABEL = 40  # characters of a grid's value in the name of its notebook


@dataclass(frozen=True)
class NotebookJob:
    """One notebook with its parameters at the chosen scale, ``GIVEN`` not among them."""

    name: str
    notebook: Path
    parameters: dict[str, Any]
    cells: int
    sha256: str  # of the notebook's file, in hex
    cell_timeout_s: int
    alone: bool  # nothing may run beside it
    entry: str  # its name before a grid gave it one of its own
    point: tuple[tuple[str, str], ...]  # parameters that the grid has chosen, by their labels


@dataclass(frozen=True)
class Experiment:
    """One checked experiment file, or several as one, at one scale."""

    name: str
    scale: str
    jobs: tuple[NotebookJob, ...]

    def only(self, names: Collection[str]) -> "Experiment":
        """Return these notebooks only, a grid's by its own name or by theirs; else a ValueError."""
        known = list(dict.fromkeys(n for job in self.jobs for n in (job.entry, job.name)))
        if unknown := sorted(set(names) - set(known)):
            raise ValueError(f"{self.name} has no notebook {unknown[0]!r}, only {', '.join(known)}")
        chosen = (job for job in self.jobs if {job.name, job.entry}.intersection(names))
        return replace(self, jobs=tuple(chosen))


def load(*files: Path, scale: str = "quick") -> Experiment:
    """Read and check experiment files and their notebooks, which run as one; else a ValueError."""
    if scale not in SCALES:
        raise ValueError(f"scale must be {' or '.join(SCALES)}, not {scale!r}")
    names, jobs, owner = list[str](), list[NotebookJob](), dict[str, Path]()
    for file in files:
        found = _read(file)
        names.append(found.name)
        for number, entry in enumerate(found.notebooks, start=1):
            try:
                own = _jobs(entry, file.parent, scale, found.cell_timeout_s)
            except ValueError as error:
                raise ValueError(f"{file}, notebook {number}: {error}") from error
            for job in own:
                if other := owner.get(job.name):
                    both = f"{other} and {file} both have a notebook"
                    both = f"{file} has two notebooks" if other is file else both
                    raise ValueError(f"{both} called {job.name}: name one, or a grid's values")
                owner[job.name] = file
            jobs += own
    return Experiment(" + ".join(names), scale, tuple(jobs))


def _read(file: Path) -> "_File":
    if not file.is_file():
        raise ValueError(
            f"no experiment file is named {file}: name a YAML file, as experiments/quickstart.yaml"
        )
    try:
        content = json.dumps(yaml.load(read_text(file), _PlainLoader), allow_nan=False)
        found = parse_json(content, _File, exact=True)
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise ValueError(f"{file} is not an experiment, see docs/papers.md: {why}") from error
    if not found.name.isprintable():
        raise ValueError(f"{file}: 'name' must be printable, not {found.name!r}")
    return found


def _jobs(entry: "_Entry", folder: Path, scale: str, cell_timeout_s: int) -> list[NotebookJob]:
    path = folder / entry.notebook
    name = path.stem if entry.name is None else entry.name
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"the name {name!r} must be usable as a file name: at most 100 letters, digits, "
            f"spaces, '-' and '_'"
        )
    at_scale = entry.quick if scale == "quick" else entry.full
    parameters = entry.parameters | at_scale
    varied = {name: values for name, values in entry.grid.items() if name not in at_scale}
    points = list(product(*(_axis(*axis) for axis in varied.items())))
    if both := sorted(parameters.keys() & varied.keys()):
        raise ValueError(f"{both[0]!r} is both in the grid and beside it: leave one out")
    if not os.path.isfile(path):  # False, where is_file() raises: for a name that none can have
        raise ValueError(f"no notebook is named {path}")
    try:
        notebook = read_json(path, _Notebook, "a notebook")
        declared = set(ranges.assigned(notebook.parameters))
        ranged = ranges.read(notebook.parameters)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:  # the parser's, too
        raise ValueError(f"{path} cannot be read as a notebook ({error})") from error
    for parameter in (*GIVEN, *parameters, *entry.grid):
        if parameter not in declared:
            raise ValueError(f"{path} must assign {parameter!r} in its cell tagged 'parameters'")
    jobs = []
    for point in points:
        chosen = parameters | {name: value for name, _, value in point}
        for parameter in chosen.keys() & ranged.keys():
            ranged[parameter].check(chosen[parameter])
        job = NotebookJob(
            name="-".join([name, *(label for _, label, _ in point)]),
            notebook=path.resolve(),
            parameters=chosen,
            cells=len(notebook.cells),
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            cell_timeout_s=cell_timeout_s,
            alone=entry.alone,
            entry=name,
            point=tuple((name, label) for name, label, _ in point),
        )
        jobs.append(job)
    if given := sorted({*GIVEN} & {*parameters, *entry.grid}):
        raise ValueError(f"{given[0]!r} is set by the runner, leave it out")
    return jobs


def _axis(name: str, values: Any) -> list[tuple[str, str, Any]]:
    """Return a grid's parameter with the label and the value of each of its runs."""
    if not isinstance(values, list | dict) or not values:
        raise ValueError(f"the grid of {name!r} must be a list of values, not {values!r}")
    if isinstance(values, list):
        return [(name, _label(value), value) for value in values]
    return [(name, str(label), value) for label, value in values.items()]


def _label(value: Any) -> str:
    """Return a value as part of a file name: 0.01 is 0p01."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return re.sub(r"[^\w-]", "_", text.replace(".", "p"))[:_LABEL].strip("_")


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases: some lines of them stand for more than any memory holds."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("write out the values of *aliases")
        return super().compose_node(parent, index)


class _Entry(BaseModel):
    notebook: str
    name: str | None = None
    parameters: dict[str, Any] = {}
    quick: dict[str, Any] = {}
    full: dict[str, Any] = {}
    grid: dict[str, Any] = {}
    alone: bool = False


class _File(BaseModel):
    name: str
    notebooks: list[_Entry] = Field(min_length=1)
    # Half an hour unless the file says otherwise: without a limit a lost reply of the kernel would
    # hang the batch for ever (nbclient issue 312).
    cell_timeout_s: int = Field(1800, ge=1, le=10**6)


class _Metadata(BaseModel):
    tags: list[str] = []


class _Cell(BaseModel):
    cell_type: str
    metadata: _Metadata
    source: str | list[str]


class _Notebook(BaseModel):
    """What a batch must know of a notebook before it runs."""

    nbformat: Literal[4]
    cells: list[_Cell]

    @property
    def parameters(self) -> str:
        """The source of its cells tagged ``parameters``."""
        cells = (
            "".join(cell.source)
            for cell in self.cells
            if cell.cell_type == "code" and "parameters" in cell.metadata.tags
        )
        return "\n".join(cells)
