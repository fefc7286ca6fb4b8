"""The systems of Figure 6 as schedules, and what the paper's GPTs need of a V100."""

import pytest
import torch

from experiments.pipedream_2bw import profiles, systems
from experiments.pipedream_2bw.systems import (
    FLUSH,
    GIB,
    GPIPE,
    INTER_LAYER,
    TWO_BW,
    Pipelines,
    in_flushes,
)
from pipekit.clusters import V100, Cluster, Level, flat, two_bw_v100
from pipekit.models import LAYOUTS, GPTLayout, gpt
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import check, parse

BLOCK = LayerProfile("1 Block", 1.0, 2.0, 8, 100, 40, True)
HEAD = LayerProfile("6 Linear", 0.5, 1.0, 60, 20, 120)  # saved: what the loss keeps of logits
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


def test_every_system_runs_every_microbatch_of_every_pipeline() -> None:
    for system in (INTER_LAYER, GPIPE, FLUSH, TWO_BW):
        table = job(width=2).schedule(system, 2)
        check(table)
        assert (table.stages, len(table.workers), table.microbatches) == (3, 6, 2 * 2 * 8)
    assert job(width=2).batch == 2 * 2 * 8


def test_gpipe_admits_what_fits_with_the_losses() -> None:
    """The last stage: 20 bytes for each 2 of 220, 80 saved, logits of 60, inputs of 8."""
    fixed = 10 * 220 + 80 + 60
    for count in (1, 2, 5):
        room = fixed + count * (8 + 120)
        assert job(room).admitted() == count
        assert job(room - 1).admitted() == max(count - 1, 1)


W, A, I = 2.0 * GIB, 5.0 * GIB, 1.0 * GIB  # noqa: E741  a layer's weights, activations, output
LAYER = LayerProfile("layer", 1, 2, I, W, saved_bytes=A)
JOB = Pipelines(Profile((LAYER,) * 3, input_bytes=I), two_bw_v100(), 3, 4)
FIXED = 20  # GB: 20 bytes of each parameter, whose weight has 2


@pytest.mark.parametrize(
    ("system", "versions", "inputs", "sent"),
    [  # inputs are those in flight on the stage before, but for the first stage
        ("inter-layer MP", 1, [1, 1, 1], [0, 0, 0]),
        ("PipeDream-Flush", 1, [3, 3, 2], [2, 1, 0]),
        ("PipeDream-2BW", 2, [3, 3, 2], [2, 1, 0]),
        ("GPipe", 1, [4, 4, 4], [3, 3, 3 * 2]),  # of the last stage probabilities, in float32
    ],
)
def test_a_stage_holds_what_can_be_added_up_by_hand(
    system: str, versions: int, inputs: list[int], sent: list[int]
) -> None:
    found = JOB.held(system).tolist()
    made = FIXED + 4 * (versions - 1) + 5 + 1  # activations and output of one microbatch
    assert found == [made + k + s for k, s in zip(inputs, sent, strict=True)]


SENDS = LayerProfile("1 Block", 1.0, 2.0, 8e6, 100, 40, True)
FREE = Pipelines(Profile((SENDS,) * 4, rows=2), flat(4, float("inf")), 4, 8)
PASSES = 1 + 1 + 2  # forward, forward again, backward


def test_equal_stages_take_what_the_closed_forms_say() -> None:
    m, d = 8, 4
    expected = {
        INTER_LAYER: m * d * PASSES,
        GPIPE: (m + d - 1) * PASSES,
        FLUSH: (m + d - 1) * PASSES,
        TWO_BW: m * PASSES,
    }
    for system, seconds in expected.items():
        assert systems.simulated(FREE, system) == pytest.approx(seconds)
    table = systems.rates([FREE])
    assert table.loc[16, FLUSH] == pytest.approx(16 / expected[FLUSH])


def test_tensor_model_parallelism_waits_for_six_all_reduces_a_block() -> None:
    levels = Level("inner", 2, 1e6), Level("outer", 4, 1e5)
    cluster = Cluster("two by four", V100, levels)
    job = Pipelines(FREE.profile, cluster, depth=2, microbatches=3)
    compute = 4 * PASSES / 2
    exchanged = 4 * 6 * 2 * (1 / 2) * 8e6 / 1e6
    gradients = 2 * 2 * (3 / 4) * (400 / 2) / 1e5  # two workers of a server share its link
    expected = 3 * (compute + exchanged) + gradients
    assert systems.tensor_mp_seconds(job) == pytest.approx(expected)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAYOUTS, "tiny", GPTLayout(3, 64, 4))


def test_a_model_extrapolated_from_one_block_is_the_model() -> None:
    with torch.device("meta"):
        whole = Profile.analytic(
            gpt(*LAYOUTS["tiny"]),
            torch.zeros(2, 512, dtype=torch.int64),
            V100,
            dtype="float16",
            efficiency=profiles.efficiency(),
            memory_efficiency=profiles.MEMORY_EFFICIENCY,
        )
    ours = profiles.gpt_profile("tiny", 2)
    assert [layer.name for layer in ours.layers] == [layer.name for layer in whole.layers]
    for found, expected in zip(ours.layers, whole.layers, strict=True):
        assert found.parameter_bytes == expected.parameter_bytes
        assert found.output_bytes == expected.output_bytes
        assert found.flops == expected.flops
    scores = 5 * 2 * 4 * 512**2  # 5 a s^2 a row
    assert ours.layers[2].saved_bytes == whole.layers[2].saved_bytes + scores
    probabilities = 4 * 2 * 512 * 51_200
    assert ours.layers[-1].saved_bytes == whole.layers[-1].saved_bytes + probabilities


def test_gradients_and_updates_cost_the_same_whatever_the_rows() -> None:
    one, eight = (profiles.gpt_profile("tiny", rows).layers[1] for rows in (1, 8))
    assert eight.forward_s == pytest.approx(8 * one.forward_s)
    adding = (8 * one.backward_s - eight.backward_s) / 7
    parameters = one.parameter_bytes / 2
    assert adding == pytest.approx(6 * parameters / (0.75 * 900e9))
    assert one.update_s == eight.update_s == pytest.approx(28 * parameters / (0.75 * 900e9))
