"""Execute a notebook by papermill, in a kernel of its own; several threads may do so at a time."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

import nbformat
import papermill
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from nbformat.sign import NotebookNotary
from papermill.exceptions import strip_color

from pipekit.ledger.batches import article
from pipekit.ledger.batches.experiment import NotebookJob
from pipekit.ledger.batches.kernels import ThisInterpreter
from pipekit.ledger.batches.runs import NotebookResult
from pipekit.progress import RELAY


def execute(
    job: NotebookJob, scale: str, executed: Path, files: Path, on_cell: Callable[[int], None]
) -> NotebookResult:
    """Execute a notebook; whatever it does ends in the result.

    Beside the executed copy lies its page for browsers (:mod:`.article`). What it prints goes to
    ``<executed>.log`` as well, line by line, for whoever watches; how far a long cell is goes to
    :func:`told`.

    Args:
        job: the notebook and its parameters.
        scale: "quick" or "full".
        executed: where the executed copy goes, that of a failed notebook too.
        files: the folder for the notebook's own files.
        on_cell: called with the index of every cell when it starts.
    """

    def started_cell(cell: nbformat.NotebookNode, cell_index: int) -> None:
        on_cell(cell_index)

    given = job.notebook.resolve()
    started = time.perf_counter()
    error = None
    try:
        with executed.with_suffix(".log").open("w", encoding="utf-8") as log:
            papermill.execute_notebook(
                given,
                executed,
                {**job.parameters, "scale": scale, "results_dir": str(files)},
                kernel_name="python3",
                language="python",
                kernel_manager_class=_kernels_of(given, told(executed)),
                progress_bar=False,
                # The kernel's working directory.  papermill's own `cwd` changes this whole
                # process's, and so that of the notebooks in the other threads.
                resources={"metadata": {"path": str(given.parent)}},
                execution_timeout=job.cell_timeout_s,
                on_cell_start=started_cell,
                stdout_file=log,
                stderr_file=log,
            )
    except Exception as failure:
        error = _in_one_line(failure)
    seconds = time.perf_counter() - started
    told(executed).unlink(missing_ok=True)
    if executed.exists():
        notebook = nbformat.read(executed, as_version=4)
        article.fold_what_was_injected(notebook)
        nbformat.write(notebook, executed)
        NotebookNotary().sign(notebook)  # Jupyter shows widgets and scripts of signed ones only
        try:
            article.write(executed)
        except Exception as failure:  # Jupyter's own templates may lie in another environment
            with executed.with_suffix(".log").open("a", encoding="utf-8") as log:
                log.write(f"there is no page of it for browsers: {_in_one_line(failure)}\n")
    return NotebookResult(job.name, executed, files, round(seconds, 2), error)


def told(executed: Path) -> Path:
    """Return the file in which bars of a notebook's cells say how far they are, while it runs."""
    return executed.with_suffix(".progress")


def kill_kernels() -> None:
    """End the kernels that run for this process, and all that they started, at once."""
    with _kernels_lock:
        kernels = list(_kernels)
    for kernel in kernels:
        provisioner = kernel.provisioner
        if isinstance(provisioner, LocalProvisioner) and provisioner.process and provisioner.pgid:
            with suppress(ProcessLookupError):
                os.killpg(provisioner.pgid, signal.SIGKILL)


def _in_one_line(failure: Exception) -> str:
    where = ""
    if isinstance(failure, papermill.PapermillExecutionError):
        kind, text = failure.ename, failure.evalue
        where = f"In [{failure.exec_count}]{_line(failure.traceback)}: "
    else:
        kind, text = type(failure).__name__, str(failure)
    return f"{where}{kind}: {' '.join(text.split())}"


def _line(traceback: Sequence[str]) -> str:
    """Return which line of the cell failed, or led to what failed, if the traceback tells."""
    frames = re.findall(r"Cell In\s?\[\d+\], line (\d+)", strip_color("\n".join(traceback)))
    return f", line {frames[0]}" if frames else ""


class _Kernels(ThisInterpreter, AsyncKernelManager):
    """Starts kernels, which are known while they run."""

    environment: Mapping[str, str] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        with _kernels_lock:
            _kernels.add(self)

    @property
    def kernel_spec(self) -> KernelSpec:
        spec = super().kernel_spec
        spec.env = dict(self.environment)
        return spec


def _kernels_of(notebook: Path, told: Path) -> type[_Kernels]:
    """Return a manager, which nbclient wants as a class, whose kernel's bars tell a file.

    The kernel imports what stands at the root of the notebook's project, say ``experiments``.
    """
    environment = {RELAY: str(told.resolve())}
    for folder in notebook.parents:
        if (folder / "pyproject.toml").exists():
            path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(path)
            break
    return type("Kernels", (_Kernels,), {"environment": environment})


_kernels: WeakSet[_Kernels] = WeakSet()
_kernels_lock = threading.Lock()
