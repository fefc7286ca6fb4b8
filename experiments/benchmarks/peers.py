"""What trains a case by ``torch.distributed.pipelining``, in one process a stage."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from crew import Crew
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from workload import INTERLEAVED, Case, timed_sgd

SCHEDULES: dict[str, Any] = {
    "GPipe": ScheduleGPipe,
    "1F1B": Schedule1F1B,
    INTERLEAVED: ScheduleInterleaved1F1B,
}


def train(crew: Crew, case: Case, schedule: str, stamps: Path) -> list[Tensor]:
    """Train a case by one of the SCHEDULES; return the final weights, in the model's order."""
    by_stage = {
        number: arrays
        for stages in crew.call(_train, case, schedule, stamps)
        for number, arrays in stages.items()
    }
    return [torch.from_numpy(array) for _, arrays in sorted(by_stage.items()) for array in arrays]


def _train(rank: int, case: Case, name: str, stamps: Path) -> dict[int, list[Any]]:
    """Train this process's stages; return their weights as arrays."""
    balance, model = case.balance(name), case.model()
    stages = {
        number: PipelineStage(
            model[number * layers : (number + 1) * layers],
            number,
            len(balance),
            torch.device("cpu"),
        )
        for number, layers in enumerate(balance)
        if number % case.stages == rank
    }
    parameters = {number: list(stage.submod.parameters()) for number, stage in stages.items()}
    optimizer = timed_sgd([p for each in parameters.values() for p in each], case, stamps)
    own = list(stages.values())
    # Gradients are divided by the number of microbatches: the loss is the mean of the batch.
    schedule = SCHEDULES[name](
        own if name == INTERLEAVED else own[0],
        case.microbatches,
        loss_fn=nn.MSELoss(),
        scale_grads=True,
    )
    batches = case.batches()
    dist.barrier()
    for x, y in batches:
        if rank == 0:
            schedule.step(x)
        elif rank == case.stages - 1:
            schedule.step(target=y, losses=[])
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
    return {stage: [p.detach().numpy() for p in each] for stage, each in parameters.items()}
