"""A training and a test set in memory, cut into batches."""

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor]
"""(input, target), rows first in both."""


@dataclass(frozen=True)
class Dataset:
    """A training and a test set held in memory.

    Attributes:
        name: for titles.
        source: where the data is from.
        train_inputs, test_inputs: a row an example: images ``float32 [N, 1, height, width]`` in
            0..1, or tokens ``int64 [N, T]``.
        train_targets, test_targets: classes ``int64 [N]``, or the tokens to predict
            ``int64 [N, T]``.
    """

    name: str
    source: str
    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor

    def batches(
        self, batch_rows: int, seed: int = 0, epoch: int = 0, drop_last: bool = True
    ) -> list[Batch]:
        """Return one epoch of training batches, shuffled as a pure function of (seed, epoch).

        Args:
            batch_rows: rows a batch.
            seed: the run's seed.
            epoch: index of the epoch, from 0.
            drop_last: leave out the rows that do not fill a batch.

        Raises:
            ValueError: there is not one full batch.
        """
        rows = len(self.train_inputs)
        check_rows("batch_rows", batch_rows, rows, f"{self.name}'s training rows")
        # crc32 keeps (0, 1) and (1, 0) apart, which seed + epoch would not.
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{epoch}".encode()))
        order = torch.randperm(rows, generator=generator)
        if drop_last:
            order = order[: rows - rows % batch_rows]
        return [(self.train_inputs[o], self.train_targets[o]) for o in order.split(batch_rows)]

    def test_batches(self, batch_rows: int) -> list[Batch]:
        """Return all test rows in their order; the last batch may be smaller.

        Raises:
            ValueError: ``batch_rows`` is below 1.
        """
        if batch_rows < 1:
            raise ValueError(f"batch_rows must be at least 1, not {batch_rows}")
        inputs, targets = self.test_inputs.split(batch_rows), self.test_targets.split(batch_rows)
        return list(zip(inputs, targets, strict=True))


def check_rows(argument: str, value: int, available: int, what: str) -> None:
    """Raise ValueError if a count is not 1 to ``available``."""
    if not 1 <= value <= available:
        raise ValueError(f"{argument} must be 1 to {available} ({what}), not {value}")
