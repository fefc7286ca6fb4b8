"""The systems of Figure 6 as schedules, and what the paper's GPTs need of a V100."""

from dataclasses import replace

import pytest

from experiments.pipedream_2bw.settings import FIGURE6, OPTIMIZER_STATES
from experiments.pipedream_2bw.systems import (
    FLUSH,
    GIB,
    GPIPE,
    INTER_LAYER,
    TWO_BW,
    Pipelines,
    in_flushes,
    panel,
)
from pipekit import simulate
from pipekit.clusters import Cluster, flat, two_bw_v100
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import ScheduleError, check, gpipe, parse, pipedream

BLOCK = LayerProfile("1 Block", 1.0, 2.0, 8, 100, 40, True)
HEAD = LayerProfile("6 Linear", 0.5, 1.0, 60, 20, 0)
PROFILE = Profile((*[BLOCK] * 6, HEAD), rows=2, input_bytes=8)


def job(memory: float | None = None, microbatches: int = 8, width: int = 1) -> Pipelines:
    cluster: Cluster = flat(3 * width, 1e9, memory)
    return Pipelines(PROFILE, cluster, 3, microbatches)


def test_a_batch_in_two_flushes_makes_one_update() -> None:
    table = in_flushes(2, [2, 1]).take(1)
    picture = """
        worker 0 | F0 F1 .  .  .  B0 -  B1 -  F2 .  .  .  B2 -^
        worker 1 | .  F0 F1 B0 -  B1 -  .  .  .  F2 B2 -^
    """
    assert table.workers == parse(picture).workers
    assert check(table).peak_in_flight == (2, 2)


def test_one_flush_is_gpipe() -> None:
    assert in_flushes(3, [5]) == gpipe(3, 5)


def test_an_empty_flush_is_refused() -> None:
    with pytest.raises(ScheduleError, match="microbatches"):
        in_flushes(2, [2, 0])


def test_every_system_runs_every_microbatch_of_every_pipeline() -> None:
    for system in (INTER_LAYER, GPIPE, FLUSH, TWO_BW):
        table = job(width=2).schedule(system, 2)
        check(table)
        assert (table.stages, len(table.workers), table.microbatches) == (3, 6, 2 * 2 * 8)
    assert job(width=2).batch == 2 * 2 * 8


def test_bytes_are_the_simulated_ones_where_the_loss_is_recomputed() -> None:
    two_bw = GIB * job().held(TWO_BW, keeps_loss=False)
    plan = Plan.by_hand(job().balance, rows=2, recompute="always")
    trace = simulate(job().schedule(TWO_BW, 3), PROFILE, plan, optimizer_states=6)
    assert trace.memory is not None
    two_bw[1:] -= 8  # an input that has arrived, and waits
    two_bw[-1] -= 2 * HEAD.output_bytes  # the loss's, which the simulator does not know
    assert trace.memory.peak_bytes == tuple(two_bw)


def test_gpipe_admits_what_fits_with_logits_and_log_probabilities() -> None:
    """The last stage: 16 bytes for each 2 of 220, inputs of 8, 80 saved, logits of 60 + 120."""
    fixed = 8 * 220 + 80
    for count in (1, 2, 5):
        room = fixed + count * (8 + 60 + 120)
        assert job(room).admitted() == count
        assert job(room - 1).admitted() == max(count - 1, 1)
    assert job(fixed + 8 * 8 + 180).admitted(keeps_loss=False) == 8


def test_flushes_are_few_and_equal() -> None:
    room = 8 * 220 + 80 + 3 * 188
    assert job(room).flushes() == [3, 3, 2]
    assert job(room, microbatches=2).flushes() == [2]
    assert job().flushes() == [8]


def test_recomputation_is_part_of_the_backward() -> None:
    assert [x.backward_s for x in job().timed.layers] == [3.0] * 6 + [1.5]
    assert replace(job().timed, layers=PROFILE.layers) == PROFILE


def test_smaller_batches_have_as_many_microbatches_as_stages() -> None:
    for letter, (_, servers, depth, batches) in FIGURE6.items():
        small, large = (panel(letter)[batch] for batch in batches)
        assert (small.batch, large.batch) == batches
        assert (small.width * depth, small.microbatches) == (8 * servers, depth)
        assert small.profile.rows == 8


W, A, I = 2.0 * GIB, 5.0 * GIB, 1.0 * GIB  # noqa: E741  a layer's weights, activations, output
LAYER = LayerProfile("layer", 1, 2, I, W, saved_bytes=A)
JOB = Pipelines(Profile((LAYER,) * 3, input_bytes=I), two_bw_v100(), 3, 4)
FIXED = W / GIB * (1 + OPTIMIZER_STATES)  # gradients and the optimizer


@pytest.mark.parametrize(
    ("system", "versions", "inputs"),
    [  # those in flight on the stage before, but for the first stage
        ("inter-layer MP", 1, [1, 1, 1]),
        ("PipeDream-Flush", 1, [3, 3, 2]),
        ("PipeDream-2BW", 2, [3, 3, 2]),
        ("GPipe", 1, [4, 4, 4]),
    ],
)
def test_a_stage_holds_what_can_be_added_up_by_hand(
    system: str, versions: int, inputs: list[int]
) -> None:
    found = JOB.held(system, keeps_loss=False).tolist()
    made = [6, 6, 6 + 2]  # activations and output; on the last stage the loss, twice as large
    assert found == [FIXED + 2 * versions + k + a for k, a in zip(inputs, made, strict=True)]


def test_logits_and_loss_are_kept_for_each_microbatch_in_flight() -> None:
    more = JOB.held("GPipe") - JOB.held("GPipe", keeps_loss=False)
    assert more.tolist() == [0, 0, 3 * (1 + 2)]
    assert JOB.held("PipeDream-2BW")[2] == JOB.held("PipeDream-2BW", keeps_loss=False)[2]


def test_without_recomputation_all_is_kept_for_each() -> None:
    found = JOB.held("GPipe", recompute=False)
    assert found.tolist() == [FIXED + 2 + 4 * (1 + 6 + loss) for loss in (0, 0, 2)]


def test_pipedream_has_a_version_for_each_minibatch_in_flight() -> None:
    found = JOB.held_by(check(pipedream(3).take(6)))
    assert found.tolist() == [FIXED + 3 * 2 + 3 + 6, FIXED + 2 * 2 + 3 + 6, FIXED + 2 + 2 + 6 + 2]


def test_more_bytes_are_of_each_parameter() -> None:
    more = JOB.held("PipeDream-2BW", extra=4) - JOB.held("PipeDream-2BW")
    assert more.tolist() == [4.0] * 3  # 2 GB of parameters in 2 bytes each
