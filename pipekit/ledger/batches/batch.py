"""Run experiments' notebooks, several at a time if wanted, with nobody at the screen."""

import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm.std import tqdm

from pipekit.ledger.batches import runs
from pipekit.ledger.batches.execution import execute, kill_kernels, told
from pipekit.ledger.batches.experiment import NotebookJob, load_all
from pipekit.ledger.batches.runs import BatchRun, NotebookResult
from pipekit.reading import read_text

_DASK = "dask:"
_ANSWER_S = 10
"""For which a cluster's answer is waited."""
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
    if resume and why:
        warnings.warn(
            f"{earlier} is continued, although a newer run may be meant: {why}", stacklevel=2
        )
    if earlier and not resume and not quiet:
        print(f"this is a new run; --resume continues the unfinished one, {earlier}")
    with (
        _ending_in_order(),
        _place(on, jobs) as place,
    ):  # before there is a folder: nobody may answer
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


@dataclass(frozen=True)
class _Place:
    """Where notebooks are executed, each in a kernel: threads here, or workers elsewhere."""

    executor: Executor
    is_elsewhere: bool = False

    def start(
        self, job: NotebookJob, scale: str, folder: Path, on_cell: Callable[[int], None]
    ) -> Future[NotebookResult]:
        """Begin to execute a notebook; workers elsewhere, in other folders, tell of no cell."""
        job = replace(job, notebook=job.notebook.resolve())
        heeded = _unheard if self.is_elsewhere else on_cell
        return self.executor.submit(execute, job, scale, folder, heeded)

    def stop(self, running: Collection[Future[NotebookResult]]) -> None:
        """End what runs here at once; elsewhere take back what no worker has begun."""
        if self.is_elsewhere:
            for future in running:
                future.cancel()
            return
        while wait(running, timeout=0.1).not_done:
            kill_kernels()  # again and again: one may just have been starting


@contextmanager
def _place(on: str | None, width: int) -> Iterator[_Place]:
    """Yield this machine, for so many notebooks at a time, or the cluster of an address."""
    if on is None:
        with ThreadPoolExecutor(width) as pool:
            yield _Place(pool)
        return
    if not on.startswith(_DASK) or on == _DASK:
        raise ValueError(
            f"--on {on!r}: write dask: and the scheduler's address, dask:tcp://host:8786"
        )
    try:
        from distributed import Client
    except ImportError as error:
        raise ValueError("--on dask: needs Dask: pip install 'pipekit[dask]'") from error
    with Client(on.removeprefix(_DASK), timeout=_ANSWER_S, set_as_default=False) as client:
        # A notebook has effects: a worker that is lost is not replaced by another one's attempt.
        yield _Place(client.get_executor(pure=False, retries=0), is_elsewhere=True)


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Let SIGTERM end this process as an error does: no kernel or folder of one is left behind."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _unheard(cell: int) -> None:
    """Heed no cell: a callback does not travel to another machine."""


def _execute_all(batch: BatchRun, scale: str, width: int, quiet: bool, place: _Place) -> None:
    """Execute what is to do: together what may, and then one by one what must run alone."""
    todo = batch.todo
    total, left = (sum(job.cells for job in jobs) for jobs in (batch.jobs, todo))
    with tqdm(total=total, initial=total - left, unit="cell", disable=quiet) as bar:
        progress = _Progress(bar)
        for alone, at_a_time in ((False, width), (True, 1)):
            waiting = deque(job for job in todo if job.alone is alone)
            running: dict[Future[NotebookResult], NotebookJob] = {}
            try:
                while waiting or running:
                    while waiting and len(running) < at_a_time:
                        job = waiting.popleft()
                        batch.prepare(job)
                        progress.begin(job, batch.folder)
                        on_cell = partial(progress.reach, job)
                        running[place.start(job, scale, batch.folder, on_cell)] = job
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

    def begin(self, job: NotebookJob, folder: Path) -> None:
        with self._lock:
            self._cells[job.name] = 0
            self._told[job.name] = told(folder / f"{job.name}.ipynb")
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
