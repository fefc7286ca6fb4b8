import pandas as pd
import pytest

from experiments.pipedream.staleness import kept as staleness
from experiments.pipedream.staleness.versions import METHODS, PIPELINED, STASHING
from pipekit import schedules
from pipekit.schedules import Op, parse
from pipekit.traces import Trace
from pipekit.traces.memory import PARTS, Memory


def test_vertical_sync_keeps_nothing_that_nobody_reads() -> None:
    assert staleness.nothing_older_is_kept(schedules.pipedream(4, vertical_sync=True).take(12))


def test_a_version_outlives_its_reader_but_no_fresher_backward() -> None:
    assert staleness.discarded_after_fresher_backward(schedules.pipedream(3).take(9)) == (
        True,
        False,
    )
    # Both minibatches read version 0; U1 needs a second buffer, which U2 would overwrite.
    picture = "worker 0 | F0 F1 B0^ B1^ F2 B2^ F3 B3^"
    tasks = parse(picture).workers[0]
    versions = {version: (last, gone) for version, last, gone in staleness.discards(tasks)}
    assert versions[0][0] < (versions[0][1] or 99)
    assert versions[3][1] == len(tasks) - 1


def test_gradients_wait_where_the_next_stage_is_ahead() -> None:
    equal = Trace.from_schedule(schedules.pipedream(4).take(12))
    assert staleness.backward_states(equal, 4) == [1, 1, 1, 1]
    slow = schedules.parse("worker 0 | F0 F1 B0^ B1^\nworker 1 | F0 B0^ F1 B1^")
    uneven = Trace.from_schedule(slow, {Op.FORWARD: 1, Op.BACKWARD: 5, Op.UPDATE: 0})
    frame = uneven.frame.copy()
    late = (frame["op"] == "BACKWARD") & (frame["worker"] == 0)
    frame.loc[late, "end_s"] += 20
    waits = Trace(frame, "exact", "late", 2, "slots")
    assert staleness.backward_states(waits, 2)[0] == 2


def test_growth_is_what_rises_after_the_warm_up() -> None:
    rows = [[0, t, size, 0, 0, 0, 0] for t, size in enumerate([10, 20, 15, 20, 25])]
    memory = Memory(pd.DataFrame(rows, columns=["worker", "time_s", *PARTS]), "measured")
    assert staleness.high_water_growth(memory, 0.5) == pytest.approx(0.25)
    assert staleness.high_water_growth(memory, 0.75) == pytest.approx(0.25)
    flat_after = Memory(memory.frame.iloc[:4], "measured")
    assert staleness.high_water_growth(flat_after, 0.5) == 0


def test_findings_are_the_papers_counts() -> None:
    exact = {name: schedules.check(METHODS[name].take(16)) for name in PIPELINED}
    versions = {name: report.peak_versions for name, report in exact.items()}
    in_flight = {name: report.peak_in_flight for name, report in exact.items()}
    columns = {"versions (exact)": versions, "versions (measured)": versions}
    columns |= {"in flight (exact)": in_flight, "in flight (measured)": in_flight}
    stash, flying, more, older = staleness.count_findings(pd.DataFrame(columns))
    assert stash.value == flying.value == (4, 3, 2, 1)
    assert more.value == [4, 1]
    assert older.value is True
    discard, states = staleness.lifetime_findings()
    assert discard.value is False
    assert states.value == 1
    assert STASHING in versions
