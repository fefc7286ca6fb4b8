"""Many batches from a few periods are what all their tasks take, and single tasks' costs."""

import math
from typing import get_args

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from pipekit import Plan, Profile, ScheduleError, schedules, simulate
from pipekit.clusters import Cluster, Device, Level
from pipekit.plans import Recompute
from pipekit.profiling import LayerProfile
from pipekit.schedules import LOAD, OFFLOAD, Op, Schedule
from pipekit.simulation import Costs, long_run

BATCHES = 60
counts = st.integers(1, 3)
endless = st.one_of(
    st.builds(schedules.flush, counts, counts),
    st.builds(schedules.zb_h2, counts, counts),
    st.builds(schedules.pipedream, counts),
    st.builds(schedules.pipedream, counts, stashing=st.just(False)),
    st.builds(schedules.paci, counts, counts),
    st.builds(lambda s, m: schedules.two_bw(s, s + m), counts, st.integers(0, 2)),
    st.builds(schedules.inference, counts),
    st.builds(lambda m: schedules.interleaved(4, m, workers=2), counts),
)


def profile_of(data: st.DataObject, stages: int, numbers: st.SearchStrategy[float]) -> Profile:
    """Draw layers whose outputs are the larger the later they come."""
    layers = (
        LayerProfile(
            f"{stage}",
            data.draw(numbers),
            data.draw(numbers),
            output_bytes=stage,
            parameter_bytes=5.0,
            update_s=data.draw(numbers),
            copy_s=data.draw(st.sampled_from([0.0, 0.5])),
            backward_input_s=data.draw(numbers),
            backward_weight_s=data.draw(numbers),
        )
        for stage in range(stages)
    )
    return Profile(tuple(layers))


def compared(schedule: Schedule, data: st.DataObject, numbers: st.SearchStrategy[float]) -> float:
    """Return by which part the makespan of a few periods is another than that of all tasks."""
    profile = profile_of(data, schedule.stages, numbers)
    costs = Costs(profile, workers={0: data.draw(st.sampled_from([1, 2]))})
    level = Level("link", schedule.worker_count, math.inf, latency_s=data.draw(numbers))
    device = Device("any", math.inf, {}, math.inf)
    cluster = data.draw(st.sampled_from([None, Cluster("c", device, (level,))]))
    recompute = data.draw(st.sampled_from(get_args(Recompute)))
    plan = Plan.by_hand([1] * schedule.stages, recompute=recompute)
    found = long_run(schedule, costs, plan, cluster, batches=BATCHES, optimizer_states=1)
    event("all tasks" if found.periods is None else "a few periods")
    trace = simulate(schedule, costs, plan, cluster, batches=BATCHES, optimizer_states=1)
    assert trace.memory is not None
    assert found.peak_bytes == trace.memory.peak_bytes
    assert found.bubble == pytest.approx(trace.bubble, abs=1e-9)
    return abs(found.makespan_s - trace.makespan_s) / trace.makespan_s


@settings(max_examples=10)
@given(endless, st.data())
def test_whole_seconds_are_those_of_all_tasks(schedule: Schedule, data: st.DataObject) -> None:
    assert compared(schedule, data, st.integers(1, 9)) == 0


@settings(max_examples=5)
@given(endless, st.data())
def test_other_seconds_are_those_of_all_tasks_but_for_rounding(
    schedule: Schedule, data: st.DataObject
) -> None:
    assert compared(schedule, data, st.floats(0.1, 9)) < 1e-9


def test_a_million_batches_take_what_the_paper_says() -> None:
    """GPipe's bubble, (K-1)/(T+K-1), batch after batch (section 3.2), and 1F1B without a flush."""
    found = long_run(schedules.gpipe(4, 12), Profile.uniform(4), batches=10**6)
    assert found.periods is not None
    assert found.makespan_s == 10**6 * 3 * (12 + 4 - 1)
    assert found.bubble == pytest.approx(3 / 15)
    assert str(found) == (
        "1,000,000 batches in 4.5e+07 s, one each 45 s, bubble 20.0% (from 8 periods)"
    )
    assert long_run(schedules.pipedream(4), Profile.uniform(4), batches=10**6).batch_s == 3
    assert long_run(schedules.flush(2, 2), Profile.uniform(2, 0, 0), batches=10**6).bubble == 0


