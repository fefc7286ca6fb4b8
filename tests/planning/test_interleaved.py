"""Stages in a loop: against every split of short chains, and an integer program for longer ones."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

import pipekit as pk
from pipekit import schedules
from pipekit.clusters import flat
from pipekit.planning import interleaved
from pipekit.profiling import LayerProfile, Profile
from tests.planning.enumeration import splits, sums


def chain(seconds: list[float], saved: float = 0.0, parameters: float = 0.0) -> Profile:
    return Profile(
        tuple(
            LayerProfile(
                f"layer {n}", s / 3, 2 * s / 3, saved_bytes=saved, parameter_bytes=parameters
            )
            for n, s in enumerate(seconds)
        )
    )


def busiest(seconds: list[float], split: Sequence[int], workers: int) -> float:
    each = sums(seconds, split)
    return max(sum(each[worker::workers]) for worker in range(workers))


@settings(max_examples=15)
@given(
    st.lists(st.floats(0.1, 3), min_size=6, max_size=9),
    st.sampled_from([(2, 1), (3, 1), (2, 2), (3, 2), (2, 3)]),
)
def test_it_is_as_good_as_the_best_of_all_splits(
    seconds: list[float], shape: tuple[int, int]
) -> None:
    workers, chunks = shape
    least = min(busiest(seconds, s, workers) for s in splits(len(seconds), workers * chunks))
    plan = interleaved(chain(seconds), flat(workers, 1.0), chunks=chunks, microbatches=4)
    assert plan.predicted_s == pytest.approx(busiest(seconds, plan.balance, workers))
    assert plan.predicted_s <= least * (1.001 if chunks > 1 else 1 + 1e-9)


def optimum(seconds: list[float], workers: int, chunks: int) -> float:
    """Return the least seconds of the busiest worker, by an integer program.

    Its variables say of each stage but the first and each layer whether the layer is on the stage
    or behind it.
    """
    stages, layers = workers * chunks, len(seconds)
    count = (stages - 1) * layers + 1
    where = np.arange(count - 1).reshape(stages - 1, layers)
    rows, lower = [], []

    def at_least(value: float, *terms: tuple[int, float]) -> None:
        row = np.zeros(count)
        for place, factor in terms:
            row[place] += factor
        rows.append(row)
        lower.append(value)

    for stage, layer in product(range(stages - 1), range(layers - 1)):
        at_least(0, (where[stage, layer + 1], 1), (where[stage, layer], -1))
        if stage:
            at_least(0, (where[stage - 1, layer], 1), (where[stage, layer + 1], -1))
    for worker in range(workers):
        terms = [(count - 1, 1.0)]
        for stage in range(worker, stages, workers):
            if stage:
                terms += [(where[stage - 1, n], -s) for n, s in enumerate(seconds)]
            if stage + 1 < stages:
                terms += [(where[stage, n], s) for n, s in enumerate(seconds)]
        at_least(sum(seconds) if worker == 0 else 0, *terms)
    most, least = np.ones(count), np.zeros(count)
    most[-1], most[where[:, 0]], least[where[:, -1]] = np.inf, 0, 1
    goal = np.zeros(count)
    goal[-1] = 1
    found = milp(
        goal,
        integrality=np.append(np.ones(count - 1), 0),
        bounds=Bounds(least, most),
        constraints=LinearConstraint(np.array(rows), np.array(lower), np.inf),
    )
    assert found.fun is not None
    return float(found.fun)


@pytest.mark.parametrize(
    ("layers", "workers", "chunks"), [(32, 4, 2), pytest.param(64, 16, 4, marks=pytest.mark.long)]
)
def test_an_embedding_and_a_head_cost_no_more_than_they_must(
    layers: int, workers: int, chunks: int
) -> None:
    seconds = [0.3, *[1.0] * (layers - 2), 2.5]
    plan = interleaved(chain(seconds), flat(workers, 1.0), chunks=chunks, microbatches=32)
    assert plan.predicted_s <= optimum(seconds, workers, chunks) * 1.01


@pytest.mark.parametrize(("workers", "chunks"), [(16, 2), (16, 3), (8, 4)])
def test_a_hidden_split_without_idle_time_is_found(workers: int, chunks: int) -> None:
    """Layers of random seconds are scaled such that in a random split every worker has one."""
    random = np.random.default_rng(chunks)
    starts = np.sort(random.choice(np.arange(1, 64), workers * chunks - 1, replace=False))
    worker = np.searchsorted(starts, np.arange(64), "right") % workers
    seconds = random.uniform(0.5, 1.5, 64)
    seconds /= np.bincount(worker, seconds)[worker]
    plan = interleaved(chain([*seconds]), flat(workers, 1.0), chunks=chunks, microbatches=32)
    assert plan.predicted_s <= 1.001


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_the_bytes_are_no_less_than_the_simulated_ones(chunks: int) -> None:
    """Gradients are counted from the first pass on, and there from the first backward on."""
    profile = chain([1.0] * 12, saved=10.0, parameters=1.0)
    plan = interleaved(profile, flat(3, 1.0), chunks=chunks, microbatches=6)
    one = schedules.flush(3, 6) if chunks == 1 else schedules.interleaved(3 * chunks, 6, workers=3)
    trace = pk.simulate(one.take(1), profile, plan, optimizer_states=1)
    assert trace.memory is not None
    said = [stage.memory_bytes for stage in plan.stages[:3]]
    for bytes_, simulated in zip(said, trace.memory.peak_bytes, strict=True):
        assert simulated <= bytes_ <= simulated * 1.1


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_limit_moves_layers_to_where_there_is_room(chunks: int) -> None:
    """The first workers have the most in flight."""
    profile = chain([1.0] * 16, saved=1.0)
    free = interleaved(profile, flat(4, 1.0), chunks=chunks, microbatches=8)
    cap = max(stage.memory_bytes for stage in free.stages) * 0.85
    tight = interleaved(profile, flat(4, 1.0, cap), chunks=chunks, microbatches=8)
    assert max(stage.memory_bytes for stage in tight.stages) <= cap
    assert tight.predicted_s > free.predicted_s
    with pytest.raises(ValueError, match="no split was found that fits"):
        interleaved(profile, flat(4, 1.0, 2.0), chunks=chunks, microbatches=8)


def test_mtp_layers_stay_together_and_layouts_say_so() -> None:
    profile = chain([0.2, *[1.0] * 8, 1.2, 1.2, 1.5])
    plan = interleaved(profile, flat(2, 1.0), chunks=2, microbatches=4, predictors=2)
    layout = plan.to_megatron_layout(predictors=2)
    assert "m*2" in layout


def test_stages_are_written_for_other_tools() -> None:
    plan = pk.Plan.by_hand([2, 2, 2])
    parts = plan.to_torchtitan()
    assert parts == [
        ["tok_embeddings", "layers.0"],
        ["layers.1", "layers.2"],
        ["layers.3", "norm", "lm_head"],
    ]
    assert plan.split_points() == ["layers.1", "layers.3"]
    assert plan.split_points(["a", "b", ["c", "d"], "e", "f", "g"]) == ["c", "f"]
    with pytest.raises(ValueError, match="2 names do not fit a plan of 6 layers"):
        plan.to_torchtitan(["a", "b"])
    with pytest.raises(ValueError, match="torchtitan's layout has one each"):
        pk.Plan.by_hand([1, 1], replicas=[2, 1]).to_torchtitan()


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="use at most 5 stages"):
        interleaved(chain([1.0] * 5), flat(3, 1.0), chunks=2)
    with pytest.raises(ValueError, match="use 0 to 3"):
        interleaved(chain([1.0] * 5), flat(2, 1.0), predictors=4)
    assert interleaved(chain([1.0]), flat(1, 1.0)).predicted_s == 1.0
