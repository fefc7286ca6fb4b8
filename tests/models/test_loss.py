import torch

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
