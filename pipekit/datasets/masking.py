"""Words to guess: the masked language model of BERT (Devlin et al., 2019, section 3.1)."""

from dataclasses import replace
from functools import partial

import torch

from pipekit.datasets.dataset import Alteration, Batch, Dataset
from pipekit.datasets.text import BYTES

MASK = BYTES
"""The token of a masked byte, after all bytes: a model of masked text has a vocabulary of 257."""
IGNORED = -100
"""The target of a token that is not to be guessed, as PyTorch's cross entropy has it."""
_MASKED, _RANDOM = 0.8, 0.1


def masked(text: Dataset, share: float = 0.15) -> Dataset:
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
    masks = Alteration("mask", partial(_masked, guessed), in_tests=True)
    return replace(text, name=f"masked {text.name}", alteration=masks)


def _masked(guessed: int, batch: Batch, generator: torch.Generator) -> Batch:
    """Return tokens ``[B, T]`` with some of them hidden, and what to guess there ``[B, T]``."""
    tokens, _ = batch
    order = torch.rand(tokens.shape, generator=generator).argsort(dim=1)
    places = order[:, :guessed]  # [B, guessed]
    truth = tokens.gather(1, places)
    what = torch.rand(places.shape, generator=generator)
    shown = torch.where(what < _MASKED, MASK, truth)
    wrong = torch.randint(BYTES, places.shape, generator=generator)
    shown = torch.where(what >= 1 - _RANDOM, wrong, shown)
    targets = torch.full_like(tokens, IGNORED).scatter(1, places, truth)
    return tokens.scatter(1, places, shown), targets
