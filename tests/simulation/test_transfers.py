"""What runs beside the workers: its seconds, and what lies where meanwhile, counted by hand."""

from dataclasses import replace
from itertools import groupby

import pandas as pd
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from pipekit.clusters import flat
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import LOAD, OFFLOAD, Item, Op, Schedule, check, flush, parse, weipipe
from pipekit.simulation import Costs, Shards, alone, events, simulate
from pipekit.simulation.costs import stage_costs
from pipekit.simulation.loads import loads
from pipekit.traces import Trace
from tests.schedules.reference import refusal
from tests.schedules.test_items import COPY, tables

LAYER = LayerProfile("layer", 1.0, 2.0, saved_bytes=70, output_bytes=10, parameter_bytes=40)
PROFILE = Profile((LAYER, LAYER), input_bytes=10)
ALL = 70 + 10 + 10  # what a microbatch keeps, what it received and what it sent

PACKED = Item("packed activations", activations=0.5)
BUFFER = Item("buffer", weights=0.25, each="stage")
PACK = Op("X", "PACK", takes=Op.FORWARD.gives, gives=(PACKED, BUFFER))  # letters that no page has
UNPACK = Op("M", "UNPACK", takes=(PACKED,), gives=Op.FORWARD.gives)


def table(cells: str) -> Schedule:
    return parse(f"worker 0 | {cells}^\nworker 1 | F0 B0 - F1 B1 -^")


def moved(trace: Trace, *purposes: str) -> pd.DataFrame:
    assert trace.transfers is not None
    return trace.transfers[trace.transfers["purpose"].isin(purposes)]


def bytes_of(trace: Trace, worker: int, part: str) -> dict[float, float]:
    assert trace.memory
    frame = trace.memory.frame[trace.memory.frame["worker"] == worker]
    rows = zip(frame["time_s"], frame[part], strict=True)
    return {time: [*each][-1][1] for time, each in groupby(rows, lambda row: row[0])}


@pytest.mark.hypothesis
@given(tables(), st.sampled_from([None, 20.0, 200.0]))
def test_both_loops_give_the_same_times(schedule: Schedule, links: float | None) -> None:
    if refusal(lambda: check(schedule)):
        reject()
    costs = stage_costs(schedule, PROFILE, None)
    given_ = Costs(PROFILE, host_bytes_per_s=30.0, shards=Shards(4, 10.0), ops={COPY: 1.5})
    cluster = flat(2, links) if links else None
    load = loads(schedule, costs, given_, cluster)
    fast = alone.run(schedule, costs, load, cluster)
    followed = events.run(schedule, costs, load, cluster)
    if fast is not None:
        assert_array_equal(fast.starts, followed.starts)
        assert_array_equal(fast.ends, followed.ends)


def test_what_is_offloaded_to_the_host_is_not_on_the_worker() -> None:
    schedule = table("F0/O0 F1/L0 . B0 - B1 -")
    trace = simulate(schedule, Costs(PROFILE, host_bytes_per_s=ALL))
    both = moved(trace, "offload", "load")[["start_s", "end_s", "bytes"]]
    assert both.to_numpy().tolist() == [[1, 2, ALL], [2, 3, ALL]]
    held = bytes_of(trace, 0, "activations")
    assert held == {0: ALL, 1: 2 * ALL, 2: 2 * ALL, 4: 2 * ALL, 6: ALL, 9: 0}
    slow = simulate(schedule, Costs(PROFILE, host_bytes_per_s=ALL / 2))
    assert bytes_of(slow, 0, "activations")[3] == 2 * ALL  # out at 3, and at once back
    assert slow.makespan_s == 9


def test_what_a_partner_keeps_lies_there() -> None:
    out, back = OFFLOAD.to(1), LOAD.to(1)
    lists = [*map(list, table("F0 F1 . B0 - B1 -").workers)]
    lists[0].insert(1, lists[0][0]._replace(op=out))
    lists[0].insert(3, lists[0][0]._replace(op=back))
    schedule = replace(flush(2, 2).take(1), head=tuple(map(tuple, lists)))
    assert "F0/O0>1 F1/L0>1" in str(schedule)
    trace = simulate(schedule, PROFILE, cluster=flat(2, ALL))
    plain = simulate(flush(2, 2).take(1), PROFILE, cluster=flat(2, ALL))
    there, without = (bytes_of(each, 1, "activations") for each in (trace, plain))
    assert max(there.values()) == max(without.values()) + ALL
    assert moved(trace, "offload")[["source", "destination"]].to_numpy().tolist() == [[0, 1]]
    own = simulate(schedule, Costs(PROFILE, ops={out: 2.0, back: 4.0}), cluster=flat(2, ALL))
    both = moved(own, "offload", "load")
    assert (both["end_s"] - both["start_s"]).tolist() == [2, 4]  # and not the link's 1


