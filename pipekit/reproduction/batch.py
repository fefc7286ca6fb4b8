"""Run an experiment's notebooks one after another, with nobody at the screen."""

import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
import papermill
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbformat.sign import NotebookNotary
from tqdm import tqdm
from traitlets import default

from pipekit.provenance import provenance, write
from pipekit.reproduction.experiment import Experiment, Job, load


@dataclass(frozen=True)
class NotebookResult:
    """What became of one notebook: executed copy, its own files, wall seconds, its error."""

    name: str
    notebook: Path
    files: Path
    seconds: float
    error: str | None


@dataclass(frozen=True)
class BatchResult:
    """What became of an experiment: the run's folder, and its notebooks in order."""

    folder: Path
    notebooks: tuple[NotebookResult, ...]

    @property
    def failed(self) -> tuple[NotebookResult, ...]:
        """The notebooks that ended with an error."""
        return tuple(notebook for notebook in self.notebooks if notebook.error)

    def __str__(self) -> str:
        lines = [
            f"{notebook.name}: {notebook.error or f'done in {notebook.seconds:.0f} s (measured)'}"
            for notebook in self.notebooks
        ]
        return "\n".join([*lines, f"results: {self.folder}"])


def run(
    experiment: Path,
    scale: str = "quick",
    only: Collection[str] | None = None,
    results: Path = Path("results/runs"),
    quiet: bool = False,
) -> BatchResult:
    """Execute an experiment's notebooks one after another.

    The run's folder is named by the UTC time.  It holds each notebook's executed copy
    ``<name>.ipynb``, a folder ``<name>/`` for its files, and ``provenance.json``.  A notebook that
    fails keeps its error and does not stop the others.

    Args:
        experiment: the YAML file, see :mod:`pipekit.reproduction.experiment`.
        scale: "quick" or "full".
        only: names of the notebooks to run; None runs all.
        results: the folder that gets the run's folder.
        quiet: print nothing, no progress bar either.

    Raises:
        ValueError: the file, a notebook or ``only`` is not as described; nothing was run then.
    """
    plan = load(experiment, scale)
    jobs = _select(plan, only)
    folder = results.resolve() / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S.%fZ")
    folder.mkdir(parents=True)
    record = provenance(
        "measured",
        experiment=plan.name,
        scale=scale,
        parameters={job.name: job.parameters for job in jobs},
    )
    # Written before the run too: what an interrupted run leaves behind needs its origin as well.
    write(folder / "provenance.json", record)
    with tqdm(total=sum(job.cells for job in jobs), unit="cell", disable=quiet) as bar:
        result = BatchResult(folder, tuple(_execute(job, plan, folder, bar) for job in jobs))
    outcomes = [
        asdict(n) | {"notebook": n.notebook.name, "files": n.files.name} for n in result.notebooks
    ]
    write(folder / "provenance.json", record | {"notebooks": outcomes})
    if not quiet:
        print(result)
    return result


def _select(plan: Experiment, only: Collection[str] | None) -> tuple[Job, ...]:
    if only is None:
        return plan.jobs
    names = [job.name for job in plan.jobs]
    if unknown := sorted(set(only) - set(names)):
        raise ValueError(f"{plan.name} has no notebook {unknown[0]!r}, only {', '.join(names)}")
    return tuple(job for job in plan.jobs if job.name in only)


def _execute(job: Job, plan: Experiment, folder: Path, bar: "tqdm[Any]") -> NotebookResult:
    executed, files = folder / f"{job.name}.ipynb", folder / job.name
    files.mkdir()
    before = bar.n
    bar.set_description(job.name)

    def show_progress(cell: nbformat.NotebookNode, cell_index: int) -> None:
        bar.update(before + cell_index - bar.n)

    started = time.perf_counter()
    error = None
    try:
        papermill.execute_notebook(
            job.notebook,
            executed,
            {**job.parameters, "scale": plan.scale, "results_dir": str(files)},
            kernel_name="python3",
            language="python",
            kernel_manager_class=_ThisInterpreter,
            progress_bar=False,
            cwd=job.notebook.parent,
            execution_timeout=plan.cell_timeout_s,
            on_cell_start=show_progress,
        )
    except Exception as failure:  # whatever one notebook does, the others still run
        error = _in_one_line(failure)
    seconds = time.perf_counter() - started
    bar.update(before + job.cells - bar.n)
    if executed.exists():
        # Jupyter shows widgets and scripts of signed notebooks only.
        NotebookNotary().sign(nbformat.read(executed, as_version=4))
    return NotebookResult(job.name, executed, files, round(seconds, 2), error)


def _in_one_line(failure: Exception) -> str:
    if isinstance(failure, papermill.PapermillExecutionError):
        kind, text = failure.ename, failure.evalue
    else:
        kind, text = type(failure).__name__, str(failure)
    return f"{kind}: {' '.join(text.split())}"


class _ThisInterpreter(AsyncKernelManager):
    """Starts kernels in this very Python.

    A kernel called "python3" may be another environment's, from the user's Jupyter settings.
    """

    @default("transport_encryption")
    def _transport_encryption_default(self) -> str:
        return "auto"  # newer kernels warn on the terminal when they are spoken to in the clear

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(**get_kernel_dict())
