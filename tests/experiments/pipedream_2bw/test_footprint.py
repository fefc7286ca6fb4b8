"""What the paper's GPTs need of a V100, by system."""

import pytest

from experiments.pipedream_2bw.settings import OPTIMIZER_STATES
from experiments.pipedream_2bw.systems import GIB, Pipelines
from pipekit.clusters import two_bw_v100
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import check, pipedream

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
