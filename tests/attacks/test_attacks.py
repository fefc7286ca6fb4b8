"""A few tries of each kind, as ``make attack`` makes them by the hundred, and what they leave."""

import ast
import hashlib
import io
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from experiments.attacks import interrupts, kills
from experiments.attacks import left as leaving
from experiments.attacks.interrupts import batches
from experiments.attacks.left import Snapshot, left
from experiments.attacks.trainings import BALANCE, network
from pipekit import Checkpoints, Pipeline, WorkerDied, schedules
from pipekit.engine.checkpoints import files
from pipekit.engine.transports.processes.shared_mailbox import SharedBuffer
from pipekit.ledger.batches.execution import ThisInterpreter


@pytest.mark.scripts
@pytest.mark.parametrize("way", ["processes, saved", "module"])
def test_interrupts(way: str) -> None:
    rows = list(interrupts.interrupt(way, 3, 1))
    assert [row["failure"] for row in rows] == [""] * 3


@pytest.mark.scripts
def test_an_interrupted_cell_leaves_nothing_in_its_kernel(tmp_path: Path) -> None:
    """The kernel's last traceback still holds the whole training."""
    manager: Any = ThisInterpreter(connection_file=str(tmp_path / "kernel.json"))
    (temporary := tmp_path / "t").mkdir()  # short: a socket's path has 107 characters at most
    manager.start_kernel(env={**os.environ, "TMPDIR": str(temporary)}, cwd=os.getcwd())
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=300)
        make = "from experiments.attacks.interrupts import Trainings; t = Trainings('processes')"
        for code in (make, "row = t.interrupted(0.5, again=True)"):
            assert client.execute_interactive(code, timeout=300)["content"]["status"] == "ok"
        answer = client.execute_interactive("", user_expressions={"row": "row"}, timeout=300)
        row = ast.literal_eval(answer["content"]["user_expressions"]["row"]["data"]["text/plain"])
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert row["failure"] == ""
    assert row["outcome"] in ("interrupted", "ended")


@pytest.mark.scripts
def test_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other tests lay files in theirs
    rows = list(kills.attack(2, 1))
    assert [(row["failure"], row["equal"]) for row in rows] == [("", True)] * 2
    assert {"trial", "method", "killed"} <= rows[0].keys(), "README counts them"


