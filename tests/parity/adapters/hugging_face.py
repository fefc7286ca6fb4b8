"""A Hugging Face Trainer that accumulates gradients over four microbatches."""

import tempfile
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class WithLoss(nn.Module):
    """The model as a Trainer takes it: a forward that returns its loss."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.loss = model, model.loss

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(self.model(x), labels)}


class HuggingFace:
    """One Trainer a batch; it shuffles rows, which changes no mean."""

    microbatches = 4

    def build(self, model: Any, optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]) -> None:
        self.model = WithLoss(model)
        self.optimizer = optimizer(p for p in model.parameters() if p.requires_grad)

    def step(self, batch: tuple[Tensor, Tensor]) -> float:
        transformers: Any = import_module("transformers")  # which few installations have
        with tempfile.TemporaryDirectory() as folder:
            how = transformers.TrainingArguments(
                folder,
                per_device_train_batch_size=len(batch[0]) // self.microbatches,
                gradient_accumulation_steps=self.microbatches,
                max_steps=1,
                max_grad_norm=0.0,
                report_to="none",
                save_strategy="no",
                use_cpu=True,
                disable_tqdm=True,
            )
            rows = [{"x": x, "labels": y} for x, y in zip(*batch, strict=True)]
            constant = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda _: 1.0)
            trainer = transformers.Trainer(
                self.model, how, train_dataset=rows, optimizers=(self.optimizer, constant)
            )
            return float(trainer.train().training_loss)

    def parameters(self) -> dict[str, Tensor]:
        return dict(self.model.model.named_parameters())
