"""parcae: with one stage a step is a sum; more replicas add a ring's all-reduce."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.published.sets.parcae import PARCAE, ParcaeRow, filled
from pipekit.performance.constants import Constants
from pipekit.planning.balance import balance

GPT = ParcaeRow("made", "gpt-1.5b", 1, 1, 1, 8, 48, 1600, 25, 1024, 50257)
CONSTANTS = Constants(0.6, 6e-3)


@pytest.fixture(autouse=True)
def no_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIPEKIT_MEASURED", raising=False)


def seconds(row: ParcaeRow, constants: Constants = CONSTANTS) -> float:
    found = PARCAE.predict(row, constants).step_s
    assert found is not None
    return found


def test_microbatches_of_one_stage_follow_one_another() -> None:
    few, more, most = (seconds(replace(GPT, microbatches_per_replica=m)) for m in (8, 16, 24))
    assert most - more == pytest.approx(more - few)


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
    found = PARCAE.predicted(replace(GPT, hidden_size=None), lambda _: CONSTANTS)
    assert found.step_s is None
    assert "gpt-1.5b needs hidden_size" in found.basis


def test_image_models_need_no_shape() -> None:
    images = ParcaeRow("made", "vgg19", 2, 4, 32, 32, None, None, None, None, None)
    assert seconds(images) > seconds(replace(images, microbatches_per_replica=16))


@given(st.integers(1, 80), st.integers(1, 40))
def test_filled_stages_have_the_least_maximum_and_come_first(items: int, stages: int) -> None:
    found = filled(items, stages)
    assert len(found) == stages
    assert sum(found) == items
    assert found == sorted(found, reverse=True)
    assert found[0] == max(balance([1.0] * items, min(stages, items)))
    assert sum(1 for count in found if count) == ceil(items / found[0])  # no stage is half idle
