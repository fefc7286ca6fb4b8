"""What one device does, one by one: receive, compute, recompute, send (torchgpipe, Figure 3)."""

import time
from collections import UserList
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as stock_checkpoint

from pipekit import is_recomputing
from pipekit.engine import Observer, PipelinedModule
from pipekit.schedules import Message, Step
from pipekit.trees import Tree


class Entry(NamedTuple):
    """Something that a device did: what, and when it was over, in seconds."""

    what: str
    at: float


class Journal(UserList[Entry]):
    """What one device did, as it did it.

    Attributes:
        again: whether PyTorch itself is computing a forward again.
    """

    again = False

    def add(self, what: str) -> None:
        """Write an entry."""
        self.append(Entry(what, time.perf_counter()))

    @property
    def names(self) -> list[str]:
        """What was done."""
        return [entry.what for entry in self]


def expected(device: int, devices: int, microbatches: int) -> list[str]:
    """Return Figure 3's order: devices from 1; the first and the last lack a neighbour."""
    before, behind = device > 1, device < devices
    forward = ["receive"] * before + ["F"] + ["send"] * behind
    backward = ["receive"] * behind + ["B"] + ["send"] * before
    return forward * microbatches + backward + (["F'", *backward]) * (microbatches - 1)


def journals(
    devices: int, microbatches: int, *, stock: bool = False, backward_s: float = 0.0
) -> list[Journal]:
    """Run a minibatch and return what each device did in it, each with one small stage.

    All microbatches but the last are recomputed, by the engine, or (``stock``) all of them by
    ``torch.utils.checkpoint``.  A backward of the last device waits for ``backward_s``.
    """
    written = [Journal() for _ in range(devices)]
    seconds = [0.0] * (devices - 1) + [backward_s]
    stages = [_Stage(j, s) for j, s in zip(written, seconds, strict=True)]
    model = PipelinedModule(
        nn.Sequential(*(_Stock(stage) if stock else stage for stage in stages)),
        [1] * devices,
        chunks=microbatches,
        checkpoint="never" if stock else "except_last",
        observers=[_Messages(written)],
    )
    x = torch.randn(microbatches, 4)
    with torch.no_grad():
        model(x)  # the first forward tries the layers
    for journal in written:
        journal.clear()
    model(x).sum().backward()
    return written


def recomputes_before_the_gradient(journal: Sequence[Entry]) -> list[bool]:
    """Return, for each recomputation of a device, whether it was over before its gradient came.

    The k-th backward of a device ends the k-th wait for a gradient; each recomputation is compared
    with the wait of its own backward.
    """
    found, since, received = [], [], float("-inf")
    for what, at in journal:
        if what == "receive":
            received = at
        elif what == "F'":
            since.append(at)
        elif what == "B":
            found += [again < received for again in since]
            since = []
    return found


class _Messages(Observer):
    """Notes every message that a device gets or gives."""

    def __init__(self, written: Sequence[Journal]) -> None:
        self._written = written

    def received(self, worker: int, step: Step, message: Message, source: int, tree: Tree) -> None:
        self._written[worker].add("receive")

    def sent(
        self, worker: int, step: Step, message: Message, receiver: int, tree: Tree, size: int
    ) -> None:
        self._written[worker].add("send")


class _Stage(nn.Module):
    """Two linear layers; between them, forwards and backwards are noted."""

    def __init__(self, journal: Journal, backward_s: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.journal, self.backward_s = journal, backward_s

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if y.requires_grad:
            y.register_hook(self._backward)
        self.journal.add("F'" if self.journal.again or is_recomputing() else "F")
        output: Tensor = self.second(y)
        return output

    def _backward(self, gradient: Tensor) -> None:
        time.sleep(self.backward_s)
        self.journal.add("B")


class _Stock(nn.Module):
    """A stage that PyTorch itself computes again, within its backward."""

    def __init__(self, stage: _Stage) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, x: Tensor) -> Any:
        self.stage.journal.again = False
        output = stock_checkpoint(self.stage, x, use_reentrant=False, preserve_rng_state=False)
        self.stage.journal.again = True  # until the next forward: a device does one thing at a time
        return output
