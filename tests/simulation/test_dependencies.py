"""Whatever is simulated starts once worker and data are there: held against the definitions."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit import schedules
from pipekit.clusters import V100, Cluster, Level
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule, chimera
from pipekit.simulation import Costs, long_run, simulate
from tests.schedules.reference import UPDATE, halves, key, needs
from tests.schedules.strategies import methods, stashing_methods, taken, with_split_backwards

seconds = st.sampled_from([0.0, 0.5, 1.0, 2.0, 7.0])
few = st.integers(1, 3)
several = st.lists(st.integers(1, 3), min_size=1, max_size=3)
one_copy = st.one_of(methods, with_split_backwards(stashing_methods))
copies = st.one_of(
    st.builds(lambda p, m: schedules.chimera(2 * p, m), st.integers(1, 2), st.integers(1, 8)),
    st.builds(schedules.pipedream, several),
    st.builds(schedules.asp, few),
    st.builds(lambda p, m: schedules.replicate(schedules.zb_h2(p, m), 2), few, few),
)


def layer(data: st.DataObject, size: float) -> LayerProfile:
    forward, inputs, weights, update = (data.draw(seconds) for _ in range(4))
    whole = data.draw(st.sampled_from([inputs + weights, 3.0]))
    return LayerProfile(
        "layer",
        forward,
        whole,
        parameter_bytes=size,
        update_s=update,
        backward_input_s=inputs,
        backward_weight_s=weights,
    )


@pytest.mark.parametrize("kind", [one_copy, taken(copies, few)])
@given(st.data())
def test_a_task_starts_when_its_worker_is_free_and_all_that_it_needs_is_there(
    kind: st.SearchStrategy[Schedule], data: st.DataObject
) -> None:
    """A message is there a latency later, and a sum once all copies have given to it.

    A sum of gradients takes 2 (r - 1) hops of a ring, or nothing if there are no bytes.
    A stage without bytes among others that have some has no weights: it sums nothing.
    """
    schedule = data.draw(kind)
    sizes = [data.draw(st.sampled_from([0.0, 8.0])) for _ in range(schedule.stages)]
    late = data.draw(seconds)
    backwards = [
        (worker, *key(task))
        for worker, tasks in enumerate(schedule.workers)
        for task in tasks
        if task.op is not UPDATE
    ]
    layers = tuple(layer(data, size) for size in sizes)
    costs = Costs(
        Profile(layers),
        workers={0: data.draw(st.sampled_from([1.0, 3.0]))},
        microbatches={1: data.draw(st.sampled_from([1.0, 0.0, 2.0]))},
        tasks=dict.fromkeys(data.draw(st.sets(st.sampled_from(backwards), max_size=9)), 11.0),
    )
    cluster = Cluster("any", V100, (Level("l", schedule.worker_count, math.inf, latency_s=late),))
    used = data.draw(st.sampled_from([None, cluster]))
    late = 0.0 if used is None else late
    frame = simulate(schedule, costs, cluster=used).frame
    spans = {
        w: rows.to_numpy().tolist() for w, rows in frame.groupby("worker")[["start_s", "end_s"]]
    }
    lists = [(w, tasks, spans.get(w, [])) for w, tasks in enumerate(schedule.workers)]

    there: dict[object, tuple[int, float]] = {}  # of each pass, its worker and when it gave
    for worker, tasks, times in lists:
        for task, (_, end) in zip(tasks, times, strict=True):
            there[key(task)] = worker, end
    split, summed = halves(schedule), {}
    for stage, homes in enumerate(schedule.stage_workers):
        done, hops = 0.0, 2 * (len(homes) - 1)
        for task in sorted({t for ts in schedule.workers for t in ts if t[:2] == (UPDATE, stage)}):
            given_by = [there[n] for n in needs(task, schedule.stages, split)]
            done = max(done, *(when for _, when in given_by)) + late * hops * bool(sizes[stage])
            summed[task] = 0.0 if any(sizes) and hops and not sizes[stage] else done

    for worker, tasks, times in lists:
        free = 0.0
        for task, (start, end) in zip(tasks, times, strict=True):
            ready = summed.get(task, 0.0)
            for need in () if task.op is UPDATE else needs(task, schedule.stages, split):
                home, when = there[need]
                ready = max(ready, when + (0.0 if home == worker else late))
            assert start == max(free, ready), task
            assert end - start == pytest.approx(lasting(costs, worker, task))
            free = end


def lasting(costs: Costs, worker: int, task: schedules.Task) -> float:
    """Return the seconds of a task."""
    op, stage, k, _ = task
    times = costs.workers.get(worker, 1.0)
    times *= 1.0 if op is UPDATE else costs.microbatches.get(k, 1.0)
    whole = costs.profile.layers[stage].seconds(op) * times
    return costs.tasks.get((worker, op, stage, k), whole)


def test_an_update_of_a_stage_without_bytes_waits_for_its_other_copy() -> None:
    """Chimera: worked out by a walk along the dependencies, 1 s a pass and half a second a message."""
    schedule, profile = chimera(4, 7), Profile.uniform(4)
    cluster = Cluster("any", V100, (Level("l", 4, math.inf, latency_s=0.5),))
    trace = simulate(schedule, profile, cluster=cluster, batches=3)
    assert trace.makespan_s == 106.5
    assert trace.transfers is not None
    assert set(trace.transfers["purpose"]) == {"activation", "gradient"}, "nothing is summed"
    found = long_run(schedule, profile, cluster=cluster, batches=40)
    whole = simulate(schedule, profile, cluster=cluster, batches=40)
    assert found.makespan_s == whole.makespan_s
    assert found.bubble == pytest.approx(whole.bubble)
