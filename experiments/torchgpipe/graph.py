"""Which task waits for which: the paper's graphs, and those of a minibatch that was really run."""

import random
from collections.abc import Sequence
from itertools import groupby, pairwise, product
from math import nan
from typing import Any, NamedTuple

import networkx as nx
import pandas as pd
import plotly.graph_objects as go
import torch
from torch import Tensor, nn

from experiments.study.tables import with_line
from pipekit import Watch, plots
from pipekit.engine import PipelinedModule
from pipekit.engine.module.backward_order import Place, link
from pipekit.losses.checks import nodes
from pipekit.schedules import Payload, gpipe, lower
from pipekit.schedules.lowering.lower import Skips
from pipekit.traces import RECOMPUTE

KINDS = {"FORWARD": "F", RECOMPUTE: "F'", "BACKWARD": "B"}
"""What the paper calls an activity of the engine."""


class PaperTask(NamedTuple):
    """A task of the paper: kind "F", "F'" or "B", microbatch i and partition j, both from 1."""

    kind: str
    i: int
    j: int

    def __str__(self) -> str:
        return f"{self.kind}{self.i},{self.j}"


Edges = set[tuple[PaperTask, PaperTask]]  # from what must be over to what waits for it


def closed(edges: Edges) -> Edges:
    return set(nx.transitive_closure(nx.DiGraph(edges)).edges)


def _reduced(edges: Edges) -> Edges:
    return set(nx.transitive_reduction(nx.DiGraph(edges)).edges)


class Ran(NamedTuple):
    """A minibatch that was run."""

    edges: Edges  # between backwards, in autograd's graph
    orders: list[list[PaperTask]]  # what each device did
    issued: list[PaperTask]  # the forwards, as autograd numbered them


def figure1(m: int, n: int) -> Edges:
    """Return the edges of Figure 1: the data dependencies of section 2."""
    edges: Edges = set()
    for i in range(1, m + 1):
        row = [PaperTask("F", i, j) for j in range(1, n + 1)]
        edges |= {*pairwise([*row, *(task._replace(kind="B") for task in reversed(row))])}
    return edges


def figure2(m: int, n: int) -> Edges:
    """Return the edges of Figure 2: of section 2.1, every microbatch but the last recomputed."""
    edges = {  # of others than the last the activations are gone
        (a, b) for a, b in figure1(m, n) if a.kind == b.kind or a.i == m
    }
    for i, j in product(range(1, m), range(1, n + 1)):
        edges.add((PaperTask("F", i, j), PaperTask("F", i + 1, j)))
        edges.add((PaperTask("B", i + 1, j), PaperTask("F'", i, j)))
        edges.add((PaperTask("F'", i, j), PaperTask("B", i, j)))
    return edges


def messages(m: int, n: int, skips: Skips = ()) -> Edges:
    """Return which task waits for which task's tensors, from the engine's table of messages."""
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


def run(m: int, n: int, **options: Any) -> Ran:
    """Run a minibatch of m rows on n small stages; options are the pipelined module's."""
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(n)))
    model = PipelinedModule(layers, [1] * n, chunks=m, watch=Watch(), **options)
    y = model(torch.randn(m, 4))
    passes = backward_nodes(y)
    edges = {
        (_task("B", node), _task("B", before))
        for node in passes
        for before, _ in node.next_functions
        if hasattr(before, "place")
    }
    y.square().mean().backward()
    orders = [
        [PaperTask(KINDS[x.op], x.microbatch + 1, x.stage + 1) for x in own.itertuples()]
        for _, own in model.trace.frame.sort_values("start_s").groupby("worker")
    ]
    return Ran(edges, orders, [_task("F", node) for node in passes])


def found1(m: int, n: int) -> Edges:
    """Return Figure 1's edges as found: messages, autograd's graph without order, own forwards."""
    ran = run(m, n, without=("order",), checkpoint="never")
    own = {(PaperTask("F", t.i, t.j), t) for tasks in ran.orders for t in tasks if t.kind == "B"}
    return _reduced(messages(m, n) | ran.edges | own)


