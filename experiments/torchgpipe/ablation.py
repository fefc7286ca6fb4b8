"""A batch with some of torchgpipe's components (sections 3.2 to 4.1): its time, order and memory.

One host issues everything (3.2.1), and each stream of a device runs its kernels one by one: that is
simulated.  The clock of pipekit's replays cannot serve: a kernel may hold up several streams at
once, where a task there holds up one worker.

Order and memory are those of torchgpipe's Checkpoint and Recompute in autograd (3.2.4).  Of the
nodes that are ready, it takes the one with the highest number, and numbers are given thread by
thread.  torchgpipe runs the forwards of a device in a thread of its own, where a microbatch's
Checkpoint gets its number; its Recompute gets one in the main thread, which is far ahead.  Hence
all recomputations come before all backwards, unless edges forbid it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain, pairwise, product
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from experiments.study.costs import with_costs
from experiments.torchgpipe.cells import Benchmark, as_drawn
from pipekit.clusters import Cluster
from pipekit.engine.observers.memory_tracker import StageMemory
from pipekit.layers import skips
from pipekit.profiling import Profile
from pipekit.simulation.costs import skips_of, stage_costs
from pipekit.traces import COLUMNS, RECOMPUTE, TRANSFERS, Trace
from pipekit.trees import leaves, refill, tree_map

FORWARD, BACKWARD = "FORWARD", "BACKWARD"


class Components(NamedTuple):
    """Which components are there (section 3.2.2, 3.2.3, 3.3)."""

    order: bool  # of backwards, by Fork and Join
    streams: bool  # for copies alone; without them copies hold up the computing of both devices
    portals: bool  # for skip connections; without them, each stage hands them to the next


ROWS: Mapping[str, Components] = {
    "baseline": Components(order=False, streams=False, portals=False),
    "dep": Components(order=True, streams=False, portals=False),
    "dep-streams": Components(order=True, streams=True, portals=False),
    "dep-streams-portals": Components(order=True, streams=True, portals=True),
}
"""Table 1, by what the ledger calls its rows."""

Kernel = tuple[str, int, int] | tuple[str, int, int, int]
"""A pass ("FORWARD", stage, microbatch), or a copy ("activation", from, to, microbatch)."""


def issued(stages: int, last: int, in_order: bool) -> Iterator[tuple[str, int, int]]:
    """Yield a batch's copies to forwards and its passes as they are issued, each (what, stage, k).

    Forwards come in clock cycles (Algorithm 1), backwards in their mirror image.  Without order,
    autograd goes by the numbers of its nodes: a device recomputes every
    microbatch as soon as its gradient is there, and goes backward only when it has all.
    """
    times = range(last + stages)
    cycles = [[(s, t - s) for s in range(stages) if 0 <= t - s <= last] for t in times]
    for cycle, what in product(cycles, ("activation", FORWARD)):
        yield from ((what, stage, k) for stage, k in cycle)
    if in_order:
        for stage, k in chain.from_iterable(reversed(cycles)):
            if k < last:
                yield RECOMPUTE, stage, k
            yield BACKWARD, stage, k
        return
    behind, others = range(stages)[::-1], range(last)[::-1]
    # The loss gives the last device all its gradients at once, the others get them one by one.
    yield from ((RECOMPUTE, stages - 1, k) for k in others)
    yield from ((BACKWARD, stage, last) for stage in behind)
    for stage, k in product(behind, others):
        yield BACKWARD, stage, k
        if stage:
            yield RECOMPUTE, stage - 1, k


def simulated(
    cell: Benchmark,
    profile: Profile,
    links: Cluster,
    has: Components,
    balance: Sequence[int] | None = None,
) -> Trace:
    """Return when a batch's passes and copies run, as a host issues them that is never late."""
    table = as_drawn(cell.stages, cell.microbatches)
    costs = stage_costs(table, carried(profile, has), cell.plan(balance))
    sizes: dict[tuple[int, int], float] = defaultdict(float)  # a microbatch's, by stages
    for stage, cost in enumerate(costs[:-1]):
        sizes[stage, stage + 1] += cost.whole.output_bytes
    for skip in skips_of(costs):
        sizes[skip.source, skip.destination] += skip.bytes
    passes, copies = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    free: dict[tuple[str, int], float] = defaultdict(float)  # by stream: for what, whose
    ends: dict[Kernel, float] = {}

    def run(kernel: Kernel, seconds: float, streams: list[Any], needs: list[Any]) -> Any:
        """Return when a kernel begins, as the first in its streams, and when it is over."""
        before = [ends[need] for need in needs if need in ends]
        start = max([free[stream] for stream in streams] + before)
        end = ends[kernel] = start + seconds
        free.update(dict.fromkeys(streams, end))
        return start, end

    def copy(purpose: str, source: int, to: int, k: int, size: float, made: Kernel) -> None:
        streams = [("out", source), ("in", to)]
        if not has.streams:  # both devices wait (section 3.1: two-way synchronization)
            streams = [("compute", source), ("compute", to)]
        seconds = size / links.bandwidth(source, to)
        span = run((purpose, source, to, k), seconds, streams, [made])
        copies.append((source, to, purpose, source, k, *span, size))

    for what, stage, k in issued(cell.stages, cell.microbatches - 1, has.order):
        before = {source: size for (source, to), size in sizes.items() if to == stage}
        if what == "activation":
            for source, size in before.items():
                copy(what, source, stage, k, size, (FORWARD, source, k))
            continue
        seconds = costs[stage].whole.forward_s
        needs = [("activation", source, stage, k) for source in before]
        if what == BACKWARD:
            seconds = costs[stage].whole.backward_s
            needs = [("gradient", to, stage, k) for source, to in sizes if source == stage]
        span = run((what, stage, k), seconds, [("compute", stage)], needs)
        passes.append((stage, stage, what, k, 0, *span, 0))
        if what == BACKWARD:
            for source, size in before.items():
                copy("gradient", stage, source, k, size, (what, stage, k))
    missing = [name for name, there in has._asdict().items() if not there]
    name = "without " + " and ".join(missing or ["nothing"])
    frame = pd.DataFrame(passes, columns=COLUMNS).sort_values(["worker", "start_s"])
    transfers = pd.DataFrame(copies, columns=TRANSFERS)
    return Trace(frame, "simulated", name, cell.stages, transfers=transfers)


def carried(profile: Profile, has: Components) -> Profile:
    """Return a profile; without portals its skips are part of what layers between hand on."""
    if has.portals:
        return profile
    output_bytes = np.array([layer.output_bytes for layer in profile.layers], dtype=float)
    for skip in profile.skips:
        output_bytes[skip.source : skip.destination] += skip.bytes
    return with_costs(replace(profile, skips=()), output_bytes=output_bytes)


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
