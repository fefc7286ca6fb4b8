"""The attacked trainings: small ones by fourteen methods, whose every bit is known."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from experiments.torchgpipe.cells import as_drawn
from pipekit import Checkpoints, Execution, Pipeline, Schedule, Updates, Watch, schedules
from pipekit.engine.checkpoints import files as checkpoints

EPOCHS, BATCHES, ROWS = 2, 24, 8
PACE_S = 0.01  # of every batch, so that there are moments to choose from

METHODS: dict[str, Schedule] = {
    "GPipe": schedules.gpipe(3, 4),
    "PipeDream-Flush": schedules.flush(3, 4),
    "2BW": schedules.two_bw(3, 4),
    "model parallelism": schedules.model_parallel(2),
    "PipeDream": schedules.pipedream(3),
    "PipeDream, vertical sync": schedules.pipedream(3, vertical_sync=True),
    "PipeDream, no stashing": schedules.pipedream(3, stashing=False),
    "PipeDream 2-1": schedules.pipedream([2, 1]),
    "PipeDream 2-1-1": schedules.pipedream([2, 1, 1]),
    "BSP on 3": schedules.pipedream([3]),
    "ASP on 2": schedules.asp(2),
    "2 x PipeDream-Flush": schedules.replicate(schedules.flush(2, 2), 2),
    "2 x 2BW": schedules.replicate(schedules.two_bw(2, 2), 2),
    "reversed GPipe (own)": as_drawn(3, 4).repeat(),
}
BALANCE = {1: [9], 2: [5, 4], 3: [2, 4, 3]}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=0.01),
}


class Roomy(nn.Module):
    """Needs 8 MB for a moment, and returns its input."""

    def forward(self, x: Tensor) -> Tensor:
        torch.zeros(2**21)
        return x


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(inplace=True), nn.Dropout(0.3)),
        *(nn.Linear(12, 12), Roomy(), nn.Dropout(0.5), nn.Tanh(), nn.Linear(12, 3)),
    )


class Paced:
    """Batches at a pace, in an order that the default generator draws anew in every epoch."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        tensors = (torch.randn(BATCHES * ROWS, n, generator=generator) for n in (6, 3))
        self._loader = DataLoader(TensorDataset(*tensors), batch_size=ROWS, shuffle=True)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            time.sleep(PACE_S)
            yield batch


class Setting(NamedTuple):
    """A training, and after how many batches it is saved."""

    method: str
    optimizer: str
    every: int

    def train(
        self,
        folder: Path,
        transport: str,
        seed: int,
        around: Callable[[int, Any], Any] = lambda epoch, batches: batches,
        timeout: float | None = None,
    ) -> None:
        """Train to the end, from the folder's newest checkpoint if there is one.

        ``seed`` is the default generator's where a training goes on, and must not matter;
        ``around`` returns an epoch's batches, or something else in their place.
        """
        schedule = METHODS[self.method]
        scheduler = partial(torch.optim.lr_scheduler.StepLR, step_size=7, gamma=0.8)
        pipeline = Pipeline(
            network(),
            schedule,
            balance=BALANCE[schedule.stages],
            optimizer=OPTIMIZERS[self.optimizer],
            updates=Updates(lr_scheduler=scheduler),
            execution=Execution(timeout=timeout),
            loss=nn.MSELoss(),
            transport=transport,
        )
        begun = checkpoints.newest(folder) is not None
        torch.manual_seed(seed if begun else 2)
        for epoch in range(pipeline.resume(folder), EPOCHS):
            saved = Checkpoints(folder, every=self.every)
            pipeline.train(around(epoch, Paced()), watch=Watch(trace=False), checkpoints=saved)
