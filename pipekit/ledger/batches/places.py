"""Where a batch's notebooks are executed: in threads here, or by the workers of a Dask cluster."""

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pipekit.ledger.batches.execution import execute, kill_kernels
from pipekit.ledger.batches.experiment import NotebookJob
from pipekit.ledger.batches.runs import NotebookResult

OnCell = Callable[[int], None]
_DASK = "dask:"
_ANSWER_S = 10
"""For which a cluster's answer is waited."""


class ExecutionPlace:
    """Executes notebooks in threads of this process, each in a kernel of its own."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def start(
        self, job: NotebookJob, scale: str, executed: Path, files: Path, on_cell: OnCell
    ) -> Future[NotebookResult]:
        """Begin to execute a notebook; arguments as for :func:`.execution.execute`."""
        return self._executor.submit(execute, job, scale, executed, files, on_cell)

    def stop(self, running: Collection[Future[NotebookResult]]) -> None:
        """End what is running, at once."""
        while wait(running, timeout=0.1).not_done:
            kill_kernels()  # again and again: one may just have been starting


class _DaskPlace(ExecutionPlace):
    """Sends notebooks to workers, which tell nothing of single cells."""

    def start(
        self, job: NotebookJob, scale: str, executed: Path, files: Path, on_cell: OnCell
    ) -> Future[NotebookResult]:
        job = replace(job, notebook=job.notebook.resolve())  # a worker may be in another folder
        return self._executor.submit(execute, job, scale, executed, files, _unheard)

    def stop(self, running: Collection[Future[NotebookResult]]) -> None:
        """Take back what no worker has begun; a kernel elsewhere ends with its notebook."""
        for future in running:
            future.cancel()


@contextmanager
def executor(on: str | None, width: int) -> Iterator[ExecutionPlace]:
    """Yield the place that is called so.

    Args:
        on: None, or ``dask:`` and a scheduler's address.
        width: how many notebooks are executed at a time.

    Raises:
        ValueError: the address is of no kind that is known, or Dask is not installed.
        OSError: nobody answers there.
    """
    if on is None:
        with ThreadPoolExecutor(width) as pool:
            yield ExecutionPlace(pool)
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
        yield _DaskPlace(client.get_executor(pure=False, retries=0))


def _unheard(cell: int) -> None:
    """Heed no cell: a callback does not travel to another machine."""
