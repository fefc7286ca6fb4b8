"""Recomputation at a place, and activations that move away and back: equal to the bit."""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import pipekit as pk
from pipekit import Schedule, schedules
from pipekit.engine import Observer
from pipekit.engine.arguments import offloads
from pipekit.measured import recognise
from pipekit.schedules import Op, Step
from pipekit.schedules.methods.offloading import bpipe, pipe_offload
from pipekit.simulation import Costs
from tests.engine.examples import (
    MODELS,
    Trained,
    data,
    mixed,
    mlp,
    nesterov,
    pipeline,
    trained,
    unlike,
)
from tests.engine.execution.moving_tables import AWAY_AND_BACK, fill_and_drain, to, with_tasks
from tests.people.test_torchgpipe import Calls

BATCHES = 3
BASES: dict[str, Callable[[], Schedule]] = {
    "gpipe": lambda: schedules.gpipe(2, 4).take(BATCHES),
    "zb-h1": lambda: schedules.zb_h1(2, 4).take(BATCHES),
    "2bw": lambda: schedules.two_bw(2, 4).take(BATCHES),
    "interleaved": lambda: schedules.interleaved(2, 4, workers=1).take(BATCHES),
}
R = (Op.RECOMPUTE,)
MOVE = ["purpose", "source", "destination", "stage", "microbatch"]
OTHER_WAYS: list[dict[str, Any]] = [{"transport": "distributed"}, {"recompute": "always"}]
TASKS = [R, AWAY_AND_BACK, (*AWAY_AND_BACK, *R), (*R, *AWAY_AND_BACK)]


def outcome(schedule: Schedule, model: str = "mixed", **options: Any) -> Trained:
    pipe = pipeline(MODELS[model](), schedule, [4, 4], **options)
    return trained(pipe, data(BATCHES, rows=16))


@cache
def as_ever(base: str, model: str) -> Trained:
    return outcome(BASES[base](), model)


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(sorted(BASES)),
    st.sampled_from(sorted(MODELS)),
    st.dictionaries(
        st.tuples(st.integers(0, 1), st.integers(0, 4 * BATCHES - 1)),
        st.tuples(st.sampled_from(TASKS), st.lists(st.floats(0, 1), min_size=3, max_size=3)),
        min_size=1,
        max_size=8,
    ),
)
def test_where_tasks_stand_changes_no_bit(
    base: str, model: str, tasks: dict[tuple[int, int], tuple[tuple[Op, ...], list[float]]]
) -> None:
    schedule = BASES[base]()
    for (stage, microbatch), (ops, places) in tasks.items():
        schedule = with_tasks(schedule, stage, microbatch, ops, places[: len(ops)])
    assert unlike(outcome(schedule, model), as_ever(base, model)) == []


@pytest.mark.parametrize("method", ["bpipe", "pipe_offload"])
def test_published_methods_train_as_without_transfers(method: str) -> None:
    if method == "bpipe":
        schedule, plain = bpipe(8, 8), schedules.flush(8, 8)
    else:
        schedule = pipe_offload(8, 8, workers=4)
        plain = pipe_offload(8, 8, workers=4, offloaded_stages=0)
    pipe, other = (pipeline(mixed(), each, [1] * 8) for each in (schedule, plain))
    batches = data(BATCHES, rows=16)
    run = pipe.train(batches)
    assert unlike(Trained(run.losses, pipe.state_dict()), trained(other, batches)) == []
    assert recognise(run.trace).method == method.replace("_", "-"), "by its recorded transfers"


@pytest.mark.parametrize("peer", [None, 1])
def test_a_measured_trace_has_the_moves_of_a_simulated_one(peer: int | None) -> None:
    ops = AWAY_AND_BACK if peer is None else to(peer)
    schedule = fill_and_drain(2, 4, [0, 1, 2], ops)
    trace = pipeline(mixed(), schedule, [4, 4]).train(data(BATCHES, rows=16)).trace
    drawn = pk.Trace.from_schedule(schedule, batches=BATCHES).transfers
    found = trace.transfers
    assert found is not None
    assert drawn is not None
    assert set(found[MOVE].itertuples(index=False)) == set(drawn[MOVE].itertuples(index=False))
    size = found.pivot(index="microbatch", columns="purpose", values="bytes")
    assert (size["offload"] > 0).all()
    assert size["offload"].equals(size["load"].rename("offload"))
    for row in found.itertuples():
        passes = trace.frame.query(f"stage == {row.stage} and microbatch == {row.microbatch}")
        forward, backward = passes.sort_values("start_s").iloc[[0, -1]].itertuples()
        assert forward.end_s <= row.start_s <= row.end_s <= backward.start_s


