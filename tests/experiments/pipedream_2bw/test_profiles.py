import pytest
import torch

from experiments.pipedream_2bw import profiles
from pipekit.clusters import V100
from pipekit.models import LAYOUTS, GPTLayout, gpt
from pipekit.profiling import Profile


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
