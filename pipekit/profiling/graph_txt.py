"""The ``graph.txt`` that PipeDream's own profiler writes and its optimizer reads.

One line a node and one an edge, times in milliseconds a minibatch, sizes in bytes::

    node1 -- Input0 -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=38535168.0, parameter_size=0.0
    node2 -- Conv2d(3, 64) -- forward_compute_time=5.2, backward_compute_time=9.1, activation_size=[1.0; 2.0], parameter_size=6912.0 -- stage_id=0
    \tnode1 -- node2
"""  # noqa: E501

import os
import re
from pathlib import Path
from typing import NamedTuple

import networkx as nx

from pipekit.profiling.profile import LayerProfile, Profile
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
_SOURCE = "the model's input"
"""What all Input nodes become; a node's own name has no blanks."""


class _Graph(NamedTuple):
    layers: dict[str, LayerProfile]
    edges: nx.DiGraph
    input_bytes: float


def read(path: str | os.PathLike[str], rows: int = 1) -> Profile:
    """Read a profile that PipeDream's profiler, or :func:`write`, wrote.

    Input nodes stand for the loading of data: their time is dropped, and all together are the
    model's input.  A graph with branches becomes a chain: it is cut behind every node that all
    paths pass, and what lies between two cuts is one layer, in the order of some valid execution.
    What crosses the cut, and so the layer's output, is that one node's output.  A partition
    (``stage_id``) is not read.

    The file does not say what a backward needs: every node's output is taken to be saved, as
    PipeDream's optimizer takes it.

    Args:
        path: the file.
        rows: rows of the minibatch that it was profiled with, which it does not say.

    Raises:
        ValueError: a line is not understood or names an unknown node, with its number; or the graph
            has a cycle, or not one beginning and one end.
        OSError: there is no such file, or it cannot be opened.
    """
    graph = _parse(Path(path))
    layers = [
        _merged([graph.layers[node] for node in nodes]) for nodes in _chain(graph.edges, str(path))
    ]
    provenance = {
        "label": "measured",
        "source": Path(path).name,
        "hardware": "not in the file: times are as it states them",
    }
    return Profile(tuple(layers), rows, graph.input_bytes, provenance)


def write(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write a profile as a chain that PipeDream's optimizer reads.

    Rows, saved bytes, buffers, FLOPs, updates, skips and provenance have no place in it.

    Raises:
        ValueError: a layer's name would be read as something else.
        OSError: the file cannot be written.
    """
    first = LayerProfile("Input0", 0.0, 0.0, profile.input_bytes)
    for layer in profile.layers:
        if _INPUT.fullmatch(layer.name) or len(layer.name.splitlines()) != 1:
            raise ValueError(f"graph.txt cannot hold a layer named {layer.name!r}: rename it")
    layers = [first, *profile.layers]
    lines = [_line(number, layer) for number, layer in enumerate(layers, start=1)]
    edges = [f"\tnode{number} -- node{number + 1}" for number in range(1, len(layers))]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("\n".join([*lines, *edges]) + "\n", "utf-8")


def _line(number: int, layer: LayerProfile) -> str:
    return (
        f"node{number} -- {layer.name} -- "
        f"forward_compute_time={layer.forward_s * 1e3!r}, "
        f"backward_compute_time={layer.backward_s * 1e3!r}, "
        f"activation_size={float(layer.output_bytes)!r}, "
        f"parameter_size={float(layer.parameter_bytes)!r}"
    )


def _parse(path: Path) -> _Graph:
    layers: dict[str, LayerProfile] = {}
    inputs: dict[str, float] = {}
    edges: list[tuple[int, str, str]] = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        where = f"{path}, line {number}"
        line = line.rstrip()
        if found := _EDGE.fullmatch(line):
            edges.append((number, found["start"], found["end"]))
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
    graph = nx.DiGraph()
    graph.add_nodes_from(layers)
    for number, start, end in edges:
        for node in (start, end):
            if node not in layers and node not in inputs:
                raise ValueError(f"{path}, line {number}: there is no node {node!r}")
        if end in inputs:
            raise ValueError(f"{path}, line {number}: an edge leads to the Input node {end!r}")
        graph.add_edge(_SOURCE if start in inputs else start, end)
    return _Graph(layers, graph, sum(inputs.values()))


def _layer(found: re.Match[str]) -> LayerProfile:
    activations = [float(size) for size in found["activation"].strip("[]").split("; ")]
    size = sum(activations)
    return LayerProfile(
        found["name"],
        forward_s=float(found["forward"]) / 1e3,
        backward_s=float(found["backward"]) / 1e3,
        output_bytes=size,
        parameter_bytes=float(found["parameter"]),
        saved_bytes=size,
        saves_output=True,
    )


def _chain(graph: nx.DiGraph, path: str) -> list[list[str]]:
    """Return the nodes of each layer of the chain, in an order in which they can run.

    Raises:
        ValueError: the graph has a cycle, or not one beginning and one end.
    """
    if not nx.is_directed_acyclic_graph(graph):
        cycle = [start for start, _ in nx.find_cycle(graph)]
        raise ValueError(f"{path}: the graph has a cycle: {' -> '.join([*cycle, cycle[0]])}")
    place = {node: number for number, node in enumerate(graph)}
    order = list(nx.lexicographical_topological_sort(graph, key=place.__getitem__))
    sources = [node for node in order if not graph.in_degree(node)]
    sinks = [node for node in order if not graph.out_degree(node)]
    for what, ends in {"begins": sources, "ends": sinks}.items():
        if len(ends) > 1:
            raise ValueError(f"{path}: the graph {what} in several nodes, {', '.join(ends)}")
    # All paths pass a node exactly if it dominates the end.
    dominators = nx.immediate_dominators(graph, sources[0])
    cuts = {sinks[0]}
    node = sinks[0]
    while node != sources[0]:
        node = dominators[node]
        cuts.add(node)
    chain: list[list[str]] = [[]]
    for node in order:
        if node != _SOURCE:
            chain[-1].append(node)
            if node in cuts:
                chain.append([])
    return chain[:-1]


def _merged(layers: list[LayerProfile]) -> LayerProfile:
    """Return some nodes as one layer whose output is the last one's."""
    return Profile(tuple(layers)).stage(0, len(layers))
