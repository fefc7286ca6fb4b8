"""Weights that stages share, as many bytes as the engine sends of them; and skip connections."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from pipekit import (
    Pipeline,
    Plan,
    Profile,
    ScheduleError,
    emulate,
    models,
    profile,
    schedules,
    simulate,
)
from pipekit.clusters import V100, flat
from pipekit.losses.losses import token_loss
from pipekit.profiling import SkipProfile, TieProfile
from pipekit.traces import Trace

ROWS, SEQUENCE, WORDS = 4, 6, 12


def gpt() -> nn.Sequential:
    """The head has the token embeddings; what stands in the midst has weights of its own."""
    torch.manual_seed(0)
    return models.gpt(2, 12, 2, vocabulary=WORDS, sequence=SEQUENCE, tied=True)


def shared_by_three() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WORDS, WORDS) for _ in range(4)))
    model[1].weight = model[3].weight = model[0].weight
    model[3].bias = model[0].bias
    return model


def tokens() -> tuple[Tensor, Tensor]:
    ids = torch.randint(WORDS, (ROWS, SEQUENCE), generator=torch.Generator().manual_seed(0))
    return ids, ids


def numbers() -> tuple[Tensor, Tensor]:
    return torch.randn(ROWS, WORDS), torch.randn(ROWS, WORDS)


CASES: dict[str, Any] = {
    "gpt": (gpt, tokens, token_loss),
    "three": (shared_by_three, numbers, nn.functional.mse_loss),
}


@pytest.mark.parametrize(
    ("case", "method", "stages"), [("gpt", schedules.two_bw, 3), ("three", schedules.zb_h1, 3)]
)
def test_as_many_bytes_are_simulated_as_are_sent(case: str, method: Any, stages: int) -> None:
    make, batch, loss = CASES[case]
    model, (x, y) = make(), batch()
    m, batches = 4, 2
    balance = [1] * (stages - 1) + [len(model) - stages + 1]
    schedule = method(stages, m).take(batches)
    run = Pipeline(
        model, schedule, balance=balance, optimizer=partial(torch.optim.SGD, lr=0.1), loss=loss
    ).train([(x, y)] * batches)
    costs = Profile.analytic(model, x[:1], V100)
    plan = Plan.by_hand(balance)
    assert "weights" in {purpose for *_, purpose in crossed(run.traffic)}
    for cluster in (None, flat(stages, 1e9)):
        trace = simulate(schedule, costs, plan, cluster)
        assert crossed(trace.transfers) == crossed(run.traffic)
        assert sent(trace) == sent(run.trace)
    emulated = emulate(schedule, costs, plan, flat(stages, 1e9))
    assert crossed(emulated.traffic) == crossed(run.traffic)
    assert sent(emulated.trace) == sent(run.trace)


def test_so_it_is_where_stages_are_on_several_workers() -> None:
    """Their own sums come on top, and are sent over links only."""
    model, (x, y) = gpt(), tokens()
    schedule = schedules.replicate(schedules.flush(2, 2).take(2), 2)
    balance = [1, len(model) - 1]
    run = Pipeline(
        model,
        schedule,
        balance=balance,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        loss=token_loss,
    ).train([(x, y)] * 2)
    costs = Profile.analytic(model, x[:1], V100)
    plan = Plan.by_hand(balance, replicas=[2, 2])
    assert crossed(simulate(schedule, costs, plan, flat(4, 1e9)).transfers) == crossed(run.traffic)


def test_a_profile_names_what_layers_share() -> None:
    shared = Profile.analytic(shared_by_three(), numbers()[0], V100)
    weight, bias = 4.0 * WORDS * WORDS, 4.0 * WORDS
    assert shared.ties == (TieProfile((0, 1, 3), weight), TieProfile((0, 3), bias))
    measured = profile(shared_by_three(), numbers()[0], repeats=1, others=0, tolerance=math.inf)
    assert measured.ties == shared.ties
    assert [layer.parameter_bytes for layer in shared.layers] == [
        weight + bias,
        bias,
        weight + bias,
        0,
    ]


def test_ties_are_saved_and_scaled(tmp_path: Path) -> None:
    tied = replace(Profile.uniform(3), ties=(TieProfile((1, 2), 4.0),))
    tied.save(tmp_path / "tied.json")
    assert Profile.load(tmp_path / "tied.json") == tied
    assert tied.scaled(3).ties == tied.ties


@pytest.mark.parametrize(
    ("ties", "message"),
    [
        (((1,), 4.0), "two layers or more"),
        (((1, 1), 4.0), "two layers or more"),
        (((0, 1), -1.0), "0 or a positive number up to 1e\\+100, not -1"),
        (((0, 3), 4.0), r"layers \[0, 3\] of 3"),
        (((-1, 2), 4.0), r"layers \[-1, 2\] of 3"),
    ],
)
def test_what_cannot_be_shared_is_refused(ties: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Profile.uniform(3), ties=(TieProfile(*ties),))


def crossed(table: pd.DataFrame | None) -> dict[Any, float]:
    assert table is not None
    return dict(table.groupby(["source", "destination", "purpose"])["bytes"].sum().items())


def sent(trace: Trace) -> list[list[Any]]:
    """What each task sent."""
    names = ["worker", "stage", "op", "microbatch", "version", "bytes"]
    found: list[list[Any]] = trace.frame[names].to_numpy().tolist()
    return found


def test_an_update_waits_for_its_own_sum_beside_that_of_shared_weights() -> None:
    """Chimera's stages are on two workers each; the last two of them share a small weight."""
    profile = Profile.uniform(4, parameter_bytes=1000)
    tied = replace(profile, ties=(TieProfile((0, 3), 1),))
    plan = Plan.by_hand([1] * 4, replicas=[2] * 4)
    trace = simulate(schedules.chimera(4, 4).take(1), tied, plan, flat(4, 100))
    assert trace.transfers is not None
    sums = trace.transfers.query("purpose == 'weights' and bytes == 1000")
    updates = trace.frame.query("op == 'UPDATE'").groupby("stage")["start_s"].min()
    assert set(sums["stage"]) == set(range(4))
    assert (updates >= sums.groupby("stage")["end_s"].max()).all()


