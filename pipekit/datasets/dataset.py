"""A training and a test set in memory, cut into batches."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pipekit.devices import CPU

Batch = tuple[Tensor, Tensor]  # (input, target), rows first in both


class Alteration(NamedTuple):
    """What is done to each batch of a data set, at random.

    Attributes:
        name: keeps its random numbers apart from others of the same seed.
        of: the altered batch, by a batch and a generator.
        in_tests: whether the test rows are altered, too, in the same way every time.
    """

    name: str
    of: Callable[[Batch, torch.Generator], Batch]
    in_tests: bool = False


@dataclass(frozen=True)
class Dataset:
    """A training and a test set held in memory.

    Attributes:
        name, source: for titles; where the data is from.
        train_inputs, test_inputs: images ``float32 [N, 1, height, width]`` in 0..1, or tokens
            ``int64 [N, T]``.
        train_targets, test_targets: classes ``int64 [N]``, or tokens to predict ``int64 [N, T]``.
        alteration: of each batch, if there is one.
    """

    name: str
    source: str
    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    alteration: Alteration | None = None

    def batches(self, batch_rows: int, seed: int = 0, epoch: int = 0) -> list[Batch]:
        """Return one epoch of training batches, shuffled as a pure function of (seed, epoch).

        Rows that do not fill a batch are left out.

        Args:
            batch_rows: rows a batch.
            seed, epoch: the run's seed; the epoch's index, from 0.

        Raises:
            ValueError: there is not one full batch.
        """
        rows = len(self.train_inputs)
        check_rows("batch_rows", batch_rows, rows, f"{self.name}'s training rows")
        order = torch.randperm(rows, generator=_generator(f"{seed}/{epoch}"), device=CPU)
        order = order[: rows - rows % batch_rows]
        batches = [(self.train_inputs[o], self.train_targets[o]) for o in order.split(batch_rows)]
        if self.alteration is None:
            return batches
        chance = _generator(f"{self.alteration.name}/{seed}/{epoch}")
        return [self.alteration.of(batch, chance) for batch in batches]

    def test_batches(self, batch_rows: int) -> list[Batch]:
        """Return all test rows in their order; the last batch may be smaller.

        Raises:
            ValueError: ``batch_rows`` is below 1.
        """
        if batch_rows < 1:
            raise ValueError(f"batch_rows must be at least 1, not {batch_rows}")
        rows = self.test_inputs, self.test_targets
        if self.alteration and self.alteration.in_tests:
            rows = self.alteration.of(rows, torch.Generator().manual_seed(0))
        return list(zip(*(each.split(batch_rows) for each in rows), strict=True))


def _generator(seed: str) -> torch.Generator:
    # crc32 keeps "0/1" and "1/0" apart, which their sum would not.
    return torch.Generator().manual_seed(zlib.crc32(seed.encode()))


def check_rows(argument: str, value: int, available: int, what: str) -> None:
    """Raise ValueError if a count is not 1 to ``available``."""
    if not 1 <= value <= available:
        raise ValueError(f"{argument} must be 1 to {available} ({what}), not {value}")
