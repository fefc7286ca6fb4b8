"""A minibatch: what it gives, what each device does in it, and what crosses each link."""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from experiments.study.traces import ONLY_BYTES, on_cpus
from experiments.torchgpipe.graph import KINDS
from pipekit.engine import Observer, PipelinedModule, Watch
from pipekit.schedules import Message, Step, gpipe
from pipekit.trees import Tree

Link = tuple[int, int]  # from a device to another, counted from 0


def step(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return a minibatch's "output", and by name gradients of the "input" and all parameters."""
    torch.manual_seed(0)
    x = x.clone().requires_grad_()
    model.zero_grad()
    y = model(x)
    y.square().mean().backward()
    leaves = {"input": x, **dict(model.named_parameters())}
    gradients = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    return {"output": y.detach(), **gradients}


class Journal(Observer):
    """Notes what each device does: "receive", "F", "F'", "B" and "send", as soon as it is over."""

    def __init__(self, devices: int, late_s: float = 0.0) -> None:
        self.devices: list[list[str]] = [[] for _ in range(devices)]
        self.late_s = late_s  # for which every backward of the last device waits

    def received(self, worker: int, step: Step, message: Message, source: int, tree: Tree) -> None:
        self.devices[worker].append("receive")

    def before_compute(self, worker: int, step: Step, activity: str, inputs: Tree) -> None:
        if worker == len(self.devices) - 1 and activity == "BACKWARD":
            time.sleep(self.late_s)

    def after_compute(self, worker: int, step: Step, activity: str, outputs: Tree) -> None:
        self.devices[worker].append(KINDS[activity])

    def sent(
        self, worker: int, step: Step, message: Message, receiver: int, tree: Tree, size: int
    ) -> None:
        self.devices[worker].append("send")


def journals(n: int, m: int, *, stock: bool = False, late_s: float = 0.0) -> list[list[str]]:
    """Run a minibatch of m on n devices and return what each did."""
    journal = Journal(n, late_s)
    layers = (_Stock(each) if stock else nn.Linear(4, 4) for each in journal.devices)
    mode: Any = "never" if stock else "except_last"
    model = PipelinedModule(
        nn.Sequential(*layers),
        [1] * n,
        chunks=m,
        checkpoint=mode,
        watch=Watch(trace=False, observers=[journal]),
    )
    model(torch.randn(m, 4)).sum().backward()
    return journal.devices


def figure3(device: int, n: int, m: int) -> list[str]:
    """Return Figure 3's order: devices from 1; the first and the last lack a neighbour."""
    before, behind = device > 1, device < n
    forward = ["receive"] * before + ["F"] + ["send"] * behind
    backward = ["receive"] * behind + ["B"] + ["send"] * before
    return forward * m + backward + ["F'", *backward] * (m - 1)


def counted(model: nn.Sequential, x: Tensor, balance: Sequence[int], chunks: int) -> Counter[Link]:
    """Train on a minibatch and return the bytes over each link; backward links go down."""
    schedule = gpipe(len(balance), chunks)
    pipeline = on_cpus(model, schedule, balance=list(balance), **ONLY_BYTES)
    traffic = pipeline.train([(x, torch.zeros(len(x)))], watch=Watch(trace=False)).traffic
    return Counter(traffic.groupby(["source", "destination"])["bytes"].sum().to_dict())


def closed_form(model: nn.Sequential, x: Tensor, balance: Sequence[int]) -> Counter[Link]:
    """Return the bytes over each link, both ways, by the sizes of the layers' outputs alone."""
    found: Counter[Link] = Counter()
    with torch.no_grad():
        for stage, (first, behind) in enumerate(pairwise([0, *accumulate(balance)][:-1])):
            x = model[first:behind](x)
            found[stage, stage + 1] = found[stage + 1, stage] = x.nbytes
    return found


class _Stock(nn.Linear):
    """A layer that PyTorch itself computes again, within its backward, and then notes "F'"."""

    def __init__(self, journal: list[str]) -> None:
        super().__init__(4, 4)
        self.journal = journal

    def forward(self, x: Tensor) -> Any:
        how: Any = {"use_reentrant": False, "preserve_rng_state": False}
        return checkpoint(super().forward, x, context_fn=self._contexts, **how)

    def _contexts(self) -> tuple[ExitStack, ExitStack]:
        again = ExitStack()
        again.callback(self.journal.append, "F'")
        return ExitStack(), again
