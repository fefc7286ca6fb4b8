"""The ``graph.txt`` that PipeDream's own profiler writes.

One line a node and one an edge, times in milliseconds a minibatch, sizes in bytes::

    node1 -- Input0 -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=38535168.0, parameter_size=0.0
    node2 -- Conv2d(3, 64) -- forward_compute_time=5.2, backward_compute_time=9.1, activation_size=[1.0; 2.0], parameter_size=6912.0 -- stage_id=0
    \tnode1 -- node2
"""  # noqa: E501

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from pipekit.profiling.layer_profile import LayerProfile, ValueProfile
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


class _Graph(NamedTuple):
    layers: dict[str, LayerProfile]
    inputs: dict[str, float]
    edges: list[tuple[str, str]]


def read(path: str | os.PathLike[str], rows: int = 1) -> dict[str, Any]:
    """Read a profile that PipeDream's profiler wrote.

    A node's output is one value, however many nodes read it, and is taken to be saved.  Input nodes
    stand for the loading of data: their time is dropped, and each is a value that the first stage
    is given.  A part of an output (``__getitem__``) that nobody reads is left out, as by
    PipeDream's optimizer.  A partition (``stage_id``) is not read.

    Args:
        path: the file.
        rows: of the minibatch that it was profiled with, which it does not say.

    Returns:
        The arguments of a profile: of a chain if the graph is one.  If not, it has the graph's
        values, and its layers stand in the order of the file as far as they can run in it.

    Raises:
        ValueError: a line, by its number, is not understood or names an unknown node, or the graph
            has a cycle.
    """
    graph = _parse(Path(path))
    order = _order(graph, str(path))
    return {
        "layers": [graph.layers[node] for node in order],
        "rows": rows,
        "input_bytes": sum(graph.inputs.values()),
        "provenance": {
            "label": "measured",
            "source": Path(path).name,
            "hardware": "not in the file: times are as it states them",
        },
        "values": _values(graph, order),
    }


def _parse(path: Path) -> _Graph:
    layers: dict[str, LayerProfile] = {}
    inputs: dict[str, float] = {}
    edges: list[tuple[str, str, str]] = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        where = f"{path}, line {number}"
        line = line.rstrip()
        if found := _EDGE.fullmatch(line):
            edges.append((where, found["start"], found["end"]))
        elif found := _NODE.fullmatch(line):
            node = found["node"]
            if node in layers or node in inputs:
                raise ValueError(f"{where}: node {node!r} stands there a second time")
            try:
                layer = _layer(found)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
            if _INPUT.fullmatch(found["name"]):
                inputs[node] = layer.output_bytes
            else:
                layers[node] = layer
        elif line:
            raise ValueError(
                f"{where} is neither an edge, a tab and then 'node1 -- node2', nor a node, "
                f"'node1 -- name -- forward_compute_time=..., backward_compute_time=..., "
                f"activation_size=..., parameter_size=...': {line[:80]!r}"
            )
    if not layers:
        raise ValueError(f"{path} has no node that is a layer")
    for where, start, end in edges:
        if unknown := {start, end} - layers.keys() - inputs.keys():
            raise ValueError(f"{where}: no node is named {min(unknown)!r}")
        if end in inputs:
            raise ValueError(f"{where}: an edge leads to the Input node {end!r}")
    read = {start for _, start, _ in edges}
    used = {
        node: layer
        for node, layer in layers.items()
        if node in read or not layer.name.startswith(_UNUSED) or len(layers) == 1
    }
    return _Graph(used, inputs, [(start, end) for _, start, end in edges if end in used])


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


def _order(graph: _Graph, path: str) -> list[str]:
    """Return the layers in an order in which they can run, as the file has them where it can."""
    import networkx as nx  # here, since few profiles are such files

    edges = nx.DiGraph()
    edges.add_nodes_from(graph.layers)
    edges.add_edges_from((start, end) for start, end in graph.edges if start in graph.layers)
    if not nx.is_directed_acyclic_graph(edges):
        cycle = [start for start, _ in nx.find_cycle(edges)]
        raise ValueError(f"{path}: the graph has a cycle: {' -> '.join([*cycle, cycle[0]])}")
    place = {node: number for number, node in enumerate(graph.layers)}
    return list(nx.lexicographical_topological_sort(edges, key=place.__getitem__))


def _values(graph: _Graph, order: list[str]) -> tuple[ValueProfile, ...]:
    """Return what nodes hand to one another, if the layers are no chain.

    Each Input and each layer that is read is one value, and each layer that is not.
    """
    number = {node: place for place, node in enumerate(order)}
    users: dict[str, set[int]] = {}
    for start, end in graph.edges:
        users.setdefault(start, set()).add(number[end])
    sizes = graph.inputs | {node: graph.layers[node].output_bytes for node in order}
    nodes = [node for node in sizes if node in users] + [
        node for node in order if node not in users
    ]
    last = len(order) - 1
    chain = {node: {0} if node in graph.inputs else {number[node] + 1} for node in sizes}
    if users == {node: chain[node] for node in nodes if number.get(node) != last}:
        return ()
    return tuple(ValueProfile(number.get(n), tuple(users.get(n, ())), sizes[n]) for n in nodes)
