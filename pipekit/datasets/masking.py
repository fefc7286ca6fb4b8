"""Words to guess: the masked language model of BERT (Devlin et al., 2019, section 3.1)."""

import zlib
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from pipekit.datasets.dataset import Batch, Dataset
from pipekit.datasets.text import BYTES

MASK = BYTES
"""The token of a masked byte, after all bytes: a model of masked text has a vocabulary of 257."""
IGNORED = -100
"""The target of a token that is not to be guessed, as PyTorch's cross entropy has it."""
_MASKED, _RANDOM = 0.8, 0.1


@dataclass(frozen=True)
class MaskedText(Dataset):
    """A text whose batches have tokens to guess; see :func:`pipekit.datasets.masked`.

    Attributes:
        guessed: tokens of each row.
    """

    guessed: int

    def batches(
        self, batch_rows: int, seed: int = 0, epoch: int = 0, drop_last: bool = True
    ) -> list[Batch]:
        """Return one epoch's batches, masked; see :meth:`pipekit.datasets.Dataset.batches`.

        Pairs of tokens ``[B, T]``, some of them hidden, and what to guess there ``[B, T]``.
        """
        generator = torch.Generator().manual_seed(zlib.crc32(f"mask/{seed}/{epoch}".encode()))
        batches = super().batches(batch_rows, seed, epoch, drop_last)
        return [self._masked(tokens, generator) for tokens, _ in batches]

    def test_batches(self, batch_rows: int) -> list[Batch]:
        """Return all test rows in their order, the same tokens masked every time."""
        tokens, targets = self._masked(self.test_inputs, torch.Generator().manual_seed(0))
        whole = Dataset(self.name, self.source, tokens, targets, tokens, targets)
        return whole.test_batches(batch_rows)

    def _masked(self, tokens: Tensor, generator: torch.Generator) -> Batch:
        """Return tokens ``[B, T]`` with some of them hidden, and what to guess there ``[B, T]``."""
        order = torch.rand(tokens.shape, generator=generator).argsort(dim=1)
        places = order[:, : self.guessed]  # [B, guessed]
        truth = tokens.gather(1, places)
        what = torch.rand(places.shape, generator=generator)
        shown = torch.where(what < _MASKED, MASK, truth)
        wrong = torch.randint(BYTES, places.shape, generator=generator)
        shown = torch.where(what >= 1 - _RANDOM, wrong, shown)
        targets = torch.full_like(tokens, IGNORED).scatter(1, places, truth)
        return tokens.scatter(1, places, shown), targets


def masked(text: Dataset, share: float = 0.15) -> MaskedText:
    """Return a text with some bytes to guess from those on both sides, anew in every epoch.

    Of the bytes to guess 80 % are hidden, 10 % replaced by a random byte and 10 % left as they are.
    Every row has equally many, so that the mean loss over a batch is the mean over its rows also
    where it is cut into microbatches.

    Args:
        text: of :func:`python_source` or :func:`text_file`.
        share: of a row's bytes, to be guessed.

    Raises:
        ValueError: no byte of a row would be guessed, or more than all.
    """
    length = text.train_inputs.shape[1]
    guessed = round(share * length)
    if not 1 <= guessed <= length:
        raise ValueError(
            f"a share of {share:g} of {length} bytes is {guessed}: choose one that leaves 1 to "
            f"{length} to guess"
        )
    own = {field.name: getattr(text, field.name) for field in fields(Dataset)}
    return MaskedText(**own | {"name": f"masked {text.name}"}, guessed=guessed)