def test_times_that_never_repeat_are_simulated_and_the_result_says_so() -> None:
    """A first stage twice as fast runs ahead of the second for ever."""
    profile = Profile((LayerProfile("a", 1, 1), LayerProfile("b", 2, 1)))
    found = long_run(schedules.inference(2), profile, batches=BATCHES)
    assert found.periods is None
    assert "all tasks simulated" in str(found)
    assert found.makespan_s == 1 + 2 * BATCHES
    slow = Costs(Profile.uniform(2), microbatches={7: 3})
    assert long_run(schedules.flush(2, 2), slow, batches=BATCHES).periods is None
    links = Cluster("c", Device("any", math.inf, {}, math.inf), (Level("link", 4, 1.0),))
    sent = Profile.uniform(4, output_bytes=1)
    assert long_run(schedules.pipedream(4), sent, None, links, batches=BATCHES).periods is None


def test_tasks_of_other_streams_are_simulated_one_by_one() -> None:
    passes = [(Op.FORWARD, 0, 0), (OFFLOAD, 0, 0), (LOAD, 0, 0), (Op.BACKWARD, 0, 0)]
    schedule = Schedule.one_batch("moving", [passes]).repeat()
    costs = Costs(Profile.uniform(1), ops={OFFLOAD: 1.0, LOAD: 2.0})
    found = long_run(schedule, costs, batches=10)
    assert found.makespan_s == simulate(schedule, costs, batches=10).makespan_s


def test_forwards_that_run_again_at_a_place_repeat_like_all_tasks() -> None:
    schedule = schedules.recomputed(schedules.flush(3, 4), {0, 1})
    plan = Plan.by_hand([1] * 3, recompute="except_last")  # which runs those of stage 2 again
    costs = Costs(Profile.uniform(3, 1, 3), workers={1: 2.5})
    found = long_run(schedule, costs, plan, batches=BATCHES)
    trace = simulate(schedule, costs, plan, batches=BATCHES)
    assert found.periods == 8
    assert found.makespan_s == trace.makespan_s
    again = Costs.measured(Profile.uniform(3), trace)
    assert simulate(schedule, again, plan, batches=BATCHES).frame.equals(trace.frame)


def test_a_schedule_with_an_end_is_refused() -> None:
    with pytest.raises(ScheduleError, match="has an end: repeat"):
        long_run(schedules.flush(2, 2).take(1), Profile.uniform(2), batches=3)


def test_a_straggler_and_a_long_microbatch_take_their_times() -> None:
    costs = Costs(Profile.uniform(2), workers={1: 2}, microbatches={0: 3})
    trace = simulate(schedules.gpipe(2, 2).take(1), costs)
    took = trace.frame.assign(took=trace.frame["end_s"] - trace.frame["start_s"])
    passes = took[took["op"] == "FORWARD"].set_index(["worker", "microbatch"])["took"]
    assert passes.to_dict() == {(0, 0): 3, (0, 1): 1, (1, 0): 6, (1, 1): 2}


def test_a_trace_gives_the_costs_that_it_was_made_with() -> None:
    """Measured seconds of each task take the same path, also those of forwards that run again."""
    schedule = schedules.zb_h1(3, 4).take(2)
    plan = Plan.by_hand([1] * 3, recompute="except_last")
    costs = Costs(Profile.uniform(3, 1, 3), workers={1: 2.5}, microbatches={5: 4})
    trace = simulate(schedule, costs, plan)
    again = simulate(schedule, Costs.measured(Profile.uniform(3), trace), plan)
    assert again.frame.equals(trace.frame)
    one = Costs(Profile.uniform(3), tasks={(0, Op.FORWARD, 0, 0): 7})
    assert simulate(schedule, one, plan).frame["end_s"].iloc[0] == 7


def test_costs_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Costs.workers\[0\] must be 0 or a positive number"):
        Costs(Profile.uniform(2), workers={0: -1})
    drawn = simulate(schedules.flush(2, 2), Profile.uniform(2))
    slots = type(drawn).from_schedule(schedules.flush(2, 2))
    with pytest.raises(ValueError, match="is in slots: give a trace in seconds"):
        Costs.measured(Profile.uniform(2), slots)
