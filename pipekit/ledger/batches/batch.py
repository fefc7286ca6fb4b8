"""Run experiments' notebooks, several at a time if wanted, with nobody at the screen."""

import threading
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tqdm.std import tqdm

from pipekit.ledger.batches import places, runs
from pipekit.ledger.batches.execution import told
from pipekit.ledger.batches.experiment import NotebookJob, load_all
from pipekit.ledger.batches.places import ExecutionPlace
from pipekit.ledger.batches.runs import BatchRun, NotebookResult
from pipekit.reading import read_text

_LOOK_S = 1.0
"""How often a long cell is asked how far it is."""


@dataclass(frozen=True)
class BatchResult:
    """What became of a batch: the run's folder, and its notebooks in the experiment's order."""

    folder: Path
    notebooks: tuple[NotebookResult, ...]

    @property
    def failed(self) -> tuple[NotebookResult, ...]:
        """The notebooks that ended with an error."""
        return tuple(notebook for notebook in self.notebooks if notebook.error)

    def __str__(self) -> str:
        lines = [
            f"{n.name}: {'failed' if n.error else 'done'} in {n.seconds:.0f} s (measured)"
            + (f": {n.error}" if n.error else "")
            for n in self.notebooks
        ]
        return "\n".join([*lines, f"results: {self.folder}"])


def run(
    *experiments: Path,
    scale: str = "quick",
    only: Collection[str] | None = None,
    jobs: int = 1,
    resume: bool = False,
    results: Path = Path("results/runs"),
    quiet: bool = False,
    on: str | None = None,
) -> BatchResult:
    """Execute the notebooks of one or several experiments; those that must run alone come last.

    The run's folder is named by the UTC time.  It holds each notebook's executed copy
    ``<name>.ipynb``, a folder ``<name>/`` for its files, and ``provenance.json``.  A notebook that
    fails keeps its error and does not stop the others.

    Args:
        experiments: the YAML files, see :mod:`pipekit.ledger.batches.experiment`.
        scale: "quick" or "full".
        only: names of the notebooks to run; None runs all.
        jobs: how many notebooks run at a time.
        resume: continue the newest run of the same notebooks at the same scale.  What ended there
            without an error is not run again, unless its file or its parameters have changed.
        results: the folder that gets the run's folder.
        quiet: print nothing, no progress bar either.
        on: where: a Dask cluster, ``dask:tcp://host:8786``, whose workers see this file system
            under the same paths and have this environment; by default here.

    Raises:
        ValueError: a file, a notebook or an argument is not as described, or there is nothing to
            resume; nothing was run then.
        OSError: nobody answers at the cluster's address.
    """
    experiment = load_all(experiments, scale)
    if only is not None:
        experiment = experiment.only(only)
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, not {jobs}")
    results = results.resolve()
    earlier, why = runs.unfinished(results, experiment)
    if resume and earlier is None:
        raise ValueError(
            f"{results} has no unfinished run of {experiment.name} ({scale}) to continue: {why}"
        )
    if earlier and not resume and not quiet:
        print(f"this is a new run; --resume continues the unfinished one, {earlier}")
    with places.executor(on, jobs) as place:  # before there is a folder: nobody may answer
        folder = earlier if resume and earlier else runs.new(results)
        with runs.locked(folder):
            batch = BatchRun(folder, experiment)
            try:
                _execute_all(batch, experiment.scale, jobs, quiet, place)
            except KeyboardInterrupt:
                if not quiet:
                    print(f"interrupted: --resume continues {folder}")
                raise
            result = BatchResult(folder, batch.results)
    if not quiet:
        print(result)
    return result


def _execute_all(
    batch: BatchRun, scale: str, width: int, quiet: bool, place: ExecutionPlace
) -> None:
    todo = batch.todo
    total, left = (sum(job.cells for job in jobs) for jobs in (batch.jobs, todo))
    with tqdm(total=total, initial=total - left, unit="cell", disable=quiet) as bar:
        progress = _Progress(bar)
        _execute_some([j for j in todo if not j.alone], width, batch, scale, progress, place)
        _execute_some([j for j in todo if j.alone], 1, batch, scale, progress, place)


def _execute_some(
    jobs: Sequence[NotebookJob],
    width: int,
    batch: BatchRun,
    scale: str,
    progress: "_Progress",
    place: ExecutionPlace,
) -> None:
    waiting = deque(jobs)
    running: dict[Future[NotebookResult], NotebookJob] = {}
    try:
        while waiting or running:
            while waiting and len(running) < width:
                job = waiting.popleft()
                executed, files = batch.prepare(job)
                progress.begin(job, told(executed))
                on_cell = partial(progress.reach, job)
                running[place.start(job, scale, executed, files, on_cell)] = job
            over = wait(running, _LOOK_S, return_when=FIRST_COMPLETED).done
            progress.look()
            for future in over:
                job = running.pop(future)
                batch.add(job, future.result())
                progress.end(job)
    except BaseException:  # Ctrl-C, or a full disk: no kernel may be left behind
        place.stop(running)
        raise


class _Progress:
    """One bar for the cells of all notebooks.

    Its description names those under way, and how far their cells say they are.
    """

    def __init__(self, bar: "tqdm[Any]") -> None:
        self._bar = bar
        self._lock = threading.Lock()
        self._cells: dict[str, int] = {}
        self._told: dict[str, Path] = {}

    def begin(self, job: NotebookJob, told: Path) -> None:
        """Count a notebook's cells from now on; ``told`` is where they say how far they are."""
        with self._lock:
            self._cells[job.name], self._told[job.name] = 0, told
        self.look()

    def reach(self, job: NotebookJob, cells: int) -> None:
        """Note how many cells of a notebook are over."""
        with self._lock:
            self._bar.update(cells - self._cells[job.name])
            self._cells[job.name] = cells

    def look(self) -> None:
        """Show how far the cells under way are."""
        with self._lock:
            steps = {name: _read(file) for name, file in self._told.items()}
            shown = (f"{name} ({step})" if step else name for name, step in steps.items())
            self._bar.set_description(", ".join(shown))

    def end(self, job: NotebookJob) -> None:
        self.reach(job, job.cells)  # a failed notebook has nothing left to do either
        with self._lock:
            del self._cells[job.name], self._told[job.name]
        self.look()


def _read(file: Path) -> str:
    try:
        return read_text(file)
    except FileNotFoundError:  # no bar yet, or the notebook has just ended
        return ""
