import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
import yaml
from nbformat.sign import NotebookNotary
from tqdm.std import tqdm

from pipekit.ledger.batches.batch import run
from pipekit.ledger.batches.experiment import NotebookJob
from pipekit.ledger.batches.runs import NotebookResult

Notebook = Callable[..., Path]
Call = Callable[[Path], None]

WORKS = """
import json, os, pathlib, sys
seen = dict(scale=scale, steps=steps, python=sys.executable, cwd=os.getcwd())
pathlib.Path(results_dir, "seen.json").write_text(json.dumps(seen))
"""


def experiment(folder: Path, *names: str, alone: tuple[str, ...] = (), **keys: object) -> Path:
    entries = [
        {"notebook": f"{name}.ipynb", "full": {"steps": 9}, "alone": name in alone}
        for name in names
    ]
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump({"name": "trial", "notebooks": entries, **keys}))
    return file


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, Call]:
    """Return a dictionary of what stands for each notebook, by name, and gets its files' folder."""
    calls: dict[str, Call] = {}

    def execute(job: NotebookJob, scale: str, folder: Path) -> NotebookResult:
        error = None
        try:
            if job.name in calls:
                calls[job.name](folder / job.name)
        except Exception as failure:
            error = repr(failure)
        (folder / f"{job.name}.ipynb").touch()
        return NotebookResult(name=job.name, seconds=1, error=error, sha256=job.sha256)

    monkeypatch.setattr("pipekit.ledger.batches.batch.execute", execute)
    return calls