def found2(m: int, n: int) -> Edges:
    """Return Figure 2's edges as found: messages, autograd's graph, and each device's order."""
    ran = run(m, n)
    follows = {pair for tasks in ran.orders for pair in pairwise(tasks)}
    return _reduced(messages(m, n) | ran.edges | follows)


def cycles(issued: Sequence[PaperTask]) -> list[set[tuple[int, int]]]:
    """Return the tasks (i, j) of each clock cycle, new where i + j changes (Algorithm 1)."""
    runs = groupby(issued, key=lambda task: task.i + task.j)
    return [{(i, j) for _, i, j in tasks} for _, tasks in runs]


def out_of_order(m: int, n: int, issues: int, in_order: bool, seed: int = 0) -> int:
    """Return in how many random issues autograd reaches some device's backwards out of order."""
    rng = random.Random(seed)
    stages = [((s - 1, k), (s, k)) for s, k in product(range(1, n), range(m))]
    microbatches = [((s, k - 1), (s, k)) for s, k in product(range(n), range(1, m))]
    waits = nx.DiGraph([*stages, *(microbatches if in_order else [])])
    wrong = 0
    for _ in range(issues):
        order: list[Place] = []
        calls = lambda _: None, order.append, lambda: [None]
        issue = list(nx.lexicographical_topological_sort(waits, key=lambda _: rng.random()))
        x = torch.ones(1, requires_grad=True)
        (y,) = link(*calls, [x], [torch.ones(1)], issue, in_order)
        y.backward()
        orders = [[k for stage, k in order if stage == s] for s in range(n)]
        wrong += any(each != list(range(m))[::-1] for each in orders)
    return wrong


def draw(edges: Edges, title: str) -> go.Figure:
    """Return the graph: a row a microbatch, a colour a device."""
    tasks = sorted({task for edge in edges for task in edge}, key=lambda task: task.j)
    n, m = max(t.j for t in tasks), max(t.i for t in tasks)
    width = 2 if any(t.kind == "F'" for t in tasks) else 1

    def place(task: PaperTask) -> tuple[float, float]:
        column = n + width * (n - task.j) + (width - 1) * (task.kind == "B")
        column = task.j - 1 if task.kind == "F" else column
        return (column + 0.4) / (n + width * n), 1 - (task.i - 0.4) / m

    x, y = "data flows right; order on a device: down in forwards, up in backwards", "microbatch"
    frame = pd.DataFrame([(*place(t), f"device {t.j}") for t in tasks], columns=[x, y, "device"])
    figure = plots.points(frame, x, y, "device", title=title, label="exact")
    for name, dash, crossing in ("data", "solid", False), ("order on a device", "dash", True):
        chosen = [edge for edge in sorted(edges) if (edge[0].i != edge[1].i) == crossing]
        ends = [place(task) if task else (nan, nan) for edge in chosen for task in (*edge, None)]
        with_line(figure, [x for x, _ in ends], [y for _, y in ends], name, dash)
    figure.data = sorted(figure.data, key=lambda trace: trace.mode != "lines")  # beneath the tasks
    beside = {"xanchor": "left", "yanchor": "bottom", "xshift": 5, "yshift": 4, "showarrow": False}
    for task in tasks:
        at = dict(zip("xy", place(task), strict=True))
        figure.add_annotation(at, xref="paper", yref="paper", text=str(task), **beside)
    rows = {"tickvals": [1 - (i - 0.4) / m for i in range(1, m + 1)]}
    figure.update_yaxes(range=[0, 1], showgrid=False, ticktext=list(range(1, m + 1)), **rows)
    figure.update_xaxes(range=[0, 1], showgrid=False, showticklabels=False)
    return figure.update_layout(height=70 * m + 116, margin={"r": 180})  # for the legend


def _task(kind: str, node: Any) -> PaperTask:
    stage, microbatch = node.place
    return PaperTask(kind, microbatch + 1, stage + 1)
