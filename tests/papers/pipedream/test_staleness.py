import pandas as pd
import pytest
import torch
from torch import nn

from pipekit import Plan, Profile, schedules
from pipekit.clusters import flat
from pipekit.papers.pipedream import staleness
from pipekit.schedules import Op, parse
from pipekit.traces import Trace
from pipekit.traces.memory import PARTS, Memory


@pytest.fixture(scope="module")
def study() -> staleness.Study:
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(5, 5), nn.Tanh())]
    shape = 4, 5
    data = [
        (torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64))
        for _ in range(6)
    ]
    return staleness.Study(nn.Sequential(*layers).double(), [2] * 3, data, nn.MSELoss(), 0.5)


def test_the_engine_replays_the_equation_and_not_the_text(study: staleness.Study) -> None:
    engine = study.engine_history(lambda n: schedules.pipedream(3, n))
    delays = staleness.stashing_delays(3)
    assert delays == [2, 1, 0]
    assert staleness.largest_relative_difference(engine, study.replay(delays)) == 0
    text = study.replay([delay + 1 for delay in delays])
    assert staleness.largest_relative_difference(engine, text) > 1e-3


def test_only_stashing_follows_a_gradient(study: staleness.Study) -> None:
    old = [lambda t, delay=delay: t - delay for delay in staleness.stashing_delays(3)]
    new = [lambda t: t] * 3
    kept = study.engine_history(lambda n: schedules.pipedream(3, n))
    lost = study.engine_history(lambda n: schedules.pipedream(3, n, stashing=False))
    assert max(study.gradient_errors(kept, old)) < 1e-12
    assert min(study.gradient_errors(lost, old)) > 1e-3
    assert min(study.gradient_errors(lost, new)) > 1e-3


def test_versions_of_the_papers_fifth_minibatch() -> None:
    stashed, naive = (schedules.pipedream(4, 9, stashing=on) for on in (True, False))
    synced = schedules.pipedream(4, 9, vertical_sync=True)
    assert staleness.versions(stashed, Op.BACKWARD, 4) == [1, 2, 3, 4]
    assert staleness.versions(naive, Op.BACKWARD, 4) == [4, 4, 4, 4]
    assert staleness.versions(synced, Op.FORWARD, 4) == [1, 1, 1, 1]
    assert staleness.interleaved_updates(naive, 4) == [3, 2, 1, 0]


def test_vertical_sync_keeps_nothing_that_nobody_reads() -> None:
    assert staleness.nothing_older_is_kept(schedules.pipedream(4, 12, vertical_sync=True))


def test_a_version_outlives_its_reader_but_no_fresher_backward() -> None:
    assert staleness.discarded_after_fresher_backward(schedules.pipedream(3, 9)) == (True, False)
    # Both minibatches read version 0; U1 needs a second buffer, which U2 would overwrite.
    picture = "worker 0 | F0 F1 B0^ B1^ F2 B2^ F3 B3^"
    tasks = parse(picture).workers[0]
    versions = {version: (last, gone) for version, last, gone in staleness.discards(tasks)}
    assert versions[0][0] < (versions[0][1] or 99)
    assert versions[3][1] == len(tasks) - 1


def test_gradients_wait_where_the_next_stage_is_ahead() -> None:
    equal = Trace.from_schedule(schedules.pipedream(4, 12))
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


@pytest.mark.parametrize("replicas", [2, 3])
def test_shards_have_every_parameter_once(replicas: int) -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2))
    batches = [(torch.randn(2, 5), torch.randn(2, 2))] * (2 * replicas + 1)
    assert staleness.misplaced_parameters(model, batches, replicas) == 0


def test_gradients_leave_before_the_backward_ends() -> None:
    profile = Profile.uniform(3, 0.005, 0.02, parameter_bytes=30e6)
    sent, ended = staleness.first_send(profile, Plan.by_hand([3], replicas=[2]), flat(2, 1e13), 4)
    assert 0.02 <= sent < ended
    assert ended >= 0.06 * 0.99
