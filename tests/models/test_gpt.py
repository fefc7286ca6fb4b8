import pytest
import torch

from pipekit import Pipeline, schedules
from pipekit.models import LAYOUTS, gpt, token_loss

V, S = 51_200, 512


@pytest.mark.parametrize("size", LAYOUTS)
def test_parameters_are_megatrons_formula_with_a_final_norm_and_an_untied_head(size: str) -> None:
    layers, hidden, _ = LAYOUTS[size]
    model = gpt(*LAYOUTS[size], device="meta")
    formula = 12 * layers * hidden**2 * (1 + 13 / (12 * hidden)) + (V + S) * hidden
    assert sum(p.numel() for p in model.parameters()) == round(formula) + 2 * hidden + V * hidden
    assert len(model) == layers + 3


@pytest.mark.parametrize(
    ("size", "billions"), [("355M", 0.355), ("1.3B", 1.3), ("2.2B", 2.2), ("3.8B", 3.9)]
)
def test_with_a_tied_head_sizes_are_the_papers_within_3_percent(size: str, billions: float) -> None:
    model = gpt(*LAYOUTS[size], tied=True, device="meta")
    assert model.get_parameter("0.token.weight") is next(iter(model[-1].parameters()))
    tied = sum(p.numel() for p in model.parameters())
    assert tied / 1e9 == pytest.approx(billions, rel=0.03)


def test_depths_of_8_and_16_divide_the_blocks_that_the_paper_cuts_so() -> None:
    assert LAYOUTS["2.2B"].layers % 8 == 0
    assert LAYOUTS["3.8B"].layers % 16 == 0


def test_tokens_become_logits() -> None:
    tokens = torch.zeros(2, S, dtype=torch.int64, device="meta")
    assert gpt(*LAYOUTS["3.8B"], device="meta")(tokens).shape == (2, S, V)


def test_a_token_sees_none_that_come_later() -> None:
    torch.manual_seed(0)
    model = gpt(layers=2, hidden=32, heads=2, vocabulary=256, sequence=8)
    tokens = torch.randint(256, (2, 8))
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 256
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(after[:, :5], before[:, :5])
    assert not torch.isclose(after[:, 5:], before[:, 5:]).all(dim=2).any()


def test_it_begins_as_undecided_as_it_can_be() -> None:
    torch.manual_seed(0)
    model = gpt(layers=2, hidden=32, heads=2, vocabulary=256, sequence=32)
    tokens = torch.randint(256, (4, 32))
    uniform = torch.tensor(256.0).log()
    torch.testing.assert_close(token_loss(model(tokens), tokens), uniform, rtol=0.02, atol=0)


def test_one_step_of_a_pipeline_is_one_step_of_the_model() -> None:
    torch.manual_seed(0)
    model = gpt(layers=2, hidden=32, heads=2, vocabulary=256, sequence=32)
    text = torch.randint(256, (4, 33))
    tokens, following = text[:, :-1], text[:, 1:]
    pipeline = Pipeline(
        model,
        schedules.flush(2, 2).take(1),
        balance=[2, 3],
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        loss=token_loss,
    )
    run = pipeline.train([(tokens, following)])
    assert run.losses == pytest.approx([token_loss(model(tokens), following).item()])


def test_dropout_is_drawn_in_training_only() -> None:
    torch.manual_seed(0)
    model = gpt(layers=1, hidden=32, heads=2, vocabulary=256, sequence=8, dropout=0.5)
    tokens = torch.randint(256, (2, 8))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_heads_that_do_not_divide_the_hidden_size_are_refused() -> None:
    with pytest.raises(ValueError, match="3 heads cannot share a hidden size of 32"):
        gpt(layers=1, hidden=32, heads=3)


def test_sequences_without_positions_are_refused() -> None:
    model = gpt(layers=1, hidden=32, heads=2, vocabulary=256, sequence=8)
    with pytest.raises(ValueError, match="make the model with sequence=9"):
        model(torch.zeros(1, 9, dtype=torch.int64))


def test_what_is_added_up_starts_smaller_the_deeper_the_model() -> None:
    torch.manual_seed(0)
    weights = gpt(layers=8, hidden=128, heads=2, vocabulary=256, sequence=8).state_dict()
    for layer, std in [("expand", 0.02), ("contract", 0.005), ("attention.output", 0.005)]:
        assert weights[f"1.{layer}.weight"].std().item() == pytest.approx(std, rel=0.05)
