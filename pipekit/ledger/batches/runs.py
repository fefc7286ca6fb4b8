"""A batch's folder: its record, replaced after every notebook, and where a batch is continued."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel

from pipekit.host.provenance import provenance, write
from pipekit.ledger.batches.experiment import Experiment, NotebookJob
from pipekit.reading import read_json, read_table

RECORD = "provenance.json"
KEPT = "trainings"
"""The folder among a notebook's files that outlives an interruption: of its finished trainings."""
GRID = "grid.csv"  # the file among them with the numbers of one run of a grid


class NotebookResult(BaseModel, frozen=True):
    """What became of one notebook, of its file's ``sha256``, at a commit.

    ``memory_gb`` is the most that its processes took together, where the system tells it, and
    ``disk_mb`` what it left in the run's folder.
    """

    name: str
    seconds: float
    memory_gb: float | None = None
    disk_mb: float | None = None
    error: str | None
    sha256: str | None = None
    commit: str | None = None


class BatchRun:
    """A batch: its ``folder``, the notebooks that are complete in it, and those still to run."""

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self.folder = folder
        self.jobs = experiment.jobs
        self._done: dict[str, NotebookResult] = {}
        if (folder / RECORD).exists():
            record = read_json(folder / RECORD, _Record, "a batch's record")
            known = {job.name: (job.sha256, job.parameters) for job in self.jobs}
            for done in record.notebooks:
                as_run = done.sha256, record.parameters.get(done.name)
                if not done.error and known.get(done.name) == as_run:
                    self._done[done.name] = done
        for job in self.todo:
            files = folder / job.name
            if files.is_symlink() or (files.exists() and not files.is_dir()):
                raise ValueError(
                    f"{files} is not a folder of this run's files, which would be emptied: move it "
                    f"away, or begin a new run without --resume"
                )
        self._record = provenance(
            "measured",
            experiment=experiment.name,
            scale=experiment.scale,
            parameters={job.name: job.parameters for job in experiment.jobs},
        )
        self._write()  # what an interrupted batch leaves behind needs its origin as well

    @property
    def todo(self) -> tuple[NotebookJob, ...]:
        """The notebooks without a result."""
        return tuple(job for job in self.jobs if job.name not in self._done)

    @property
    def notebooks(self) -> tuple[NotebookResult, ...]:
        """What became of notebooks so far, in the experiment's order."""
        return tuple(self._done[job.name] for job in self.jobs if job.name in self._done)

    @property
    def failed(self) -> tuple[NotebookResult, ...]:
        """Those that ended with an error."""
        return tuple(notebook for notebook in self.notebooks if notebook.error)

    def __str__(self) -> str:
        lines = [
            f"{n.name}: {'failed' if n.error else 'done'} in {n.seconds:.0f} s (measured)"
            + (f": {n.error}" if n.error else "")
            for n in self.notebooks
        ]
        return "\n".join([*lines, f"results: {self.folder}"])

    def prepare(self, job: NotebookJob) -> None:
        """Leave nothing of an earlier attempt but the trainings that it completed."""
        (self.folder / f"{job.name}.ipynb").unlink(missing_ok=True)
        files = self.folder / job.name
        files.mkdir(exist_ok=True)
        for path in files.iterdir():
            if path.name == KEPT:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def add(self, job: NotebookJob, result: NotebookResult) -> None:
        """Keep what became of a notebook; from now on it outlives this process."""
        # Each has its commit, as the batch may be continued by a later one.
        self._done[job.name] = result.model_copy(update={"commit": self._record["commit"]})
        self._write()
        if job.point:
            self._gather(job.entry)

    def _gather(self, entry: str) -> None:
        """Write ``<entry>.csv``: all rows that the runs of a grid have left, with their labels."""
        runs = [job for job in self.jobs if job.entry == entry]
        found = []
        for job in runs:
            if (file := self.folder / job.name / GRID).exists():
                own = read_table(file)
                found.append(own.assign(**{k: v for k, v in job.point if k not in own}))
        if found:
            table = pd.concat(found, ignore_index=True)
            first = [name for name, _ in runs[0].point]
            table = table[[*first, *table.columns.drop(first)]]
            table.to_csv(self.folder / f"{entry}.csv", index=False)

    def _write(self) -> None:
        notebooks = [result.model_dump() for result in self.notebooks]
        write(self.folder / RECORD, self._record | {"notebooks": notebooks})


def new(results: Path) -> Path:
    """Make the folder of a new run, named by the UTC time."""
    folder = results / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S.%fZ")
    folder.mkdir(parents=True)
    return folder


def unfinished(results: Path, experiment: Experiment) -> Path:
    """Return the newest run of the same notebooks at the same scale.

    A ValueError: there is none, or it is complete; a BlockingIOError: another process runs it.
    """
    names = {job.name for job in experiment.jobs}
    for folder in sorted((file.parent for file in results.glob(f"*/{RECORD}")), reverse=True):
        try:
            record = read_json(folder / RECORD, _Record, "a batch's record")
        except ValueError:  # a notebook's own record, or damaged
            continue
        asked = experiment.name, experiment.scale, names
        if (record.experiment, record.scale, {*record.parameters}) == asked:
            if names == {entry.name for entry in record.notebooks if not entry.error}:
                raise ValueError(f"the newest, {folder}, is complete")
            with locked(folder):
                return folder
    raise ValueError("no folder there has a whole record of it")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run's folder; one that another has is a BlockingIOError."""
    with (folder / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(f"another process is running {folder}") from error
        except OSError:
            pass  # a file system without locks
        yield


class _Record(BaseModel):
    experiment: str | None = None
    scale: str | None = None
    parameters: dict[str, dict[str, Any]] = {}
    notebooks: list[NotebookResult] = []