def test_stages_that_cannot_update_together_are_refused() -> None:
    """PipeDream's replicas sum other minibatches than the stage that shares their weights."""
    tied = replace(Profile.uniform(3, parameter_bytes=4), ties=(TieProfile((0, 2), 4),))
    plan = Plan.by_hand([1] * 3, replicas=[2, 1, 1])
    with pytest.raises(ScheduleError, match="U1 of stage 0 waits for ever: stages that share"):
        simulate(schedules.pipedream([2, 1, 1]).take(8), tied, plan)


# --- Skip connections: their messages by hand, and their bytes ---------------------------------------


MAIN, SKIP = 100.0, 300.0


def chain(layers: int, *skips: SkipProfile) -> Profile:
    """Layers of 1 s forward and 2 s backward, which pass on and save MAIN bytes."""
    return Profile(Profile.uniform(layers, output_bytes=MAIN).layers, 1, MAIN, {}, skips)


def starts(trace: Trace, stage: int, op: str) -> list[float]:
    frame = trace.frame.query("stage == @stage and op == @op")
    return [float(start) for start in frame["start_s"]]


def test_a_skip_goes_straight_and_its_gradient_comes_straight_back() -> None:
    trace = simulate(
        schedules.gpipe(4, 2).take(1), chain(4, SkipProfile("a", 0, 2, SKIP)), cluster=flat(4, 1.0)
    )
    assert crossed(trace.transfers) == {
        (0, 1, "activation"): 2 * MAIN,
        (1, 2, "activation"): 2 * MAIN,
        (2, 3, "activation"): 2 * MAIN,
        (0, 2, "activation"): 2 * SKIP,
        (1, 0, "gradient"): 2 * MAIN,
        (2, 1, "gradient"): 2 * MAIN,
        (3, 2, "gradient"): 2 * MAIN,
        (2, 0, "gradient"): 2 * SKIP,
    }
    assert trace.transfers is not None
    assert trace.frame["bytes"].sum() == trace.transfers["bytes"].sum()
    back = trace.transfers.query("source == 2 and destination == 0")
    assert back["stage"].eq(2).all()


def test_tasks_wait_for_their_skips_which_share_links_with_the_main_tensors() -> None:
    """A main tensor takes 1 s alone, a skip 3 s.

    Both leave stage 0 at 1 s: the main one is there at 3, and 200 bytes of the skip are left.
    What leaves stage 1 at 4 shares stage 2's way in with its last 100, and both are there at 6.
    Likewise on the way back, from 9 on: there at 11 and 13, when stage 1 sends its own.
    """
    trace = simulate(
        schedules.gpipe(3, 1).take(1),
        chain(3, SkipProfile("a", 0, 2, SKIP)),
        cluster=flat(3, 100.0),
    )
    assert starts(trace, 1, "FORWARD") == [3]
    assert starts(trace, 2, "FORWARD") == [6]
    assert starts(trace, 2, "BACKWARD") == [7]
    assert starts(trace, 1, "BACKWARD") == [11]
    assert starts(trace, 0, "BACKWARD") == [14]


def test_a_skip_within_a_stage_or_a_worker_is_not_sent() -> None:
    skip = SkipProfile("a", 0, 1, SKIP)
    inside = simulate(
        schedules.gpipe(2, 1).take(1), chain(3, skip), Plan.by_hand([2, 1]), flat(2, 1.0)
    )
    assert crossed(inside.transfers) == {(0, 1, "activation"): MAIN, (1, 0, "gradient"): MAIN}
    schedule = schedules.parse("worker 0 | F0 F0@1 B0@1^@1 B0^")
    assert simulate(schedule, chain(2, skip), cluster=flat(1, 1.0)).makespan_s == 6


@pytest.mark.parametrize(("saved", "at_source"), [(True, 0.0), (False, SKIP)])
def test_a_skip_takes_memory_at_both_ends_and_not_between(saved: bool, at_source: float) -> None:
    """What the source's backward needs anyway is counted there already."""
    profile = chain(3, SkipProfile("a", 0, 2, SKIP, saved))
    memory = simulate(schedules.gpipe(3, 2).take(1), profile).memory
    assert memory is not None
    own = 2 * MAIN  # an input, and an output that is saved
    peaks = memory.frame.groupby("worker")["activations"].max().tolist()
    assert peaks == [2 * (own + at_source), 2 * own, 2 * (own + SKIP)]
    assert memory.frame.groupby("worker")["activations"].last().tolist() == [0, 0, 0]


def test_recomputing_keeps_what_came_in_and_nothing_of_what_goes_out() -> None:
    profile = chain(2, SkipProfile("a", 0, 1, SKIP, saved=False))
    memory = simulate(
        schedules.gpipe(2, 3).take(1), profile, Plan.by_hand([1, 1], recompute="always")
    ).memory
    assert memory is not None
    parts = memory.frame.groupby("worker")[["activations", "recompute"]].max()
    assert parts["activations"].tolist() == [3 * MAIN, 3 * (MAIN + SKIP)]
    assert parts["recompute"].tolist() == [MAIN + SKIP, MAIN]
