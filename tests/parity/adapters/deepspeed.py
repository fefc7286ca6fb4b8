"""DeepSpeed's pipeline engine on processes of gloo, without a GPU."""

import os
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer


class DeepSpeed:
    """A stage a rank, and a mean loss of each microbatch."""

    microbatches = 4

    def build(self, model: Any, optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]) -> None:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        deepspeed: Any = import_module("deepspeed")  # which few installations have
        # It would compile messages by shared memory, for minutes; gloo does without.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        pipe: Any = import_module("deepspeed.pipe")
        deepspeed.init_distributed("gloo")
        self.net = pipe.PipelineModule(
            list(model), dist.get_world_size(), loss_fn=model.loss, partition_method="uniform"
        )
        config = {"train_micro_batch_size_per_gpu": 60, "gradient_accumulation_steps": 4}
        self.engine, *_ = deepspeed.initialize(
            model=self.net,
            optimizer=optimizer(p for p in self.net.parameters() if p.requires_grad),
            config=config,
        )

    def step(self, batch: tuple[Tensor, Tensor]) -> float:
        parts = (part.tensor_split(self.microbatches) for part in batch)
        return float(self.engine.train_batch(iter(list(zip(*parts, strict=True)))))

    def parameters(self) -> dict[str, Tensor]:
        return dict(self.net.named_parameters())
