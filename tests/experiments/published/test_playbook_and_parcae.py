"""hf_playbook and parcae by hand: sizes, deals and memory; sums of one stage, rings of several replicas."""

from dataclasses import replace
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.published.sets.hf_playbook import PlaybookRow, by_thresholds
from experiments.published.sets.parcae import ParcaeRow, filled
from pipekit.performance.constants import Constants
from pipekit.planning.balance import balance

ROW = PlaybookRow("made", 4, 2, 4, 1, "8B", 4, 128, 256, 1, 4096)
CONSTANTS = Constants(0.41, 5e-3)


@pytest.mark.parametrize(
    ("model", "billions"), [("1B", 1.9), ("3B", 4.7), ("8B", 9.9), ("80B", 85)]
)
def test_models_have_about_the_parameters_that_mfu_implies(model: str, billions: float) -> None:
    # The counts are those that the set's README derives, attention's products among them.
    shape = replace(ROW, model=model).shape
    tables = 2 * shape.vocabulary * shape.hidden
    scores = shape.layers * shape.hidden * 4096  # 6 s h of a layer's FLOPs a token, by 6
    assert (shape.dense_parameters + tables + scores) / 1e9 == pytest.approx(billions, rel=0.11)


def test_layers_are_dealt_in_order_and_the_head_counts_as_layers() -> None:
    # A head of 2.2 blocks: stages end once 8.6, 17.1 and 25.7 of 34.2 blocks are exceeded.
    assert [stage.blocks for stage in ROW.stages] == [9, 9, 8, 6]
    assert [stage.has_head for stage in ROW.stages] == [False, False, False, True]
    assert {*ROW.dealt} == {*range(ROW.pp)}


def test_a_rank_without_an_item_ends_the_run() -> None:
    deep = replace(ROW, model="1B", pp=16)
    assert len({*deep.dealt}) < deep.pp
    assert deep.predict(CONSTANTS).fits == pytest.approx(0.01)


def test_zero_shards_the_optimizer_only() -> None:
    alone = replace(ROW, dp=1, tp=1, pp=1)
    (stage,) = alone.stages
    weights = stage.blocks * alone.shape.dense_parameters / 32 + 2 * 131072 * 4096
    whole, sharded = (
        replace(alone, dp=8, zero_stage=zero).predict(CONSTANTS).memory_bytes or 0.0
        for zero in (0, 1)
    )
    assert whole - sharded == pytest.approx(12 * weights * 7 / 8)
    with pytest.raises(ValueError, match="zero_stage must be one of 0, 1, not 2"):
        replace(alone, zero_stage=2).predict(CONSTANTS)


def test_a_stalled_receive_takes_half_a_second() -> None:
    few = replace(ROW, pp=2, grad_accumulation=4)
    calm, stalled = (
        replace(few, nodes=nodes).predict(CONSTANTS).step_s or 0.0 for nodes in (8, 64)
    )
    # Stage 1 receives each forward and stage 0 each backward: 4 of one, and the first of the other.
    assert stalled - calm == pytest.approx(0.5 * 5)


def test_six_blocks_and_a_head_on_two_stages() -> None:
    # The sum is 8, so that stage 0 ends behind the item that takes it past 4: block 5.
    costs = [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 2.0, 0.0]
    assert by_thresholds(costs, 2) == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.integers(1, 12))
def test_thresholds_deal_in_order_to_stages_that_there_are(costs: list[float], stages: int) -> None:
    found = by_thresholds(costs, stages)
    assert len(found) == len(costs)
    assert found[0] == 0
    assert all(0 <= b - a <= 1 for a, b in pairwise(found))
    assert found[-1] < stages


GPT = ParcaeRow("made", "gpt-1.5b", 1, 1, 1, 8, 48, 1600, 25, 1024, 50257)
PARCAE_CONSTANTS = Constants(0.6, 6e-3)


@pytest.fixture(autouse=True)
def no_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIPEKIT_MEASURED", raising=False)


def seconds(row: ParcaeRow, constants: Constants = PARCAE_CONSTANTS) -> float:
    found = row.predict(constants).step_s
    assert found is not None
    return found


def test_a_host_that_is_slow_enough_is_all_that_counts() -> None:
    one, two = (seconds(GPT, Constants(0.6, host)) for host in (1.0, 2.0))
    assert two - one == pytest.approx(8 * 48)  # a second more for each of 8 x 48 blocks


def test_replicas_add_a_ring_over_the_line() -> None:
    weights = 48 * 12 * 1600**2 + 50257 * 1600  # one table: embedding and head are tied
    line = 10e9 / 8 * 1448 / 1538
    found = seconds(replace(GPT, dp=4)) - seconds(GPT)
    assert found == pytest.approx(2 * 3 / 4 * 2 * weights / line)


def test_workers_without_layers_make_a_pipeline_no_faster() -> None:
    assert seconds(replace(GPT, pp=40)) > seconds(replace(GPT, pp=25))  # 49 items: 25 pairs


def test_a_transformer_without_its_shape_is_refused() -> None:
    found = replace(GPT, hidden_size=0).predicted(lambda _: PARCAE_CONSTANTS)
    assert found.step_s is None
    assert "gpt-1.5b needs hidden_size" in found.basis


def test_image_models_need_no_shape() -> None:
    images = ParcaeRow("made", "vgg19", 2, 4, 32, 32, None, 0, 0, 0, 0)
    assert seconds(images) > seconds(replace(images, microbatches_per_replica=16))


@given(st.integers(1, 80), st.integers(1, 40))
def test_filled_stages_have_the_least_maximum_and_come_first(items: int, stages: int) -> None:
    found = filled(items, stages)
    assert len(found) == stages
    assert sum(found) == items
    assert found == sorted(found, reverse=True)
    assert found[0] == max(balance([1.0] * items, min(stages, items)))
    assert sum(1 for count in found if count) == ceil(items / found[0])  # no stage is half idle
