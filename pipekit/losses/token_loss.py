"""The loss of networks that predict one token at each place."""

from torch import Tensor
from torch.nn import functional as F


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy over all places of all sequences.

    Args:
        logits: ``[B, T, V]``.
        targets: int64 ``[B, T]``; a place with -100 does not count.  A batch cut into microbatches
            has the whole batch's loss if each row has equally many places that count.
    """
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())  # [B T, V] and [B T]
