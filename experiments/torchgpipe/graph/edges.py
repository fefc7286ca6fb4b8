"""Which task waits for which: the paper's graphs, and those of a minibatch that was really run."""

from collections.abc import Sequence
from itertools import groupby, pairwise, product
from typing import Any, NamedTuple

import networkx as nx
import torch
from torch import Tensor, nn

from pipekit.engine import PipelinedModule
from pipekit.layers.autograd_graph import nodes
from pipekit.schedules import Payload, gpipe, lower
from pipekit.schedules.lowering.lower import Skips
from pipekit.traces import RECOMPUTE, Trace


class PaperTask(NamedTuple):
    """A task of the paper: kind "F", "F'" or "B", microbatch i and partition j, both from 1."""

    kind: str
    i: int
    j: int


Edges = set[tuple[PaperTask, PaperTask]]
"""From what must be over to what waits for it."""

KINDS = {"FORWARD": "F", RECOMPUTE: "F'", "BACKWARD": "B"}


def figure1(m: int, n: int) -> Edges:
    """Return the edges of Figure 1: the data dependencies of section 2."""
    edges: Edges = set()
    for i in range(1, m + 1):
        row = [PaperTask("F", i, j) for j in range(1, n + 1)]
        row += [PaperTask("B", i, j) for j in range(n, 0, -1)]
        edges |= set(pairwise(row))
    return edges


def figure2(m: int, n: int) -> Edges:
    """Return the edges of Figure 2: of section 2.1, every microbatch but the last recomputed."""
    edges = {
        edge
        for edge in figure1(m, n)
        if edge[0].kind == edge[1].kind or edge[0].i == m  # the others' activations are gone
    }
    for i, j in product(range(1, m), range(1, n + 1)):
        edges.add((PaperTask("F", i, j), PaperTask("F", i + 1, j)))
        edges.add((PaperTask("B", i + 1, j), PaperTask("F'", i, j)))
        edges.add((PaperTask("F'", i, j), PaperTask("B", i, j)))
    return edges


def reduced(edges: Edges) -> Edges:
    """Return the fewest edges that say the same order."""
    return set(nx.transitive_reduction(nx.DiGraph(edges)).edges)


def closed(edges: Edges) -> Edges:
    """Return every pair of tasks of which the second waits for the first."""
    return set(nx.transitive_closure(nx.DiGraph(edges)).edges)


def messages(m: int, n: int, skips: Skips = ()) -> Edges:
    """Return which task waits for which task's tensors, from the engine's table of messages.

    Skips are from stage to stage, counted from 0.
    """
    kinds = {Payload.ACTIVATION: "F", Payload.GRADIENT: "B"}
    return {
        (PaperTask(kinds[payload], k + 1, source + 1), PaperTask(kinds[payload], k + 1, stage + 1))
        for worker in lower(gpipe(n, m).take(1), skips)
        for (_, stage, k, _), receives, *_ in worker.head
        for (payload, *_), source in receives
    }


def backward_nodes(output: Tensor) -> list[Any]:
    """Return the nodes of the passes in the graph of a pipelined module's output, as issued."""
    passes: list[Any] = [node for node in nodes([output]) if hasattr(node, "place")]
    return sorted(passes, key=lambda node: int(node._sequence_nr()))


def device_orders(trace: Trace) -> list[list[PaperTask]]:
    """Return what each device did in a minibatch, in order."""
    orders: list[list[PaperTask]] = [[] for _ in range(trace.workers)]
    columns = trace.frame.sort_values("start_s")[["worker", "op", "microbatch", "stage"]]
    for worker, op, k, stage in columns.itertuples(index=False):
        orders[worker].append(PaperTask(KINDS[op], k + 1, stage + 1))
    return orders


def run(model: PipelinedModule, x: Tensor) -> tuple[Edges, list[list[PaperTask]], list[PaperTask]]:
    """Run a minibatch.

    Returns:
        What autograd's graph says of the backwards; what each device did, in order; and the
        forwards as they were issued.
    """
    y = model(x)
    nodes = backward_nodes(y)
    order = [_at("F", node) for node in nodes]  # as autograd numbered them
    edges = {
        (_at("B", node), _at("B", before))
        for node in nodes
        for before, _ in node.next_functions
        if hasattr(before, "place")
    }
    y.square().mean().backward()
    return edges, device_orders(model.trace), order


def pipelined(m: int, n: int, **options: Any) -> tuple[PipelinedModule, Tensor]:
    """Return a module of n small stages that is traced, and a minibatch of m rows for it."""
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(n)))
    return PipelinedModule(layers, [1] * n, chunks=m, trace=True, **options), torch.randn(m, 4)


def found1(m: int, n: int) -> Edges:
    """Return Figure 1's edges as found: messages, autograd's graph without order, own forwards."""
    edges, orders, _ = run(*pipelined(m, n, without=("order",), checkpoint="never"))
    own = {(PaperTask("F", t.i, t.j), t) for tasks in orders for t in tasks if t.kind == "B"}
    return reduced(messages(m, n) | edges | own)


def found2(m: int, n: int) -> Edges:
    """Return Figure 2's edges as found: messages, autograd's graph, and each device's order."""
    edges, orders, _ = run(*pipelined(m, n))
    return reduced(messages(m, n) | edges | {pair for tasks in orders for pair in pairwise(tasks)})


def follows_the_order(orders: Sequence[Sequence[PaperTask]], m: int) -> bool:
    """Return whether every device did F(1), ..., F(m) and then B(m), ..., B(1) (section 2.1)."""
    up = list(range(1, m + 1))
    return all(
        [t.i for t in tasks if t.kind == "F"] == up
        and [t.i for t in tasks if t.kind == "B"] == up[::-1]
        for tasks in orders
    )


def cycles(order: Sequence[PaperTask]) -> list[set[tuple[int, int]]]:
    """Return the tasks (i, j) of each clock cycle, new where i + j changes (Algorithm 1)."""
    runs = groupby(order, key=lambda task: task.i + task.j)
    return [{(i, j) for _, i, j in tasks} for _, tasks in runs]


def clock_cycles(m: int, n: int) -> list[set[tuple[int, int]]]:
    """Return the tasks (i, j) of each clock cycle, which is i + j - 1 (Algorithm 1)."""
    return [
        {(i, k + 1 - i) for i in range(1, m + 1) if 1 <= k + 1 - i <= n} for k in range(1, m + n)
    ]


def _at(kind: str, node: Any) -> PaperTask:
    stage, microbatch = node.place
    return PaperTask(kind, microbatch + 1, stage + 1)
