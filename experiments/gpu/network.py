"""What is trained on the GPUs: a small GPT, cut into four stages."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pipekit import Execution, Pipeline, Schedule, models, schedules

STAGES, MICROBATCHES, BATCHES = 4, 8, 5
METHODS: dict[str, Schedule] = {
    "GPipe": schedules.gpipe(STAGES, MICROBATCHES),
    "1F1B": schedules.flush(STAGES, MICROBATCHES),
    "PipeDream-2BW": schedules.two_bw(STAGES, MICROBATCHES),
}


def network(width: int) -> nn.Sequential:
    """A GPT of two blocks a stage."""
    torch.manual_seed(0)
    return models.gpt(2 * STAGES, width, max(1, width // 64), vocabulary=512, sequence=64)


def batch(rows: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(512, (rows, 64), generator=torch.Generator().manual_seed(1))
    return tokens, tokens


def balance(model: nn.Sequential) -> list[int]:
    """Layers of each stage."""
    middle = len(model) // STAGES
    return [middle] * (STAGES - 1) + [len(model) - middle * (STAGES - 1)]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def pipeline(model: nn.Sequential, method: str, devices: list[str]) -> Pipeline:
    return Pipeline(
        model,
        METHODS[method],
        balance=balance(model),
        optimizer=sgd,
        loss=models.token_loss,
        execution=Execution(devices=devices),
    )


def unsplit(model: nn.Sequential, device: str, rows: int) -> Callable[[], None]:
    """Return what trains the unsplit model on a batch, a microbatch after the other."""
    model.to(device)
    optimizer = sgd(list(model.parameters()))
    x, y = (each.to(device) for each in batch(rows * MICROBATCHES))

    def step() -> None:
        optimizer.zero_grad()
        for part, target in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES), strict=True):
            (models.token_loss(model(part), target) / MICROBATCHES).backward()
        optimizer.step()

    return step
