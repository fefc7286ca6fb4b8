"""What does not go with what: every row of the table is refused, and docs/train.md shows it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pipekit as pk
from pipekit import ScheduleError, schedules
from pipekit.engine import combinations
from pipekit.engine.combinations import CONFLICTS, Conflict
from pipekit.schedules import seq1f1b
from tests.engine.examples import data, mlp, pipeline
from tests.engine.execution.moving_tables import fill_and_drain, to

CLUSTER = pk.clusters.pipedream_a(4)


def tied() -> nn.Sequential:
    model = mlp(6, 6, 6)
    model[1].weight = model[0].weight
    return model


USES: dict[str, dict[str, Any]] = {
    combinations.CLIP: {"clip_norm": 1.0},
    combinations.SCALE: {"loss_scale": 2.0},
    combinations.RECOMPUTE: {"recompute": "always"},
    combinations.MITIGATION: {"mitigation": "gap-aware"},
    combinations.FOR_STASHING: {"mitigation": "gap-aware"},
    combinations.FOR_NEWEST: {"mitigation": "pipemare:anneal=5"},
    combinations.BY_DELAY: {"mitigation": "gap-aware", "schedule": schedules.pipedream(2)},
    combinations.TIES: {"model": tied, "balance": [1, 1]},
    combinations.NO_SEED: {"seed": None},
    combinations.CLUSTER: {"cluster": CLUSTER},
    combinations.STASHING: {"schedule": schedules.pipedream(2)},
    combinations.NO_STASHING: {"schedule": schedules.pipedream(2, stashing=False)},
    combinations.APART: {"schedule": schedules.pipedream([2, 1])},
    combinations.SEVERAL: {"schedule": schedules.flush(2, 2)},
    combinations.PROCESSES: {"transport": "distributed"},
    combinations.FEWER: {"short_batches": "fewer"},
    combinations.PARTNER: {"schedule": fill_and_drain(2, 2, [0], to(1))},
    combinations.CHUNKS: {"schedule": seq1f1b(2, 2, chunks=2)},
    combinations.OUTPUTS: {"watch": pk.Watch(outputs=True)},
    combinations.CHECKPOINTS: {"checkpoints": "there"},
    combinations.STOP: {"on_batch": lambda done: True},
}
"""The arguments of Pipeline and train that use a feature."""
OF_TRAIN = {combinations.OUTPUTS, combinations.CHECKPOINTS, combinations.STOP}
"""Those of train: all others are refused when the pipeline is built."""
ELSEWHERE = {
    combinations.VALIDATE: "tests/emulation/test_emulate.py",
    combinations.TORCHRUN: "tests/engine/transports/distributed",
}
"""Features that need GPUs, torchrun or emulation, and their tests."""


def attempt(tmp_path: Path, trains: bool = True, **how: Any) -> None:
    calls = {n: how.pop(n) for n in ("checkpoints", "on_batch", "watch") if n in how}
    if "checkpoints" in calls:
        calls["checkpoints"] = tmp_path
    model: Callable[[], nn.Sequential] = how.pop("model", lambda: mlp(6, 6, 6))
    schedule = how.pop("schedule", None) or schedules.flush(
        *((1, 1) if how.get("seed", 0) is None else (2, 2))
    )
    pipe = pipeline(model(), schedule, **how)
    if trains:
        pipe.train([(x, torch.cat([y, y], 1)) for x, y in data(2)], **calls)


@pytest.mark.parametrize(
    "row", [row for row in CONFLICTS if not {row.one, row.other} & ELSEWHERE.keys()], ids=str
)
def test_every_pair_is_refused_with_its_reason_and_remedy(row: Conflict, tmp_path: Path) -> None:
    trains = bool({row.one, row.other} & OF_TRAIN)
    with pytest.raises((ValueError, ScheduleError, RuntimeError)) as caught:
        attempt(tmp_path, trains, **USES[row.one] | USES[row.other])
    assert str(row) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_docs_show_the_table(repository: Path) -> None:
    """With what to write here if a row has changed."""
    head = "| This | with this | is refused: | Instead |\n|---|---|---|---|\n"
    rows = "".join(f"| {' | '.join(row)} |\n" for row in CONFLICTS)
    assert head + rows in (repository / "docs" / "train.md").read_text()


def test_each_alone_is_allowed(tmp_path: Path) -> None:
    for name in (combinations.CLIP, combinations.STASHING):
        attempt(tmp_path, **USES[name])
