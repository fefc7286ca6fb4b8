"""torchgpipe's Checkpoint and Recompute, and what autograd makes of them (section 3.2.4).

Of the nodes that are ready, PyTorch's autograd takes the one with the highest number, and numbers
are given thread by thread.  torchgpipe runs the forwards of a device in a thread of its own, where
a microbatch's Checkpoint gets its number; its Recompute gets one in the main thread, which is far
ahead.  Hence all recomputations come before all backwards, unless edges forbid it.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from experiments.torchgpipe.cells import Benchmark
from pipekit.engine.observers.memory_tracker import StageMemory
from pipekit.layers import skips
from pipekit.trees import leaves, refill, tree_map

AHEAD = 1000  # nodes that the main thread has made before: hundreds for a step of the paper's U-Net

Flow = tuple[Tensor, dict[str, Tensor]]
"""What a device receives: the output of the one before, and skips by name."""


def one_device(layers: nn.Sequential, inputs: Sequence[Flow], in_order: bool) -> "Device":
    """Run a batch forward and backward, all but the last microbatch recomputed.

    The gradients of all outputs are there at once; ``in_order``: by Fork and Join.
    """
    device = Device(layers)
    outputs: list[Tensor] = []
    token: Tensor | None = None
    before = torch.zeros((), requires_grad=True)
    for _ in range(AHEAD):
        before + 0
    with ThreadPoolExecutor(1) as thread:
        for k, received in enumerate(inputs):
            x, *popped = (t.detach().clone().requires_grad_() for t in leaves(received))
            if token is not None:
                x, _ = _Token.apply(x, token)
            flow: Flow = refill(received, [x, *popped])
            if k == len(inputs) - 1:
                made = thread.submit(device.forward, k, flow).result()
            else:
                checkpoint = partial(_Checkpoint.apply, device, k, flow, x, *popped)
                made = list(_Recompute.apply(device, k, *thread.submit(checkpoint).result()))
            if in_order:
                made[0], token = _Token.apply(made[0], torch.empty(0))
            outputs += made
    torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
    device.held.stop()
    return device


class Device:
    """What the nodes of one device share; ``k`` is a microbatch's number.

    ``order`` is what its backward did, by the paper's names: ["B2", "F'1", "B1", ...];
    ``peak_bytes`` are the most at once: weights, gradients, and what waits for its backward.
    """

    def __init__(self, layers: nn.Sequential) -> None:
        self.layers, self.order, self.peak_bytes = layers, list[str](), 0
        parameters = list(layers.parameters())
        weights: Any = SimpleNamespace(
            modules=[layers], parameters=[parameters], optimizer=None, kept_bytes=0
        )
        weights.all_gradients = lambda: (p.grad for p in parameters if p.grad is not None)
        self.held = StageMemory(weights, self._look)
        self.flows: dict[int, Flow] = {}
        self.graphs: dict[int, tuple[list[Tensor], list[Tensor]]] = {}

    def forward(self, k: int, flow: Flow) -> list[Tensor]:
        flow[0].register_hook(lambda _: self.over(k))
        self.held.keep(k, flow)
        return self.compute(k, flow)

    def compute(self, k: int, flow: Flow, again: bool = False) -> list[Tensor]:
        with self.held.follow(k, again=again), torch.enable_grad():
            outputs = self.run(flow)
        self._look()
        return outputs

    def run(self, flow: Flow) -> list[Tensor]:
        with skips.carrying(flow[1]) as carried:
            y = self.layers(flow[0])
        return leaves((y, carried.under_way))

    def over(self, k: int) -> None:
        self.order.append(f"B{k}")
        self.held.drop(k)

    def _look(self) -> None:
        self.peak_bytes = max(self.peak_bytes, sum(self.held.now()))


class _Checkpoint(torch.autograd.Function):
    """A microbatch's outputs; only its inputs are kept."""

    @staticmethod
    def forward(ctx: Any, device: Device, k: int, flow: Flow, *_: Tensor) -> tuple[Tensor, ...]:
        ctx.device, ctx.k = device, k
        device.held.keep(k, flow)
        device.flows[k] = tree_map(Tensor.detach, flow)
        return tuple(t.detach() for t in device.run(device.flows[k]))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        inputs, outputs = ctx.device.graphs.pop(ctx.k)
        torch.autograd.backward(outputs, gradients)
        ctx.device.over(ctx.k)
        return None, None, None, *(t.grad for t in inputs)


class _Recompute(torch.autograd.Function):
    """The same outputs; its backward makes the microbatch's graph."""

    @staticmethod
    def forward(ctx: Any, device: Device, k: int, *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.device, ctx.k = device, k
        return tuple(t.view_as(t) for t in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        device, k = ctx.device, ctx.k
        flow = tree_map(Tensor.requires_grad_, device.flows.pop(k))
        device.graphs[k] = leaves(flow), device.compute(k, flow, again=True)
        device.order.append(f"F'{k}")
        return None, None, *gradients


class _Token(torch.autograd.Function):
    """x, and a token without elements: Join has waited for one, Fork gives one."""

    @staticmethod
    def forward(_: Any, x: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        return x.view_as(x), torch.empty(0)

    @staticmethod
    def backward(_: Any, gradient: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, torch.empty(0)


def total_peak(
    model: nn.Sequential, x: Tensor, cell: Benchmark, *, in_order: bool, portals: bool
) -> int:
    """Return the most bytes of each device together, each run alone by :func:`one_device`."""
    model.zero_grad()
    parts = pairwise([0, *accumulate(cell.balance)])
    flows = received(model, x, cell.balance, portals)
    return sum(
        one_device(model[first:behind], [flow] * cell.microbatches, in_order).peak_bytes
        for (first, behind), flow in zip(parts, flows, strict=True)
    )


def received(model: nn.Sequential, x: Tensor, balance: Sequence[int], portals: bool) -> list[Flow]:
    ends = {skip.name: skip.destination for skip in skips.between(skips.links(model), balance)}
    flows: list[Flow] = []
    under_way: dict[str, Tensor] = {}
    with torch.no_grad():
        for stage, (first, behind) in enumerate(pairwise([0, *accumulate(balance)])):
            there = {n: t for n, t in under_way.items() if not portals or ends[n] == stage}
            flows.append((x, there))
            with skips.carrying(under_way) as carried:
                x = model[first:behind](x)
            under_way = carried.under_way
    return flows