def test_gathered_weights_are_there_until_they_are_given_up() -> None:
    schedule = table("./G0 F0 F1/D0 . ./G1 B0 - B1 -/D1/S1")
    trace = simulate(schedule, Costs(PROFILE, shards=Shards(4, 30.0)), optimizer_states=1)
    weights, gradients = (bytes_of(trace, 0, part) for part in ("weights", "gradients"))
    gather = moved(trace, "unshard").iloc[0]
    assert (gather["start_s"], gather["end_s"]) == (0, 1)  # three quarters of 40 bytes at 30
    assert weights[min(weights)] == 40
    assert min(weights.values()) == 10
    assert weights[max(weights)] == 10
    assert (max(gradients.values()), gradients[max(gradients)]) == (40, 0)
    assert max(bytes_of(trace, 0, "optimizer").values()) == 10


def test_a_received_sum_lies_beside_the_workers_own_until_it_is_added() -> None:
    trace = simulate(weipipe(2, 2), PROFILE, cluster=flat(2, 80), batches=1)
    for held in (bytes_of(trace, worker, "gradients") for worker in (0, 1)):
        assert (max(held.values()), held[max(held)]) == (2 * 40, 0)


def test_a_makespan_begins_with_the_first_task_of_any_op() -> None:
    costs = Costs(PROFILE, shards=Shards(4, 30.0))
    trace = simulate(table("./G0 F0 F1 . B0 - B1 -"), costs)
    assert trace.frame["start_s"].min() == 1  # behind the gather
    assert trace.makespan_s == trace.frame["end_s"].max() == 10
    busy = 12  # 2 workers, two microbatches of 3 seconds
    assert trace.bubble == pytest.approx(1 - busy / 20)
    idle = trace.gaps()
    assert (idle["end_s"] - idle["start_s"]).sum() == pytest.approx(20 - busy)
    assert idle.iloc[0][["worker", "start_s", "end_s"]].tolist() == [0, 0, 1]
    path = trace.critical_path()
    took = (path["end_s"] - path["start_s"]).sum() + path["waited_s"].sum()
    assert took == pytest.approx(trace.makespan_s)
    assert trace.breakdown().loc["all"].sum() == pytest.approx(100)
    assert trace.breakdown().loc["all", "computation"] == pytest.approx(100 * busy / 20)


def test_a_forward_runs_again_at_its_place() -> None:
    schedule = parse("worker 0 | F0 F1 . R0 B0 - R1 B1 -^\nworker 1 | F0 F1 B0 - B1 -^")
    trace = simulate(schedule, PROFILE)
    assert [*trace.frame["op"]].count("RECOMPUTE") == 2
    again = bytes_of(trace, 0, "recompute")
    assert (max(again.values()), again[max(again)]) == (80, 0)
    assert max(bytes_of(trace, 0, "activations").values()) == 2 * 10


def test_an_unknown_op_needs_seconds() -> None:
    schedule = table("F0 X0 M0 F1 B0 - B1 -")
    with pytest.raises(
        ValueError, match=r"has no seconds in the profile: give Costs\(profile, ops="
    ):
        simulate(schedule, PROFILE)
    for seconds, ends in ((0.5, 1.5), ([0.25, 9.0], 1.25)):
        trace = simulate(schedule, Costs(PROFILE, ops={PACK: seconds, UNPACK: 1.0}))
        (row,) = trace.frame[trace.frame["op"] == "PACK"]["end_s"]
        assert row == ends
    with pytest.raises(ValueError, match="has PACK of 1 stage, and the schedule has more"):
        simulate(schedule, Costs(PROFILE, ops={PACK: [0.5], UNPACK: 1.0}))
    for cells, says in (("F0/O0/L0 B0 -", "host_bytes_per_s"), ("./G0 F0 B0 -", "shards=Shards")):
        with pytest.raises(ValueError, match=says):
            simulate(parse(f"worker 0 | {cells}^"), Profile((LAYER,)))


def test_what_ops_of_ones_own_give_is_there_until_it_is_taken() -> None:
    """While a task runs, there is what it takes and what it gives; a stage has one buffer."""
    costs = Costs(PROFILE, ops={PACK: 1.0, UNPACK: 1.0})
    trace = simulate(table("F0 X0 F1 X1 M0 . . B0 - M1 B1 -"), costs)
    activations = bytes_of(trace, 0, "activations")
    held = [activations[time] / ALL for time in (0, 1, 2, 3, 4, 5)]
    assert held == [1, 1.5, 1.5, 2, 2, 1.5]
    assert {*bytes_of(trace, 0, "weights").values()} == {40, 50}


def test_later_chunks_cost_more() -> None:
    title = "# sequence; 2 chunks a microbatch\n"
    schedule = parse(title + "worker 0 | F0.0 F0.1 B0.1 - B0.0 -^")
    trace = simulate(schedule, Costs(Profile((LAYER,)), chunks=[0.8, 1.2]))
    took = trace.frame["end_s"] - trace.frame["start_s"]
    assert_allclose(took, [0.4, 0.6, 1.2, 0.8, 0])
    thrice = simulate(schedule, Costs(Profile((LAYER,)), microbatches={0: 3.0}))  # all its chunks
    assert thrice.makespan_s == 3 * trace.makespan_s
    with pytest.raises(ValueError, match="has 3 factors, and sequence has 2 chunks a microbatch"):
        simulate(schedule, Costs(Profile((LAYER,)), chunks=[1, 1, 1]))
    with pytest.raises(ValueError, match=r"Costs.chunks\[1\] must be 0 or a positive number"):
        Costs(Profile((LAYER,)), chunks=[1, -1])
