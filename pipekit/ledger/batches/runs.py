"""A batch's folder: its record after every notebook, and where an interrupted batch is continued.

The record ``provenance.json`` is replaced as a whole whenever a notebook ends, so that a batch may
be killed at any moment: the record then lists what was complete.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pipekit.host.provenance import provenance, write
from pipekit.ledger.batches import grid
from pipekit.ledger.batches.experiment import Experiment, NotebookJob
from pipekit.reading import read_json

RECORD = "provenance.json"
KEPT = "trainings"
"""The folder among a notebook's files that outlives an interruption: of its finished trainings."""


@dataclass(frozen=True)
class NotebookResult:
    """What became of one notebook: executed copy, its own files, wall seconds, its error."""

    name: str
    notebook: Path
    files: Path
    seconds: float
    error: str | None


class BatchRun:
    """The notebooks of an experiment that are complete in a folder, and those still to run.

    Complete are those that ended there without an error, if file and parameters are the same now.
    """

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self.folder = folder
        self.jobs = experiment.jobs
        self._entries = _complete(_read(folder), experiment)
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
        return tuple(job for job in self.jobs if job.name not in self._entries)

    @property
    def results(self) -> tuple[NotebookResult, ...]:
        """The results so far, in the experiment's order."""
        return tuple(
            NotebookResult(
                name=entry["name"],
                notebook=self.folder / entry["notebook"],
                files=self.folder / entry["files"],
                seconds=entry["seconds"],
                error=entry["error"],
            )
            for entry in self._ordered()
        )

    def prepare(self, job: NotebookJob) -> tuple[Path, Path]:
        """Return the places of a notebook's executed copy and of its files.

        Of an earlier attempt nothing is left but the trainings that it completed.
        """
        executed, files = self.folder / f"{job.name}.ipynb", self.folder / job.name
        executed.unlink(missing_ok=True)
        files.mkdir(exist_ok=True)
        for path in files.iterdir():
            if path.is_file():
                path.unlink()
            elif path.name != KEPT:
                shutil.rmtree(path)
        return executed, files

    def add(self, job: NotebookJob, result: NotebookResult) -> None:
        """Keep what became of a notebook; from now on it outlives this process."""
        self._entries[job.name] = asdict(result) | {
            "notebook": result.notebook.name,
            "files": result.files.name,
            "sha256": job.sha256,
            "commit": self._record["commit"],  # the batch may be continued by a later one
        }
        self._write()
        if job.point:
            runs = [(self.folder / j.name, j.point) for j in self.jobs if j.entry == job.entry]
            grid.gather(job.entry, self.folder, runs)

    def _ordered(self) -> list[dict[str, Any]]:
        return [self._entries[job.name] for job in self.jobs if job.name in self._entries]

    def _write(self) -> None:
        part = self.folder / f"{RECORD}.part"
        write(part, self._record | {"notebooks": self._ordered()})
        part.replace(self.folder / RECORD)


def new(results: Path) -> Path:
    """Make the folder of a new run, named by the UTC time."""
    folder = results / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S.%fZ")
    folder.mkdir(parents=True)
    return folder


def unfinished(results: Path, experiment: Experiment) -> tuple[Path | None, str]:
    """Find the newest run of the same notebooks at the same scale, if it can be continued.

    Returns:
        Its folder; None if there is no such run, every notebook ended without an error, or a
        process is still at it.  And in words, which of these.
    """
    names = {job.name for job in experiment.jobs}
    for folder in sorted((file.parent for file in results.glob(f"*/{RECORD}")), reverse=True):
        record = _read(folder)
        if (record.experiment, record.scale) != (experiment.name, experiment.scale):
            continue
        if record.parameters.keys() == names:
            if names == {entry.name for entry in record.notebooks if not entry.error}:
                return None, f"the newest, {folder}, is complete"
            try:
                with locked(folder):
                    return folder, ""
            except BlockingIOError as error:
                return None, str(error)
    return None, "there is none at all"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run's folder; the system unlocks it if this process is killed.

    Raises:
        BlockingIOError: another process has it.
    """
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(f"another process is running {folder}") from error
        except OSError:
            pass  # a file system without locks
        yield


class _Entry(BaseModel, extra="allow"):
    """What a record says of a notebook that has ended."""

    name: str
    notebook: str
    files: str
    seconds: float
    error: str | None
    sha256: str | None = None


class _Record(BaseModel):
    experiment: str | None = None
    scale: str | None = None
    parameters: dict[str, dict[str, Any]] = {}
    notebooks: list[_Entry] = []


def _read(folder: Path) -> _Record:
    try:
        return read_json(folder / RECORD, _Record, "a batch's record")
    except (FileNotFoundError, ValueError):  # new, or written while the disk was full
        return _Record()


def _complete(record: _Record, experiment: Experiment) -> dict[str, dict[str, Any]]:
    jobs = {job.name: job for job in experiment.jobs}
    return {
        entry.name: entry.model_dump()
        for entry in record.notebooks
        if not entry.error
        and entry.name in jobs
        and entry.sha256 == jobs[entry.name].sha256
        and record.parameters.get(entry.name) == jobs[entry.name].parameters
    }
