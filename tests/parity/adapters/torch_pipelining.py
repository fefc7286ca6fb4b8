"""torch.distributed.pipelining as its documentation uses it, one adapter for each schedule."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage
from torch.optim import Optimizer

V_SHAPED = ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
SINGLE = ("ScheduleGPipe", "Schedule1F1B")
SCHEDULES = tuple(name for name in pipelining.__all__ if name.startswith("Schedule"))


class Torch:
    """Stages of as equal a number of layers as can be, and the mean loss of each microbatch."""

    schedule: ClassVar[str] = "ScheduleGPipe"
    microbatches: ClassVar[int] = 4
    chunks: ClassVar[int] = 1  # stages a rank

    def build(self, model: Any, optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]) -> None:
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.stages = ranks * self.chunks
        own = [rank + chunk * ranks for chunk in range(self.chunks)]
        if self.schedule in V_SHAPED:
            own = [rank, self.stages - 1 - rank]
        ends = [round(len(model) * stage / self.stages) for stage in range(self.stages + 1)]
        self.parts = [model[ends[stage] : ends[stage + 1]] for stage in own]
        made = [
            PipelineStage(part, stage, self.stages, torch.device("cpu"))
            for part, stage in zip(self.parts, own, strict=True)
        ]
        self.first, self.last = 0 in own, self.stages - 1 in own
        trained = (p for part in self.parts for p in part.parameters() if p.requires_grad)
        self.optimizer = optimizer(dict.fromkeys(trained))  # a shared one may be in two parts
        single = made[0] if self.schedule in SINGLE else made
        how = getattr(pipelining, self.schedule)
        self.runtime = how(single, self.microbatches, loss_fn=model.loss)

    def step(self, batch: tuple[Tensor, Tensor]) -> float | None:
        losses: list[Tensor] = []
        self.optimizer.zero_grad()
        inputs = batch[:1] if self.first else ()
        self.runtime.step(*inputs, target=batch[1] if self.last else None, losses=losses)
        self.optimizer.step()
        return float(torch.stack(losses).detach().mean()) if self.last else None

    def parameters(self) -> dict[str, Tensor]:
        return {
            name: tensor
            for part in self.parts
            for name, tensor in part.state_dict(keep_vars=True).items()
        }


def torch_adapter(schedule: str, microbatches: int = 4, chunks: int | None = None) -> type[Torch]:
    """Return the adapter of a schedule class of torch's."""
    if chunks is None:
        chunks = 1 if schedule in SINGLE else 2
    own = {"schedule": schedule, "microbatches": microbatches, "chunks": chunks}
    return type(schedule, (Torch,), own)