@pytest.mark.slow
def test_one_failure_does_not_stop_the_others_and_all_is_recorded(
    tmp_path: Path,
    notebook: Notebook,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A strange kernel of the user is not used.
    (strange := tmp_path / "kernels" / "python3" / "kernel.json").parent.mkdir(parents=True)
    strange.write_text('{"argv": ["false"], "display_name": "elsewhere", "language": "python"}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.delenv("OMP_WAIT_POLICY")
    # What stands at the project's root can be imported.
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "own_study.py").write_text("ANSWER = 42\n")
    (own := tmp_path / "notebooks").mkdir()
    waits = "import os\nwaits = os.environ.get('OMP_WAIT_POLICY')"
    notebook("notebooks/bad", waits, "1 / (waits is not None)", "never = 'reached'")
    notebook("notebooks/good", WORKS, waits, "import own_study\nprint(own_study.ANSWER, waits)")
    file = experiment(own, "bad", "good", alone=("bad",))
    batch = run(file, scale="full", results=tmp_path / "runs")
    bad, good = batch.notebooks
    assert batch.failed == (bad,)
    assert bad.error == "In [4], line 1: ZeroDivisionError: division by zero"
    assert good.error is None
    assert batch.folder.parent == tmp_path / "runs"

    # The good notebook got its parameters, this Python and the folder it lies in.
    assert json.loads((batch.folder / "good" / "seen.json").read_text()) == {
        "scale": "full",
        "steps": 9,
        "python": sys.executable,
        "cwd": str(own),
    }

    # Executed copies, of the failed notebook too; both signed.
    for result in batch.notebooks:
        copy = nbformat.read(batch.folder / f"{result.name}.ipynb", as_version=4)
        assert NotebookNotary().check_signature(copy)
    assert "ZeroDivisionError" in (batch.folder / "bad.ipynb").read_text()
    assert "parameters of this run" in (batch.folder / "good.html").read_text()
    # Operators' threads spin only in a notebook that runs alone.
    assert (batch.folder / "good.log").read_text() == "42 passive\n"

    record = json.loads((batch.folder / "provenance.json").read_text())
    assert (record["label"], record["experiment"], record["scale"]) == ("measured", "trial", "full")
    assert record["parameters"] == {"bad": {"steps": 9}, "good": {"steps": 9}}
    assert [n["error"] for n in record["notebooks"]] == [bad.error, None]
    assert (good.disk_mb or 0) > 0.2, "its page alone"
    assert str(tmp_path) not in json.dumps(record), "a record must not depend on where it was made"

    printed, progress = capfd.readouterr()
    *_, failure, success, where = printed.splitlines()
    assert re.fullmatch(
        r"bad: failed in \d+ s \(measured\): In \[4\], line 1: ZeroDivisionError: division by zero",
        failure,
    )
    assert re.fullmatch(r"good: done in \d+ s \(measured\)", success)
    assert where == f"results: {batch.folder}"
    assert "100%" in progress


def test_a_grid_gives_one_table_and_goes_on_after_a_failure(
    tmp_path: Path, notebook: Notebook, called: dict[str, Call]
) -> None:
    def squares(number: int) -> Call:
        def write(files: Path) -> None:
            (files / "grid.csv").write_text(f"square\n{number**2}\n")

        return write

    notebook("squares")
    file = tmp_path / "experiment.yaml"
    entry = {"notebook": "squares.ipynb", "grid": {"steps": {"two": 2, "three": 3}}}
    file.write_text(yaml.safe_dump({"name": "trial", "notebooks": [entry]}, sort_keys=False))
    called |= {"squares-two": squares(2), "squares-three": Path.unlink}
    first = run(file, jobs=2, results=tmp_path / "runs", quiet=True)
    assert [n.name for n in first.notebooks] == ["squares-two", "squares-three"]
    assert first.failed == first.notebooks[1:]
    assert (first.folder / "squares.csv").read_text() == "steps,square\ntwo,4\n"
    called["squares-three"] = squares(3)
    second = run(file, resume=True, results=tmp_path / "runs", quiet=True)
    assert not second.failed
    assert (second.folder / "squares.csv").read_text() == "steps,square\ntwo,4\nthree,9\n"


@pytest.mark.slow
def test_a_cell_that_never_ends_is_stopped(
    tmp_path: Path, notebook: Notebook, capfd: pytest.CaptureFixture[str]
) -> None:
    notebook("endless", "import time\nwhile True: time.sleep(0.1)")
    file = experiment(tmp_path, "endless", cell_timeout_s=1)
    (result,) = run(file, results=tmp_path / "runs", quiet=True).notebooks
    assert result.error is not None
    assert result.error.startswith("CellTimeoutError")
    assert capfd.readouterr().out == ""


def test_two_at_a_time_but_those_that_measure_times_alone(
    tmp_path: Path, notebook: Notebook, called: dict[str, Call], capfd: pytest.CaptureFixture[str]
) -> None:
    both, together = threading.Barrier(2, timeout=60), threading.Semaphore(2)

    def meets(files: Path) -> None:
        with together:
            both.wait()

    def sees_nobody(files: Path) -> None:
        assert all(together.acquire(blocking=False) for _ in range(2))
        time.sleep(0.2)
        together.release(2)

    called |= {"t1": sees_nobody, "t2": sees_nobody, "a": meets, "b": meets}
    for name in called:
        notebook(name)
    file = experiment(tmp_path, "t1", "a", "t2", "b", alone=("t1", "t2"))
    result = run(file, jobs=2, results=tmp_path / "runs")
    assert [n.name for n in result.notebooks] == ["t1", "a", "t2", "b"]
    assert not result.failed
    progress = capfd.readouterr().err
    assert "a, b: " in progress
    assert "t1, t2" not in progress
    assert "| 4/4 " in progress


COUNTS = """
import pathlib, time
from pipekit.progress import progress_bar
deadline = time.monotonic() + 60
for step in progress_bar(range(3), desc="training", mininterval=0):
    while step == 2 and not pathlib.Path(results_dir, "shown").exists():
        assert time.monotonic() < deadline, "the runner never showed where this cell is"
        time.sleep(0.05)
"""


@pytest.mark.slow
def test_a_long_cell_says_in_the_runners_bar_how_far_it_is_and_not_in_the_notebook(
    tmp_path: Path, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook("long", COUNTS)
    runs = tmp_path / "runs"

    class Bar(tqdm):  # type: ignore[type-arg]
        def set_description(self, desc: str | None = None, refresh: bool | None = True) -> None:
            if desc == "long (training 2/3 it)":
                (next(runs.iterdir()) / "long" / "shown").touch()

    monkeypatch.setattr("pipekit.ledger.batches.batch.tqdm", Bar)
    result = run(experiment(tmp_path, "long"), results=runs)
    assert not result.failed
    copy = nbformat.read(result.folder / "long.ipynb", as_version=4)
    assert [cell.outputs for cell in copy.cells if "outputs" in cell] == [[], [], []]
    assert not list(result.folder.glob("*.progress"))


def test_a_failed_or_changed_notebook_is_run_again_and_no_other(
    tmp_path: Path, notebook: Notebook, called: dict[str, Call], capfd: pytest.CaptureFixture[str]
) -> None:
    def trains(files: Path) -> None:
        (files / "trainings").mkdir()
        for path in ("trainings/done.json", "half_a_claim.jsonl"):
            (files / path).touch()
        raise OSError

    def trained(files: Path) -> None:
        assert [path.name for path in files.rglob("*")] == ["trainings", "done.json"]

    def is_new(files: Path) -> None:
        (files / "was_here").touch(exist_ok=False)

    for name in ("kept", "bad", "changed"):
        notebook(name)
    file = experiment(tmp_path, "kept", "bad", "changed")
    runs = tmp_path / "runs"
    called |= {"kept": is_new, "bad": trains, "changed": is_new}
    first = run(file, results=runs, quiet=True)
    (executed := first.folder / "changed.ipynb").write_text("earlier")

    notebook("changed", "'otherwise'")
    called |= {"kept": Path.unlink, "bad": trained}  # the first would fail: it is a folder
    second = run(file, results=runs, resume=True, quiet=True)
    assert second.folder == first.folder
    assert [n.name for n in second.notebooks] == ["kept", "bad", "changed"]
    assert not second.failed
    assert second.notebooks[0] == first.notebooks[0]
    assert executed.read_text() == ""
    with pytest.raises(ValueError, match=r"no unfinished run of trial \(quick\).*is complete"):
        run(file, results=runs, resume=True)
    assert capfd.readouterr().out == ""


ENDLESS = """
import fcntl, pathlib, time
held = pathlib.Path(results_dir, "held").open("w")
fcntl.flock(held, fcntl.LOCK_EX)
pathlib.Path(results_dir, "up").touch()
while True: time.sleep(0.1)
"""
BATCH = """
import signal
from pathlib import Path
from pipekit.ledger.batches.batch import run
from pipekit.ledger.batches.experiment import NotebookJob
from pipekit.ledger.batches.runs import NotebookResult
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background job
run(Path({!r}), results=Path({!r}))
"""


@pytest.mark.long
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_batch_leaves_no_kernel_and_is_continued(
    tmp_path: Path, notebook: Notebook, end: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    notebook("endless", ENDLESS)
    names = ["endless"]
    if end == signal.SIGKILL:  # after which nothing could be tidied up: it is continued
        notebook("quick", "1 + 1")
        names = ["quick", "endless"]
    file, runs = experiment(tmp_path, *names), tmp_path / "runs"
    (temporary := tmp_path / "temporary").mkdir()
    batch = subprocess.Popen(
        [sys.executable, "-c", BATCH.format(str(file), str(runs))],
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    deadline = time.monotonic() + 300
    while not list(runs.glob("*/endless/up")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(ValueError, match=r"no unfinished run.*: another process is running"):
        run(file, results=runs, resume=True)
    batch.send_signal(end)
    batch.wait(300)
    (held,) = runs.glob("*/endless/held")
    with held.open("w") as kernels:
        while True:
            assert time.monotonic() < deadline, "a kernel was left behind"
            try:
                fcntl.flock(kernels, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
    (folder,) = runs.iterdir()
    if end == signal.SIGINT:
        assert capfd.readouterr().out == f"interrupted: --resume continues {folder}\n"
    if end != signal.SIGKILL:
        assert list(temporary.glob("pipekit-kernel-*")) == []
        return

    notebook("endless", "'no more'")
    result = run(file, results=runs, resume=True)
    assert result.folder == folder
    assert not result.failed
    record = json.loads((folder / "provenance.json").read_text())
    assert [n["name"] for n in record["notebooks"]] == ["quick", "endless"]


def test_a_new_run_has_the_named_notebooks_and_says_how_to_continue_the_unfinished_one(
    tmp_path: Path, notebook: Notebook, called: dict[str, Call], capfd: pytest.CaptureFixture[str]
) -> None:
    called["bad"] = Path.unlink  # it fails: this is a folder
    notebook("bad")
    notebook("other")
    file, runs = experiment(tmp_path, "bad", "other"), tmp_path / "runs"
    first = run(file, results=runs, only=["bad"], quiet=True)
    second = run(file, results=runs, only=["bad"])
    assert [n.name for n in second.notebooks] == ["bad"]
    assert not (second.folder / "other").exists()
    assert second.folder != first.folder
    line = capfd.readouterr().out.splitlines()[0]
    assert line == f"this is a new run; --resume continues the unfinished one, {first.folder}"


@pytest.mark.parametrize("on", ["slurm:here", "dask:"])
def test_a_place_that_nobody_knows_is_refused(tmp_path: Path, notebook: Notebook, on: str) -> None:
    notebook("good", WORKS)
    with pytest.raises(ValueError, match="write dask: and the scheduler's address"):
        run(experiment(tmp_path, "good"), on=on, results=tmp_path / "runs", quiet=True)


@pytest.mark.long
def test_a_dask_cluster_runs_the_same_batch(
    tmp_path: Path, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed", reason="pip install 'pipekit[dask]'")
    notebook("bad", "1 / 0")
    notebook("good", WORKS)
    file = experiment(tmp_path, "bad", "good")
    monkeypatch.chdir(tmp_path)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, worker_dashboard_address=None
    ) as cluster:
        on = f"dask:{cluster.scheduler_address}"
        batch = run(Path(file.name), scale="full", on=on, jobs=2, results=Path("runs"), quiet=True)
    bad, good = batch.notebooks
    assert bad.error == "In [3], line 1: ZeroDivisionError: division by zero"
    assert good.error is None
    assert json.loads((batch.folder / "good" / "seen.json").read_text())["cwd"] == str(tmp_path)
