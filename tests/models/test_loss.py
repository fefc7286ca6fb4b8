import pytest
import torch
from torch import nn

from pipekit.models import token_loss


def test_it_is_the_mean_over_all_places() -> None:
    logits, targets = torch.randn(3, 4, 5), torch.randint(5, (3, 4))
    chosen = logits.log_softmax(dim=2).gather(2, targets[..., None])
    torch.testing.assert_close(token_loss(logits, targets), -chosen.mean())


def test_places_with_minus_100_do_not_count() -> None:
    logits, targets = torch.randn(3, 4, 5), torch.randint(5, (3, 4))
    targets[:, 2:] = -100
    expected = token_loss(logits[:, :2], targets[:, :2])
    torch.testing.assert_close(token_loss(logits, targets), expected)


def test_microbatches_add_up_to_the_batch_where_rows_have_equally_many_places() -> None:
    torch.manual_seed(0)
    network = nn.Linear(6, 9)
    inputs, targets = torch.randn(8, 10, 6), torch.randint(9, (8, 10))
    unknown = torch.rand(8, 10).argsort(dim=1) >= 3
    targets[unknown] = -100
    whole = token_loss(network(inputs), targets)
    whole.backward()
    expected = network.weight.grad
    network.weight.grad, total = None, 0.0
    for part, target in zip(inputs.split(3), targets.split(3), strict=True):
        loss = token_loss(network(part), target) * len(part) / len(inputs)
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(whole.item())
    torch.testing.assert_close(network.weight.grad, expected)
