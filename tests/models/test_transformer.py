"""GPT, BERT, and the loss of tokens."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipekit.models import LAYOUTS, bert_large, gpt, token_loss

V, S = 51_200, 512


def small_gpt(**options: Any) -> nn.Sequential:
    torch.manual_seed(0)
    return gpt(
        **({"layers": 2, "hidden": 32, "heads": 2, "vocabulary": 256, "sequence": 8} | options)
    )


def small_bert() -> nn.Sequential:
    torch.manual_seed(0)
    return bert_large(2, 32, 2, vocabulary=256, sequence=8, dropout=0.0)


def with_another_token(model: nn.Sequential) -> tuple[Tensor, Tensor]:
    """Return what a model says of two texts that differ in their sixth token."""
    tokens = torch.randint(256, (2, 8))
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 256
    return model(tokens), model(changed)


def megatrons_formula(size: str) -> int:
    layers, hidden, _ = LAYOUTS[size]
    return round(12 * layers * hidden**2 * (1 + 13 / (12 * hidden)) + (V + S) * hidden)


def test_parameters_are_megatrons_formula_a_final_norm_and_a_head() -> None:
    layers, hidden, _ = LAYOUTS["355M"]
    model = gpt(*LAYOUTS["355M"], device="meta")
    expected = megatrons_formula("355M") + 2 * hidden + V * hidden
    assert sum(p.numel() for p in model.parameters()) == expected
    assert len(model) == layers + 3


@pytest.mark.parametrize(
    ("size", "billions"), [("355M", 0.355), ("1.3B", 1.3), ("2.2B", 2.2), ("3.8B", 3.9)]
)
def test_with_a_tied_head_they_are_the_papers_within_3_percent(size: str, billions: float) -> None:
    assert megatrons_formula(size) / 1e9 == pytest.approx(billions, rel=0.03)


def test_a_tied_heads_weights_are_the_token_embeddings() -> None:
    model = small_gpt(tied=True)
    assert model.get_parameter("0.token.weight") is next(iter(model[-1].parameters()))


def test_parameters_are_as_published_and_those_of_an_untied_head() -> None:
    untied, tied = (bert_large(tied=tied, device="meta") for tied in (False, True))
    parameters = sum(p.numel() for p in tied.parameters())
    assert parameters == 335_174_458
    assert parameters == pytest.approx(340e6, rel=0.02)
    assert sum(p.numel() for p in untied.parameters()) == parameters + 30_522 * 1024
    assert len(untied) == len(tied) == 29


def test_a_token_of_gpt_sees_none_that_come_later() -> None:
    before, after = with_another_token(small_gpt())
    torch.testing.assert_close(after[:, :5], before[:, :5])
    assert not torch.isclose(after[:, 5:], before[:, 5:]).all(dim=2).any()


def test_a_token_of_bert_sees_all_others() -> None:
    before, after = with_another_token(small_bert())
    assert not torch.isclose(before, after).all(dim=2).any()


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="3 heads cannot share a hidden size of 32"):
        small_gpt(heads=3)
    with pytest.raises(ValueError, match="make the model with sequence=9"):
        small_gpt()(torch.zeros(1, 9, dtype=torch.int64))


def test_places_with_minus_100_do_not_count() -> None:
    logits, targets = torch.randn(3, 4, 5), torch.randint(5, (3, 4))
    targets[:, 2:] = -100
    expected = token_loss(logits[:, :2], targets[:, :2])
    torch.testing.assert_close(token_loss(logits, targets), expected)
