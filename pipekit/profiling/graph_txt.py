"""The ``graph.txt`` that PipeDream's own profiler writes.

One line a node and one an edge, times in milliseconds a minibatch, sizes in bytes::

    node1 -- Input0 -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=38535168.0, parameter_size=0.0
    node2 -- Conv2d(3, 64) -- forward_compute_time=5.2, backward_compute_time=9.1, activation_size=[1.0; 2.0], parameter_size=6912.0 -- stage_id=0
    \tnode1 -- node2
"""  # noqa: E501

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipekit.profiling.layer_profile import LayerProfile, SkipProfile
from pipekit.reading import read_text

_NUMBER = r"[-+.\deE]+"
_NODE = re.compile(
    r"(?P<node>\S+) -- (?P<name>.*) -- "
    rf"forward_compute_time=(?P<forward>{_NUMBER}), "
    rf"backward_compute_time=(?P<backward>{_NUMBER}), "
    rf"activation_size=(?P<activation>{_NUMBER}|\[{_NUMBER}(?:; {_NUMBER})*\]), "
    rf"parameter_size=(?P<parameter>{_NUMBER})"
    r"(?: -- stage_id=\d+)?"
)
_EDGE = re.compile(r"\t(?P<start>\S+) -- (?P<end>\S+)")
_INPUT = re.compile(r"Input\d*")
_UNUSED = "__getitem__"


def read(path: str | os.PathLike[str], rows: int = 1) -> dict[str, Any]:
    """Read a profile that PipeDream's profiler wrote.

    Layers stand in the order of the file as far as they can run in it.  A node's output is one
    value, which is taken to be saved and goes from each node that reads it to the next; what is not
    for the next layer is a skip.  Input nodes stand for the loading of data: their time is dropped,
    and the first stage is given their values.  A part of an output (``__getitem__``) that nobody
    reads is left out, as by PipeDream's optimizer.  A partition (``stage_id``) is not read.

    Args:
        path: the file.
        rows: of the minibatch that it was profiled with, which it does not say.

    Returns:
        The arguments of a profile.

    Raises:
        ValueError: a line, by its number, is not understood or names an unknown node, or the graph
            has a cycle.
    """
    import networkx as nx  # here, since few profiles are such files

    graph = _graph(path)
    costs: dict[str, LayerProfile] = dict(graph.nodes(data="layer"))
    inputs = [node for node in costs if _is_input(costs[node])]
    layers = [node for node in costs if not _is_input(costs[node])]
    if len(layers) > 1:
        graph.remove_nodes_from(
            [node for node in layers if costs[node].name.startswith(_UNUSED) and not graph[node]]
        )
    positions = {node: position for position, node in enumerate(costs)}
    runs = nx.lexicographical_topological_sort(graph.subgraph(layers), positions.__getitem__)
    order: list[str] = list(runs)
    number_of = {node: number for number, node in enumerate(order)}
    users = {node: sorted(number_of[user] for user in graph[node]) for node in [*inputs, *order]}
    outputs, skips = [0.0] * len(order), list[SkipProfile]()
    for node, readers in users.items():
        size, source = costs[node].output_bytes, number_of.get(node)
        place = source or 0  # layer 0 is given the inputs
        for user in readers:
            if place == source and user == place + 1:
                outputs[place] += size
            elif user != place:
                skips.append(SkipProfile(f"{node} from {place} to {user}", place, user, size))
            place = user
    outputs[-1] = costs[order[-1]].output_bytes
    pairs = zip(order, outputs, strict=True)
    return {
        "layers": [replace(costs[node], output_bytes=size) for node, size in pairs],
        "rows": rows,
        "input_bytes": sum(costs[node].output_bytes for node in inputs),
        "skips": skips,
        "provenance": {
            "label": "measured",
            "source": Path(path).name,
            "hardware": "not in the file: times are as it states them",
        },
    }


def _graph(path: str | os.PathLike[str]) -> Any:
    """Return a file's graph, of which each node has its ``layer``; it has one and no cycle."""
    import networkx as nx

    graph = nx.DiGraph()
    edges: list[tuple[str, str, str]] = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        where = f"{path}, line {number}"
        line = line.rstrip()
        if found := _EDGE.fullmatch(line):
            edges.append((where, found["start"], found["end"]))
        elif found := _NODE.fullmatch(line):
            if found["node"] in graph:
                raise ValueError(f"{where}: node {found['node']!r} stands there a second time")
            try:
                graph.add_node(found["node"], layer=_layer(found))
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
        elif line:
            raise ValueError(
                f"{where} is neither an edge, a tab and then 'node1 -- node2', nor a node, "
                f"'node1 -- name -- forward_compute_time=..., backward_compute_time=..., "
                f"activation_size=..., parameter_size=...': {line[:80]!r}"
            )
    costs: dict[str, LayerProfile] = dict(graph.nodes(data="layer"))
    if all(map(_is_input, costs.values())):
        raise ValueError(f"{path} has no node that is a layer")
    for where, start, end in edges:
        if unknown := {start, end} - costs.keys():
            raise ValueError(f"{where}: no node is named {min(unknown)!r}")
        if _is_input(costs[end]):
            raise ValueError(f"{where}: an edge leads to the Input node {end!r}")
        graph.add_edge(start, end)
    if not nx.is_directed_acyclic_graph(graph):
        cycle = [start for start, _ in nx.find_cycle(graph)]
        raise ValueError(f"{path}: the graph has a cycle: {' -> '.join([*cycle, cycle[0]])}")
    return graph


def _is_input(layer: LayerProfile) -> bool:
    return _INPUT.fullmatch(layer.name) is not None


def _layer(found: re.Match[str]) -> LayerProfile:
    size = sum(float(size) for size in found["activation"].strip("[]").split("; "))
    return LayerProfile(
        found["name"],
        forward_s=float(found["forward"]) / 1e3,
        backward_s=float(found["backward"]) / 1e3,
        output_bytes=size,
        parameter_bytes=float(found["parameter"]),
        saved_bytes=size,
        saves_output=True,
    )
