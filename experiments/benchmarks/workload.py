"""What every contestant trains: model, batches, and an optimizer that notes the time of its steps.

The model is 4 pairs of Linear and ReLU, so that at 4 stages each has one.  At width 16 the time
goes into the engine, at width 512 into the arithmetic.
"""

import time
from collections.abc import Iterable
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

PAIRS = 4
LEARNING_RATE = 0.01
DISTINCT_BATCHES = 2
INTERLEAVED = "interleaved"
"""The schedule of which each worker has two stages."""


class Case(NamedTuple):
    """One cell of the benchmark.

    Attributes:
        width: of every layer.
        stages: parts of the model, one worker each (or two of half the size); a divisor of 4.
        microbatches: in a batch; a power of two, so that weighting them rounds nothing.
    """

    width: int
    stages: int
    microbatches: int

    @property
    def _narrow(self) -> bool:
        return self.width < 128

    @property
    def rows(self) -> int:
        """Rows of a microbatch."""
        return 32 if self._narrow else 64

    @property
    def warm_up(self) -> int:
        """Batches before the clock starts."""
        return max(1, (128 if self._narrow else 32) // self.microbatches)

    @property
    def timed(self) -> int:
        """Batches on the clock."""
        return max(1, (512 if self._narrow else 128) // self.microbatches)

    def balance(self, schedule: str) -> list[int]:
        """Return the layers of each stage; if they are interleaved, a worker has two."""
        count = self.stages * (2 if schedule == INTERLEAVED else 1)
        return [2 * PAIRS // count] * count

    def allows(self, schedule: str) -> bool:
        """Return whether each stage of a schedule has weights."""
        return min(self.balance(schedule)) > 1

    def model(self) -> nn.Sequential:
        """Return the model with its initial weights, [rows, width] -> [rows, width]."""
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for _ in range(PAIRS):
            linear = nn.Linear(self.width, self.width)
            # The default shrinks the signal by layer, until gradients hardly move the weights.
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            layers += [linear, nn.ReLU()]
        return nn.Sequential(*layers)

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """Return (input, target) of every batch, warm-up included, each [rows, width]."""
        few = _batches(self.microbatches * self.rows, self.width)
        return [few[i % len(few)] for i in range(self.warm_up + self.timed)]


@lru_cache(maxsize=1)
def _batches(rows: int, width: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(rows, width, generator=generator),
            torch.randn(rows, width, generator=generator),
        )
        for _ in range(DISTINCT_BATCHES)
    ]


def timed_sgd(parameters: Iterable[Any], case: Case, stamps: Path) -> torch.optim.SGD:
    """Return an SGD that writes to ``stamps`` when the clock starts and when it stops.

    So one clock serves every contestant, in whatever thread or process its optimizers live, and
    none pays for its start: that of processes, tables, connections, caches.
    """
    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE)
    steps = count(1)

    def stamp(*_: object) -> None:
        step = next(steps)
        if step in (case.warm_up, case.warm_up + case.timed):
            now = time.perf_counter()  # the same clock in all processes of a machine
            with stamps.open("a", encoding="ascii") as file:
                file.write(f"{step} {now!r}\n")

    optimizer.register_step_post_hook(stamp)
    return optimizer


def microseconds(case: Case, stamps: Path) -> float:
    """Return the time a microbatch, from the end of one update on all stages to that of another."""
    ends: dict[int, float] = {}
    for line in stamps.read_text(encoding="ascii").splitlines():
        step, now = line.split()
        ends[int(step)] = max(float(now), ends.get(int(step), 0.0))
    seconds = ends[case.warm_up + case.timed] - ends[case.warm_up]
    return seconds / (case.timed * case.microbatches) * 1e6
