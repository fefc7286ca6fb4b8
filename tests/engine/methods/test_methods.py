"""Every method that flushes trains as sequential training does, to the bit, over both transports.

The judge is the oracle, which knows no schedules: it is told which worker adds up which microbatches'
gradients, and that is all.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipekit import Checkpoints, LossScale, Pipeline, Run, Schedule, oracle
from pipekit.schedules import replicate
from tests.engine.examples import (
    Midst,
    data,
    different,
    dropping,
    nesterov,
    pipeline,
    trained,
    unlike,
    values,
)
from tests.engine.parametrized import first_over_processes
from tests.engine.updates.test_ties import tied
from tests.schedules.formats.torch_tables import torchs
from tests.schedules.methods.test_all_methods import METHODS

BATCHES = 3
TORCHS = [
    "1f1b",
    "dualpipe_v",
    "gpipe",
    "interleaved",
    "interleaved_zero_bubble",
    "looped_bfs",
    "zb_v",
]
FOLDED = {"dualpipe": 1, "chimera": 2}
"""Half of the workers, where 2 would be many."""


def made(name: str) -> Schedule:
    """A method of ours on two workers (Chimera on four), or a table of torch's."""
    if name.startswith("torch's "):
        text, _, _ = torchs(name.removeprefix("torch's "), 2, 3)
        return Schedule.from_torch_csv(text, name).repeat()
    return METHODS[name](FOLDED.get(name, 2), 3)


def shares(schedule: Schedule) -> list[list[list[int]]]:
    """For each stage and worker, the microbatches of the first batch in the order of their sums."""
    return [
        [
            [
                task.microbatch
                for task in schedule.take(1).workers[worker]
                if task.op.adds_gradient and task.stage == stage
            ]
            for worker in workers
        ]
        for stage, workers in enumerate(schedule.stage_workers)
    ]


def both(
    schedule: Schedule,
    model: nn.Sequential,
    balance: list[int],
    transport: str,
    scales: Sequence[float] = (1.0,) * BATCHES,
    **options: Any,
) -> Run:
    """Train by the schedule and by the equation, and compare; return the run.

    ``scales`` are of each batch's targets, and so, about, of its gradient.
    """
    microbatches = len(schedule.batch(0))
    batches = data(BATCHES, rows=2 * microbatches)
    batches = [(x, y * scale) for (x, y), scale in zip(batches, scales, strict=True)]
    how: dict[str, Any] = {"optimizer": nesterov, "loss": nn.MSELoss(), "seed": 0} | options
    own = {name: how.pop(name) for name in ("recompute", "validate") if name in how}
    pipe = Pipeline(model, schedule, balance=balance, transport=transport, **values(**own, **how))
    run = pipe.train(batches)
    truth = oracle.train(
        model,
        batches,
        method="sequential",
        balance=balance,
        microbatches=microbatches,
        replicas=[len(workers) for workers in schedule.stage_workers],
        shares=shares(schedule),
        **how,
    )
    assert run.losses == truth.losses
    weights = pipe.state_dict()
    assert different({n: weights[n] for n in truth.weights[-1]}, truth.weights[-1]) == []
    pipe.close()
    return run


NAMES = [*sorted(METHODS), *(f"torch's {name}" for name in TORCHS)]


@first_over_processes("name", ["zb_v", *(name for name in NAMES if name != "zb_v")])
def test_the_weights_are_sequential_trainings(name: str, transport: str) -> None:
    schedule = made(name)
    both(schedule, dropping(schedule.stages), [1] * schedule.stages, transport)


@pytest.mark.parametrize("name", ["interleaved", "zb_h2", "chimera", "dualpipe_v"])
def test_recomputed_and_clipped(name: str) -> None:
    schedule = made(name)
    layers, each = dropping(schedule.stages), [1] * schedule.stages
    both(schedule, layers, each, "threads", recompute="except_last", clip_norm=0.1)


@pytest.mark.parametrize("name", ["zb_h2", "zb_v", "v_min", "chimera", "dualpipe", "dualpipe_v"])
def test_stages_that_share_weights(name: str) -> None:
    schedule = METHODS[name](1, 3)
    if schedule.stages < 2:
        schedule = METHODS[name](2, 3)
    model = tied(("0.weight", "4.weight"))
    both(schedule, model, [3, len(model) - 3], "threads")


SEVERAL = ["zb_h2", "v_half", "hanayo, 1 wave", "chimera", "dualpipe_v"]


@pytest.mark.parametrize("name", SEVERAL)
def test_mixed_precision_with_a_scale_that_changes(name: str) -> None:
    """The first scale overflows, so that the first update is skipped on all stages."""
    schedule = made(name)
    run = both(
        schedule,
        dropping(schedule.stages),
        [1] * schedule.stages,
        "threads",
        autocast=torch.float16,
        loss_scale=LossScale(2.0**24, backoff=2.0**-16, interval=1),
    )
    assert len(run.skipped_updates) == 1


@pytest.mark.parametrize("name", SEVERAL)
def test_it_is_taken_up_again_between_its_batches(name: str, tmp_path: Path) -> None:
    schedule = made(name)
    batches = data(BATCHES, rows=2 * len(schedule.batch(0)))

    def pipe() -> Pipeline:
        return pipeline(dropping(schedule.stages), schedule, [1] * schedule.stages)

    def interrupt() -> None:
        """Once a part of a checkpoint has been written."""
        while not [*tmp_path.glob("*/stage*.worker*.pt")]:
            pass
        raise InterruptedError

    with pytest.raises(InterruptedError):
        pipe().train(Midst(batches, 2, interrupt), checkpoints=Checkpoints(tmp_path, every=1))
    again = pipe()
    again.resume(tmp_path)
    assert unlike(trained(again, batches), trained(pipe(), batches)) == []


@pytest.mark.parametrize("name", SEVERAL)
def test_parallel_pipelines_of_it(name: str) -> None:
    schedule = replicate(METHODS[name](1, 2), 2)
    both(schedule, dropping(schedule.stages), [1] * schedule.stages, "threads")