def test_over_processes_with_modes_and_empty_microbatches() -> None:
    schedule = fill_and_drain(2, 4, offloaded=[0, 1, 2])
    expected = outcome(schedules.gpipe(2, 4))
    for options in OTHER_WAYS:
        assert unlike(outcome(schedule, **options), expected) == []
    some = [
        pipeline(mlp(6, 6, 3), each, [1, 1], short_batches="fewer")
        for each in (schedule, schedules.gpipe(2, 4))
    ]
    assert unlike(*(trained(pipe, data(2, rows=3)) for pipe in some)) == []


def peaks(schedule: Schedule) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Each worker's most bytes, measured and simulated with transfers that take no time."""
    torch.manual_seed(0)
    widths = [6, 64, 64, 64, 3]
    layers = [each for pair in pairwise(widths) for each in (nn.Linear(*pair), nn.Tanh())]
    (batch,) = data(1, rows=4 * 64)
    pipe = pk.Pipeline(layers, schedule, balance=[4, 4], optimizer=nesterov, loss=nn.MSELoss())
    found = pk.measure_memory(pipe.train([batch], watch=pk.Watch(memory=True)))
    profile = pk.Profile.analytic(nn.Sequential(*layers), batch[0][:64], pk.clusters.V100)
    costs = Costs(profile, ops=dict.fromkeys(AWAY_AND_BACK, 0.0))
    plan = pk.Plan.by_hand([4, 4], rows=64)
    memory = pk.simulate(schedule.take(1), costs, plan, optimizer_states=1).memory
    assert memory is not None
    return found.peak_bytes, memory.peak_bytes


def test_memory_falls_as_simulated() -> None:
    """The input of the first stage is its batch's, and stays: here 2 % of its activations."""
    (before, _), (here, predicted) = (peaks(fill_and_drain(2, 4, k)) for k in ((), range(3)))
    assert here == pytest.approx(predicted, rel=0.05)
    assert here[0] < 2 / 3 * before[0]
    there, _ = peaks(fill_and_drain(2, 4, range(3), to(1)))
    assert there[0] == here[0]
    assert before[1] < there[1] <= before[1] + 3 / 4 * before[0]


class Freed(Observer):
    """Looks whether storages that have left are there no more, before the next task."""

    def __init__(self) -> None:
        self.left: list[StorageWeakRef] = []
        self.bytes = 0

    def moved(self, worker: int, step: Step, memory: Any) -> None:
        if offloads(step.task.op) and step.task.op.leaves:
            self.left = [StorageWeakRef(row.untyped_storage()) for row in memory]
            self.bytes += sum(row.nbytes for row in memory)

    def before_step(self, worker: int, step: Step) -> None:
        assert all(each.expired() for each in self.left)


def test_what_has_left_is_freed() -> None:
    """On a stage of its own: between threads a neighbour reads the very output."""
    observer = Freed()
    schedule = fill_and_drain(1, 4, offloaded=[0, 1])
    pipe = pipeline(mixed(), schedule)
    pipe.train(data(BATCHES), watch=pk.Watch(observers=[observer]))
    assert observer.bytes > 0


def test_an_edit_of_what_a_backward_needs_is_refused_as_ever() -> None:
    def edits_what_is_saved(x: Tensor) -> Tensor:
        y = x.exp()
        y.detach().mul_(2)
        return y

    model = nn.Sequential(nn.Linear(6, 3), Calls(edits_what_is_saved))
    schedule = fill_and_drain(1, 2, offloaded=[0])
    pipe = pipeline(model, schedule)
    with pytest.raises(RuntimeError, match="edited in place after it had been saved"):
        pipe.train(data(1))
