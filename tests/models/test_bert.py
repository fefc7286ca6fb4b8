import pytest
import torch
from torch import nn

from pipekit import Pipeline, schedules
from pipekit.models import bert_large, token_loss


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return bert_large(layers=2, hidden=32, heads=2, vocabulary=256, sequence=8, dropout=0.0)


def test_parameters_are_as_published_and_those_of_an_untied_head() -> None:
    untied, tied = (bert_large(tied=tied, device="meta") for tied in (False, True))
    parameters = sum(p.numel() for p in tied.parameters())
    assert parameters == 335_174_458
    assert parameters == pytest.approx(340e6, rel=0.02)
    assert sum(p.numel() for p in untied.parameters()) == parameters + 30_522 * 1024
    assert len(untied) == len(tied) == 29


def test_tokens_become_logits() -> None:
    tokens = torch.zeros(2, 512, dtype=torch.int64, device="meta")
    assert bert_large(device="meta")(tokens).shape == (2, 512, 30_522)


def test_every_token_sees_all_others() -> None:
    model = small()
    tokens = torch.randint(256, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 256
    assert not torch.isclose(model(tokens), model(changed)).all(dim=2).any()


def test_blocks_normalise_their_sums() -> None:
    x = small()[:2](torch.randint(256, (1, 8)))
    torch.testing.assert_close(x.mean(dim=2), torch.zeros(1, 8), atol=1e-5, rtol=0)


def test_masked_words_train_in_a_pipeline() -> None:
    tokens = torch.randint(1, 256, (4, 8))
    masked = tokens.clone()
    masked[:, ::4] = 0
    targets = torch.where(masked == 0, tokens, -100)
    pipeline = Pipeline(
        small(),
        schedules.flush(2, 2).take(3),
        balance=[3, 4],
        optimizer=lambda p: torch.optim.Adam(p, lr=0.01),
        loss=token_loss,
    )
    run = pipeline.train([(masked, targets)] * 3)
    assert run.losses[-1] < run.losses[0]
