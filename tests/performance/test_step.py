"""A step is what the simulator makes of the same table, and closed forms where there are some."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipekit import Profile, simulate
from pipekit.clusters import Cluster, Device, Level
from pipekit.performance.layout import beside_head
from pipekit.performance.step import TrainingStep, in_flight
from pipekit.profiling import LayerProfile
from pipekit.schedules import Schedule
from pipekit.schedules.methods.by_name import METHODS

seconds = st.floats(0.1, 9)


def simulated(schedule: Schedule, step: TrainingStep, latency: float) -> float:
    """Return the makespan of one batch by the simulator, whose links have only a latency."""
    layers = tuple(
        LayerProfile(f"{number}", forward, backward, output_bytes=1e-9)
        for number, (forward, backward) in enumerate(
            zip(step.forward_s, step.backward_s, strict=True)
        )
    )
    level = Level("link", schedule.worker_count, 1e30, latency_s=latency)
    links = Cluster("c", Device("any", math.inf, {}, math.inf), (level,))
    return simulate(schedule, Profile(layers), None, links, batches=1).makespan_s


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 9), st.data())
def test_no_step_of_1f1b_is_shorter_than_its_bound(
    workers: int, chunks: int, rounds: int, data: st.DataObject
) -> None:
    stages = workers * chunks
    each, links = (st.tuples(*[seconds] * count) for count in (stages, stages - 1))
    drawn = data.draw(each), data.draw(each), rounds * workers, data.draw(links)
    method = "interleaved" if chunks > 1 and workers > 1 else "flush"
    if method == "flush":
        workers = stages
    step = TrainingStep(*drawn, method=method, workers=workers, after_s=1.0)
    assert step.least_s <= step.seconds * (1 + 1e-9)


@settings(max_examples=10)
@pytest.mark.parametrize(
    ("methods", "workers", "chunks"),
    [
        (["flush", "gpipe", "eager", "zb-h1"], [1, 3, 4], 1),
        (["chimera", "dualpipe"], [2, 4], 1),
        (["interleaved", "looped-bfs", "zb-v", "v-half", "hanayo"], [2, 3], 2),
        (["interleaved"], [2, 3], 3),
    ],
)
@given(data=st.data())
def test_a_step_takes_what_the_simulator_says(
    methods: list[str], workers: list[int], chunks: int, data: st.DataObject
) -> None:
    """Of many microbatches rounds repeat, exactly where links take no time."""
    method, count = data.draw(st.sampled_from(methods)), data.draw(st.sampled_from(workers))
    stages = count * chunks
    microbatches = data.draw(st.integers(1, 12) | st.integers(33, 90))
    if method in ("chimera", "dualpipe"):
        microbatches *= 2 * stages
    latency = data.draw(st.floats(0, 2)) if chunks == 1 and microbatches <= 12 else 0.0
    each = st.tuples(*[seconds] * stages)
    drawn = data.draw(each), data.draw(each), microbatches, (latency,) * (stages - 1)
    step = TrainingStep(*drawn, method=method, workers=count)
    told = simulated(METHODS[method](stages, microbatches, workers=count), step, latency)
    assert step.seconds == pytest.approx(told, rel=1e-9)


@pytest.mark.parametrize("microbatches", [1, 4, 1000])
def test_equal_stages_fill_and_drain_once(microbatches: int) -> None:
    """(m + p - 1) (f + b) (PipeDream-2BW, section 3.2)."""
    step = TrainingStep((1.0,) * 4, (2.0,) * 4, microbatches, after_s=5)
    assert step.seconds == pytest.approx(3 * (microbatches + 3) + 5)


def test_a_blocking_transfer_keeps_both_workers() -> None:
    free = TrainingStep((1.0,) * 2, (1.0,) * 2, 3, transfer_s=(0.5,))
    both = TrainingStep((1.0,) * 2, (1.0,) * 2, 3, transfer_s=(0.5,), blocking=True)
    assert both.seconds == TrainingStep((1.5,) * 2, (1.5,) * 2, 3).seconds > free.seconds


def test_what_is_in_flight_is_the_tables() -> None:
    assert in_flight("flush", 4, 100) == [4, 3, 2, 1]
    assert in_flight("flush", 4, 2) == [2, 2, 2, 1]
    assert in_flight("gpipe", 3, 5) == [5, 5, 5]


def test_steps_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="3 stages needs 3 backwards and 2 transfers"):
        TrainingStep((1.0,) * 3, (1.0,) * 3, 4, transfer_s=(1.0,))
    with pytest.raises(ValueError, match="did you mean 'flush'"):
        _ = TrainingStep((1.0,), (1.0,), 1, method="flash").seconds
    with pytest.raises(ValueError, match="pipedream updates after each microbatch"):
        _ = TrainingStep((1.0,), (1.0,), 1, method="pipedream").seconds
    with pytest.raises(ValueError, match="puts 4 stages on 4 workers, not 2"):
        _ = TrainingStep((1.0,) * 4, (1.0,) * 4, 1, workers=2).seconds


def test_layers_are_dealt_equally_or_beside_the_head() -> None:
    assert beside_head(80, 20, 0.5) == [4] * 20
    assert sorted(set(beside_head(126, 64, 0.7)[1:-1])) == [2]
    assert beside_head(126, 64, 0.7)[-1] == 1
    assert beside_head(126, 128, 0.7) == [0, *[1] * 126, 0]
    assert sum(beside_head(61, 16, 2.1)) == 61
    with pytest.raises(ValueError, match="3 layers are too few for 8 stages"):
        beside_head(3, 8, 0.5)


@given(st.integers(1, 130), st.integers(1, 40), st.floats(0, 4))
def test_all_layers_are_beside_head(layers: int, stages: int, head: float) -> None:
    if layers >= stages:
        found = beside_head(layers, stages, head)
        assert len(found) == stages
        assert sum(found) == layers
        assert min(found) >= 0