@pytest.mark.scripts
def test_the_outcomes_are_counted_and_kept(repository: Path, tmp_path: Path) -> None:
    line = f"{sys.executable} -m experiments.attacks interrupts --tries 2 --seed 7".split()
    done = subprocess.run(
        [*line, "--output", str(tmp_path)],
        cwd=repository,
        env=os.environ | {"PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "2 interrupts (measured); 0 faults" in done.stdout
    counts = pd.read_csv(tmp_path / "interrupts.csv")
    assert list(counts.columns) == ["way", "moment", "outcome", "failure"]
    assert len(counts) == 2
    record = json.loads((tmp_path / "interrupts.json").read_text(encoding="utf-8"))
    assert record["parameters"] == {"seeds": [7]}
    assert record["label"] == "measured"


def test_a_training_with_a_hole_in_it_is_a_fault() -> None:
    """An error without its word, or without the remedy, is one."""
    assert "no word of how to resume" in kills.wrong("SIGKILL", WorkerDied("(SIGKILL, killed"))
    assert kills.wrong("SIGKILL", BrokenPipeError(32, "Broken pipe")).startswith("BrokenPipeError")
    told = WorkerDied("(SIGTERM)")
    told.add_note("call resume('x')")
    assert kills.wrong("SIGTERM", told) == ""


@contextmanager
def thread(_: Path) -> Iterator[None]:
    over = threading.Event()
    started = threading.Thread(target=over.wait, name="pipekit worker 0")
    started.start()
    yield
    over.set()
    started.join()


@contextmanager
def process(_: Path) -> Iterator[None]:
    with subprocess.Popen(["sleep", "100"]) as child:
        yield
        child.kill()


@pytest.mark.parametrize(
    ("leave", "says"),
    [
        (thread, "thread pipekit worker 0"),
        (process, "process "),
        (lambda _: socket.socket(), "1 open socket"),
        (lambda _: closing(SharedBuffer()), "memfd:pipekit"),
        (lambda folder: TemporaryDirectory(dir=folder, prefix="pipekit-"), "temporary pipekit-"),
        (lambda _: torch.no_grad(), "settings"),
    ],
)
def test_it_is_seen(
    leave: Callable[[Path], AbstractContextManager[object]],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = Snapshot.now(tmp_path)
    with leave(tmp_path), monkeypatch.context() as impatient:
        impatient.setattr(leaving, "PATIENCE_S", 0.05)
        assert any(says in thing for thing in left(before, tmp_path))
    assert left(before, tmp_path) == []


def test_a_process_that_was_to_end_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "PATIENCE_S", 0.05)
    before = Snapshot.now(tmp_path)
    assert left(before, tmp_path, [os.getpid()]) == [f"process {os.getpid()}"]
    assert not leaving.is_alive(2**22 + 1)


def pipeline() -> Pipeline:
    return Pipeline(
        network(),
        schedules.two_bw(2, 2),
        balance=BALANCE[2],
        optimizer=partial(torch.optim.Adam, lr=0.01),
        loss=nn.MSELoss(),
    )


@pytest.fixture
def part(tmp_path: Path) -> files.PartFile:
    """A part of the newest checkpoint in a folder."""
    pipeline().train(batches(), checkpoints=Checkpoints(tmp_path, every=1))
    home = files.newest(tmp_path)
    assert home
    return files.parts_of(home)[0]


def replaced(part: files.PartFile, made: bytes) -> str:
    """Put other bytes in the place of a part, under a name that has their sum."""
    part.path.unlink()
    digest = hashlib.sha256(made).hexdigest()[:16]
    path = part.path.with_name(f"stage{part.stage}.worker{part.worker}.of{part.parts}.{digest}.pt")
    path.write_bytes(made)
    return path.name


def saved(tree: Any) -> bytes:
    torch.save(tree, file := io.BytesIO())
    return file.getvalue()


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every holder of values within a tree, and the key or index of each value."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield tree, key
        if isinstance(value, dict | list):
            yield from places(value)


def odd_values(part: files.PartFile, draw: random.Random) -> bytes:
    tree = torch.load(part.path, weights_only=True)
    odd: list[Any] = [None, True, -1, 0, 2**40, 10**400, 1.5, float("nan"), "", "x" * 999, [], {}]
    odd += [torch.zeros(0), torch.zeros(2, 3, 4), torch.zeros(()), torch.full((12,), torch.nan)]
    odd += [torch.zeros(1).expand(10**9), torch.zeros(6, 12, dtype=torch.complex64)]
    odd += [torch.eye(6).to_sparse(), torch.zeros(12, dtype=torch.int64), [(0, 1.0)] * 3]
    holder, key = draw.choice(list(places(tree)))
    if isinstance(holder, dict) and draw.random() < 0.2:
        del holder[key]
    else:
        holder[key] = draw.choice(odd)
    return saved(tree)


def odd_bytes(part: files.PartFile, draw: random.Random) -> bytes:
    made = bytearray(part.path.read_bytes())
    for _ in range(draw.choice([1, 3, 30])):
        made[draw.randrange(len(made))] = draw.randrange(256)
    return bytes(made)


def resumed(folder: Path) -> str:
    """Train on from a folder; the error's words, or nothing."""
    again = pipeline()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            again.resume(folder)
            again.train(batches(), checkpoints=Checkpoints(folder, every=1))
        except Exception as error:
            return " ".join([str(error), *getattr(error, "__notes__", [])])
    return ""


@pytest.mark.parametrize("make", [odd_values, odd_bytes])
@pytest.mark.parametrize("seed", range(4))
def test_a_made_up_part_trains_or_is_named(
    seed: int, make: Callable[[files.PartFile, random.Random], bytes], part: files.PartFile
) -> None:
    name = replaced(part, make(part, random.Random(seed)))
    home = part.path.parent
    said = resumed(home.parent)
    assert not said or name in said or home.name in said
    assert "weights_only" not in said, "it recommends to run what is in the file"
