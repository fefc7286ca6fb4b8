"""Whether tests find faults that are drawn into the package that they belong to.

    python -m experiments.house.faults --commit d2ef406 --output results/reference/faults

Each package gets the same number of faults (syntax_faults.py).  A copy of the commit has one of
them at a time, and the tests of its own folder are run: all tests of the package, but in the
engine, whose tests take minutes, those of the mirroring folder (for a file at the top, the test
files at the top).  A fault is found if a test fails, hangs or crashes.  Tests marked slow are left
out; so are tests that fail without any fault, which are printed.

Code moves between two commits that are compared, so the faults cannot be the same lines: seed,
kinds and numbers are the same, the places are drawn afresh at each commit.  What is compared is the
share found.  Of 60 faults it has a standard error of about 5 points.  What changes nothing that
anybody could see is never found, on either side.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pandas as pd
import typer

from experiments.benchmarks.harness import check_out, conclude, measured, show
from experiments.house.syntax_faults import Fault, draw

DEFAULT = "engine,schedules,simulation,ledger"
MIRRORED = {"engine"}
"""Packages in which the tests of the mirroring folder count, not those of the package."""


def own_tests(root: Path, fault: Fault) -> tuple[str, ...]:
    """Return the folder, or the files, whose tests are to find a fault."""
    folder = root / "tests" / fault.package
    if fault.package in MIRRORED:
        for part in Path(fault.file).parts[2:-1]:
            if not (folder / part).is_dir():
                break
            folder /= part
        if folder == root / "tests" / fault.package:
            return tuple(sorted(str(file.relative_to(root)) for file in folder.glob("test_*.py")))
    return (str(folder.relative_to(root)),)


class Tried(NamedTuple):
    """The outcome of tests."""

    found: str  # how a fault shows itself: "failed", "hung", "crashed", or "" where all pass
    tests: list[str]  # that fail
    seconds: float


def run_tests(root: Path, tests: tuple[str, ...], limit: float, *options: str) -> Tried:
    """Run tests of a copy, and end whatever they leave behind."""
    environment = os.environ | {"PYTHONPATH": str(root)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # workers would compile everything again
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    start = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            [*command, "--tb=no", f"--timeout={limit / 6:.0f}", *options, *tests],
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            return Tried("hung", [], time.monotonic() - start)
        finally:
            end_all(root)
            process.wait()
        output.seek(0)
        said = output.read()
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
    if status > 2:  # wrong usage, or no tests
        raise RuntimeError(f"pytest could not run {tests}:\n{said}")
    found = "crashed" if status < 0 else "failed" if status else ""
    return Tried(found, failed, time.monotonic() - start)


def end_all(root: Path) -> None:
    """End each process that the tests of a copy started: its path is in their environment."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if f"PYTHONPATH={root}\0".encode() in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


def tried(root: Path, faults: list[Fault], limit: float) -> Iterator[dict[str, Any]]:
    """Put one fault after another into a copy, and yield what its tests make of it."""
    left_out: dict[tuple[str, ...], list[str]] = {}
    for number, fault in enumerate(faults):
        tests = own_tests(root, fault)
        if tests not in left_out:  # without a fault
            plain = run_tests(root, tests, 4 * limit)
            left_out[tests] = [f"--deselect={test}" for test in plain.tests]
            print(f"no fault in {tests}: {plain.seconds:.0f} s, fail: {plain.tests}", flush=True)
        path = root / fault.file
        source = path.read_bytes()
        path.write_bytes(fault.put_into(source))
        result = run_tests(root, tests, limit, "-x", *left_out[tests])
        path.write_bytes(source)
        where = {name: getattr(fault, name) for name in ("package", "file", "line", "kind", "what")}
        row = {"fault": number, **where, "found": result.found}
        row |= {"by": "".join(result.tests[:1])[:120], "seconds": result.seconds}
        print(*row.values(), sep=" | ", flush=True)
        yield row


def main(
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 31,
    count: Annotated[int, typer.Option(min=1, help="Of faults, an equal share a package.")] = 60,
    packages: Annotated[str, typer.Option(help="Folders of pipekit, by commas.")] = DEFAULT,
    commit: Annotated[str, typer.Option(help="That gets the faults.")] = "HEAD",
    limit: Annotated[float, typer.Option(help="Of a fault's tests, in s.")] = 180,
    output: Annotated[Path | None, typer.Option(help="Folder for faults.csv and .json.")] = None,
) -> None:
    """Draw faults, and count those that are found."""
    commit = subprocess.check_output(["git", "rev-parse", commit], text=True).strip()
    parameters = {"judged": commit, "packages": packages, "count": count, "limit_s": limit}
    record, names = measured(seed, parameters=parameters), packages.split(",")
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        root = check_out(commit, Path(folder))
        faults = [fault for name in names for fault in draw(root, name, count // len(names), seed)]
        rows = pd.DataFrame(tried(root, faults, limit))
    print("Faults that the tests of their own folder find (measured)")
    caught = rows.assign(found=rows["found"] != "")
    for by in ("package", "kind"):
        groups = caught.groupby(by, sort=False)
        found = {"faults": ("found", "size"), "found": ("found", "sum"), "share": ("found", "mean")}
        show(groups.agg(**found, seconds=("seconds", "mean")).reset_index(), 3)
    conclude("faults", rows, record, output)


if __name__ == "__main__":
    typer.run(main)
