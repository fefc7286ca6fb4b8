"""Parts of a checkpoint that somebody made up: each is named in an error, or trains; nothing runs."""

import hashlib
import io
import random
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from experiments.attacks.interrupts import batches
from experiments.attacks.trainings import BALANCE, network
from pipekit import Checkpoints, Pipeline, schedules
from pipekit.engine.checkpoints import files


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
    seed: int,
    make: Callable[[files.PartFile, random.Random], bytes],
    part: files.PartFile,
) -> None:
    name = replaced(part, make(part, random.Random(seed)))
    home = part.path.parent
    said = resumed(home.parent)
    assert not said or name in said or home.name in said
    assert "weights_only" not in said, "it recommends to run what is in the file"
