"""Execute a notebook by papermill, in a kernel of its own; several threads may do so at a time."""

import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

import nbformat
import papermill
import psutil
from ipykernel.kernelspec import get_kernel_dict
from jinja2 import FileSystemLoader
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager, KernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from nbformat.sign import NotebookNotary
from papermill.exceptions import strip_color
from traitlets import default

from pipekit.ledger.batches.experiment import NotebookJob
from pipekit.ledger.batches.runs import NotebookResult
from pipekit.progress import RELAY

SOCKET_PATH_BYTES = 103  # of a Unix socket: the least that any system allows
_LOOK_S = 3.0  # between two looks at a notebook's memory, of which each costs 10 ms a process


def execute(job: NotebookJob, scale: str, folder: Path) -> NotebookResult:
    """Execute a notebook in a run's folder; whatever it does ends in the result.

    Beside the executed copy, that of a failed notebook too, lies its page for browsers. What it
    prints goes to ``<name>.log`` as well, and how far it is to :func:`told`.
    """

    def started_cell(cell: nbformat.NotebookNode, cell_index: int) -> None:
        # From 0; the one that papermill puts in makes the last as many as the notebook has.
        told(executed).write_text(f"cell {cell_index}/{job.cells}", encoding="utf-8")

    given, executed, files = job.notebook, folder / f"{job.name}.ipynb", folder / job.name
    started = time.perf_counter()
    error, kernels = None, _kernels_of(job, told(executed))
    try:
        with (
            executed.with_suffix(".log").open("w", encoding="utf-8") as log,
            taken_memory(lambda: _processes(kernels)) as seen,
        ):
            papermill.execute_notebook(
                given,
                executed,
                {**job.parameters, "scale": scale, "results_dir": str(files)},
                kernel_name="python3",
                language="python",
                kernel_manager_class=kernels,
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
    seconds = round(time.perf_counter() - started, 2)
    told(executed).unlink(missing_ok=True)
    if executed.exists():
        notebook = nbformat.read(executed, as_version=4)
        NotebookNotary().sign(notebook)  # Jupyter shows widgets and scripts of signed ones only
        try:
            write_page(executed)
        except Exception as failure:  # Jupyter's own templates may lie in another environment
            with executed.with_suffix(".log").open("a", encoding="utf-8") as log:
                log.write(f"there is no page of it for browsers: {_in_one_line(failure)}\n")
    return NotebookResult(
        name=job.name,
        seconds=seconds,
        memory_gb=round(max(seen) / 1e9, 2) if any(seen) else None,
        disk_mb=round(_bytes_left(folder, job.name) / 1e6, 2),
        error=error,
        sha256=job.sha256,
    )


def told(executed: Path) -> Path:
    """Return the file in which a notebook and bars of its cells say how far they are."""
    return executed.with_suffix(".progress")


def write_page(executed: Path) -> Path:
    """Write ``<executed>.html``, its hidden code folded, its figures as SVGs; return its path."""
    from nbconvert import HTMLExporter  # here, since it takes a second that no report needs

    exporter = HTMLExporter(
        template_file="executed.html.j2",
        extra_loaders=[FileSystemLoader(Path(__file__).parent)],
        exclude_input_prompt=True,
        exclude_output_prompt=True,
    )
    text, _ = exporter.from_filename(str(executed))
    page = executed.with_suffix(".html")
    page.write_text(text, encoding="utf-8")
    return page


def kill_kernels() -> None:
    """End the kernels that run for this process, and all that they started, at once."""
    for group in _processes():
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _processes(kind: type[KernelManager] = KernelManager) -> list[int]:
    """Return the processes of this process's kernels of a kind; each leads a group of its own."""
    with _kernels_lock:
        provisioners = [kernel.provisioner for kernel in _kernels if isinstance(kernel, kind)]
    return [
        each.pgid
        for each in provisioners
        if isinstance(each, LocalProvisioner) and each.process and each.pgid
    ]


@contextmanager
def taken_memory(roots: Callable[[], Iterable[int]]) -> Iterator[list[int]]:
    """Yield the bytes that the ``roots`` and all processes below them take together, every 3 s.

    A page that several of them share counts once, where the system (Linux) tells.
    """
    seen: list[int] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            seen.append(sum(map(_with_children, roots())))

    watch = threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield seen
    finally:
        ended.set()
        watch.join()


def _with_children(pid: int) -> int:
    total = 0
    with suppress(psutil.Error):  # it has ended
        root = psutil.Process(pid)
        for each in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                known = each.memory_full_info()
                total += getattr(known, "pss", known.uss)
    return total


def _bytes_left(folder: Path, name: str) -> int:
    """Return how many bytes a notebook's copy, page, log and files take in a run's folder."""
    files = [*folder.glob(f"{name}.*"), *(folder / name).rglob("*")]
    return sum(file.stat().st_size for file in files if file.is_file())


def _in_one_line(failure: Exception) -> str:
    """Return what failed, and in which line of which cell, if the traceback tells."""
    if not isinstance(failure, papermill.PapermillExecutionError):
        return f"{type(failure).__name__}: {' '.join(str(failure).split())}"
    frames = re.findall(r"Cell In\s?\[\d+\], line (\d+)", strip_color("\n".join(failure.traceback)))
    line = f", line {frames[0]}" if frames else ""
    return f"In [{failure.exec_count}]{line}: {failure.ename}: {' '.join(failure.evalue.split())}"


class ThisInterpreter(KernelManager):
    """Starts a kernel in this very Python, and speaks to it through Unix sockets.

    A kernel called "python3" may be another environment's, from the user's Jupyter settings, and
    another kernel may take a TCP port between its choice and its opening.
    """

    environment: Mapping[str, str] = {}  # variables of the kernel's process, beside this one's

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        with _kernels_lock:
            _kernels.add(self)

    @default("connection_file")
    def _connection_file_default(self) -> str:
        self._folder = tempfile.TemporaryDirectory(prefix="pipekit-kernel-")
        return str(Path(self._folder.name, "kernel.json"))

    @default("transport")
    def _transport_default(self) -> str:
        longest = self.connection_file.removesuffix(".json") + "-ipc-99"
        return "ipc" if len(longest.encode()) <= SOCKET_PATH_BYTES else "tcp"

    @default("transport_encryption")
    def _transport_encryption_default(self) -> str:
        return "auto"  # newer kernels warn on the terminal when they are spoken to in the clear

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(**get_kernel_dict(), env=dict(self.environment))


def _kernels_of(job: NotebookJob, told: Path) -> type[ThisInterpreter]:
    """Return a manager, which nbclient wants as a class, whose kernel's bars tell a file.

    The kernel imports what stands at the root of the notebook's project, say ``experiments``.
    """
    variables = {RELAY: str(told)}
    if not job.alone:
        # GNU OpenMP's threads spin while they wait, and take the cores of notebooks beside it.
        variables["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "passive")
    for folder in job.notebook.parents:
        if (folder / "pyproject.toml").exists():
            path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
            variables["PYTHONPATH"] = os.pathsep.join(path)
            break

    class Kernels(ThisInterpreter, AsyncKernelManager):
        environment = variables

    return Kernels


_kernels: WeakSet[KernelManager] = WeakSet()
_kernels_lock = threading.Lock()
