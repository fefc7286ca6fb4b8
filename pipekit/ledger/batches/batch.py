"""Run experiments' notebooks, several at a time if wanted, with nobody at the screen."""

import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from tqdm.std import tqdm

from pipekit.ledger.batches import runs
from pipekit.ledger.batches.execution import execute, kill_kernels, told
from pipekit.ledger.batches.experiment import NotebookJob, load
from pipekit.ledger.batches.runs import BatchRun, NotebookResult
from pipekit.reading import read_text

_DASK = "dask:"
_ANSWER_S = 10  # for which a cluster's answer is waited
_LOOK_S = 1.0  # how often notebooks are asked how far they are


def run(
    *experiments: Path,
    scale: str = "quick",
    only: Collection[str] | None = None,
    jobs: int = 1,
    resume: bool = False,
    results: Path = Path("results/runs"),
    quiet: bool = False,
    on: str | None = None,
) -> BatchRun:
    """Execute the notebooks of one or several experiments; those that must run alone come last.

    The run's folder, below ``results``, is named by the UTC time.  It holds each notebook's
    executed copy ``<name>.ipynb``, a folder ``<name>/`` for its files, and ``provenance.json``.  A
    notebook that fails keeps its error and does not stop the others.  The other arguments are those
    of ``pipekit run``.  A ValueError: nothing was run, since a file or an argument is not as
    described, or there is nothing to resume. An OSError: nobody answers at the cluster's address.
    """
    experiment = load(*experiments, scale=scale)
    if only is not None:
        experiment = experiment.only(only)
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, not {jobs}")
    results, earlier = results.resolve(), None
    try:
        earlier = runs.unfinished(results, experiment)
    except (ValueError, BlockingIOError) as why:
        if resume:
            raise ValueError(
                f"{results} has no unfinished run of {experiment.name} ({scale}) to continue: {why}"
            ) from None
    if earlier and not resume and not quiet:
        print(f"this is a new run; --resume continues the unfinished one, {earlier}")
    with _ending_in_order(), _place(on, jobs) as place:  # nobody may answer: no folder yet
        folder = earlier if resume and earlier else runs.new(results)
        with runs.locked(folder):
            batch = BatchRun(folder, experiment)
            try:
                _execute_all(batch, experiment.scale, jobs, quiet, place)
            except KeyboardInterrupt:
                if not quiet:
                    print(f"interrupted: --resume continues {folder}")
                raise
    if not quiet:
        print(batch)
    return batch


@contextmanager
def _place(on: str | None, width: int) -> Iterator[Executor]:
    """Yield where notebooks run: here or on a cluster."""
    if on is None:
        with ThreadPoolExecutor(width) as pool:
            yield pool
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
        yield client.get_executor(pure=False, retries=0)


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


def _execute_all(batch: BatchRun, scale: str, width: int, quiet: bool, place: Executor) -> None:
    """Execute what is to do: together what may, and then one by one what must run alone."""
    todo, total = batch.todo, len(batch.jobs)
    with tqdm(total=total, initial=total - len(todo), unit="notebook", disable=quiet) as bar:
        for alone, at_a_time in ((False, width), (True, 1)):
            waiting = deque(job for job in todo if job.alone is alone)
            running: dict[Future[NotebookResult], NotebookJob] = {}
            try:
                while waiting or running:
                    while waiting and len(running) < at_a_time:
                        job = waiting.popleft()
                        batch.prepare(job)
                        running[place.submit(execute, job, scale, batch.folder)] = job
                    bar.set_description(", ".join(_step(batch.folder, j) for j in running.values()))
                    for future in wait(running, _LOOK_S, return_when=FIRST_COMPLETED).done:
                        batch.add(running.pop(future), future.result())
                        bar.update()
            except BaseException:  # Ctrl-C, or a full disk: no kernel may be left behind
                while not all(future.cancel() or future.done() for future in running):
                    kill_kernels()  # again and again: one may just have been starting
                    time.sleep(0.1)
                raise


def _step(folder: Path, job: NotebookJob) -> str:
    try:
        step = read_text(told(folder / f"{job.name}.ipynb"))
    except FileNotFoundError:  # it begins, or has just ended
        return job.name
    return f"{job.name} ({step})" if step else job.name
