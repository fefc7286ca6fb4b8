"""Seconds that the planners take.

    python -m experiments.benchmarks.planning [--output FOLDER] [graph.txt ...]

The median of some repeats on made-up profiles, once without a memory limit and once with one that
decides.  The targets are those that the project set itself; the optimizer that PipeDream's authors
released takes 12 s for the first case and 86 s for the second.  The last two rows are PipeDream's
planner and PipeDream-2BW's on the same model and workers (PipeDream-2BW, section 6, has 30 minutes
against a fraction of a second).

The second table is of graphs: a network with the branches of ResNet-50, and those that PipeDream's
profiler wrote to the files that are named (msr-fiddle/pipedream, profiler/*/profiles/*/graph.txt).
Beside ours stand the chain that is made of the graph and the released optimizer's recurrence
(released_optimizer.py), all under its own cost, on equal workers and on servers of several.  Both
start from the profile in memory, so that reading a file counts for neither, and find the graph's
states anew.  Ours then makes a plan, with its times, bytes and reasons, and looks for a straight
pipeline too; on servers it also tries the workers as equals.  Theirs returns seconds.  The two are
timed in turn, in CPU seconds, each over as many calls as fill a moment; the ratio is the median of
the pairs'.  To a folder go that table and where it was made.
"""

import math
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import pandas as pd
import typer

from experiments.benchmarks.harness import conclude, measured, show
from experiments.benchmarks.released_optimizer import ReleasedOptimizer
from pipekit.clusters import Cluster, Device, Level, flat, two_bw_v100
from pipekit.planning import parallel_pipelines, pipedream
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile, ValueProfile, merged

T = TypeVar("T")
REPEATS = 5
MOST_SECONDS = 10.0
"""Of the released optimizer, on one row; then there are no further repeats."""
SAMPLE_SECONDS = 0.02
"""A small graph's plan takes less than a millisecond: as many as fill this are timed together."""
GRAPH_CLUSTERS = {
    "4": (Level("link", 4, 1e9),),
    "8": (Level("link", 8, 1e9),),
    "16": (Level("link", 16, 1e9),),
    "2 x 2": (Level("inside", 2, 1e10), Level("between", 2, 1e9)),
}


def layers(count: int) -> Profile:
    """Return layers of random costs, the same in every run."""
    numbers = random.Random(0)

    def layer(number: int) -> LayerProfile:
        seconds = numbers.uniform(0, 0.01)
        size = [numbers.uniform(0, 1e7) for _ in range(3)]
        return LayerProfile(str(number), seconds, 2 * seconds, *size)

    return Profile(tuple(map(layer, range(count))), rows=32)


def gpt(blocks: int = 96, hidden: int = 2048, tokens: int = 512) -> Profile:
    """Return a GPT with parameters and activations of 2 bytes, estimated at 45 TFLOP/s (V100)."""

    def layer(name: str, parameters: float, output: float, flops: float) -> LayerProfile:
        seconds = flops / 45e12
        saved = 17 * output if name == "block" else output
        return LayerProfile(name, seconds, 2 * seconds, 2 * output, 2 * parameters, 2 * saved, True)

    width, words = tokens * hidden, 51_200
    block = 12 * hidden**2
    attention = 4 * tokens**2 * hidden
    return Profile(
        (
            layer("embedding", words * hidden, width, 0),
            *[layer("block", block, width, 2 * tokens * block + attention)] * blocks,
            layer("norm", 2 * hidden, width, 10 * width),
            layer("head", words * hidden, tokens * words, 2 * width * words),
        ),
        input_bytes=8 * tokens,
    )


def cases() -> list[tuple[str, str, Callable[[], Plan]]]:
    """Return what is planned, the target, and the call."""
    long, chain, large = layers(350), layers(180), gpt()

    def servers(memory: float) -> Cluster:
        device = Device("any", memory, {}, 1e12)
        return Cluster("2 x 8", device, (Level("inside", 8, 1e10), Level("between", 2, 1e9)))

    return [
        ("pipedream, 350 layers, 16 workers", "< 1", partial(pipedream, long, flat(16, 1e9))),
        ("  within 2 GB", "< 1", partial(pipedream, long, flat(16, 1e9, 2e9))),
        ("pipedream, 180 layers, 2 x 8 workers", "< 2", partial(pipedream, chain, servers(1e15))),
        ("  within 1 GB", "< 2", partial(pipedream, chain, servers(1e9))),
        (
            "pipedream, 99 layers, 64 workers (flat)",
            "",
            partial(pipedream, large, flat(64, 3.125e9, 16 * 2**30), optimizer_states=2),
        ),
        (
            "parallel_pipelines, 99 layers, 8 x 8 workers",
            "< 1",
            partial(parallel_pipelines, large, two_bw_v100(8), max_batch=512),
        ),
    ]


def residual(rows: int = 128) -> Profile:
    """Return a graph like ResNet-50: bottlenecks of 8 layers, skipped by 0 or 2 others.

    Times are operations at 5 TFLOP/s and bytes at 300 GB/s; a backward takes twice as long.
    """
    layers: list[LayerProfile] = []
    users: list[list[int]] = []
    widths: list[int] = []

    def add(name: str, channels: int, side: int, kernel: int, *sources: int) -> int:
        size = 4.0 * rows * channels * side**2
        weights = 2.0 * channels
        seconds = 2 * size / 300e9
        if kernel:
            weights = kernel**2 * channels * (widths[sources[0]] if sources else 3)
            seconds += 2 * weights * rows * side**2 / 5e12
        widths.append(channels)
        for source in sources:
            users[source].append(len(layers))
        layers.append(LayerProfile(name, seconds, 2 * seconds, size, 4 * weights, size, True))
        users.append([])
        return len(layers) - 1

    x = add("stem", 64, 56, 7)
    for stage, (width, blocks) in enumerate(zip((64, 128, 256, 512), (3, 4, 6, 3), strict=True)):
        side = 56 >> stage
        for block in range(blocks):
            y = x
            for part, (channels, kernel) in enumerate(((width, 1), (width, 3), (4 * width, 1))):
                y = add("norm", channels, side, 0, add("conv", channels, side, kernel, y))
                y = y if part == 2 else add("relu", channels, side, 0, y)
            if block == 0:
                x = add("norm", 4 * width, side, 0, add("conv", 4 * width, side, 1, x))
            x = add("relu", 4 * width, side, 0, add("add", 4 * width, side, 0, y, x))
    add("head", 1000, 1, 1, x)
    values = [
        ValueProfile(source, tuple(read), layers[source].output_bytes)
        for source, read in enumerate(users)
    ]
    return Profile(tuple(layers), rows, values=tuple(values))


def compare_graphs(files: list[str]) -> pd.DataFrame:
    """Return a row for each graph and cluster."""
    graphs = {"residual": residual()}
    graphs |= {Path(name).stem: Profile.from_pipedream_graph(name) for name in files}
    return pd.DataFrame(
        compare_planners(name, graph, workers)
        for name, graph in graphs.items()
        for workers in GRAPH_CLUSTERS
    )


def compare_planners(name: str, graph: Profile, workers: str) -> dict[str, object]:
    """Return what both find for a graph on a cluster, and the CPU seconds that they take."""
    levels = GRAPH_CLUSTERS[workers]
    cluster = Cluster(workers, Device("any", math.inf, {}, math.inf), levels)
    machines, bandwidths = zip(*((level.width, level.bandwidth) for level in levels), strict=True)

    def ours(costs: Profile = graph) -> Plan:
        return pipedream(costs, cluster, cost="released", links="each")

    def theirs() -> float:
        return ReleasedOptimizer(graph).seconds(machines, bandwidths, count_transfers=True)

    pairs: list[tuple[float, float]] = []
    while len(pairs) < REPEATS and sum(theirs_s for _, theirs_s in pairs) < MOST_SECONDS:
        took, plan = timed(ours)
        they_took, seconds = timed(theirs)
        pairs.append((took, they_took))
    took, they_took = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {
        "graph": name,
        "workers": workers,
        "states": ReleasedOptimizer(graph).states,
        "plan": plan.config,
        "chain (ms)": 1e3 * ours(merged(graph)).predicted_s,
        "ours (ms)": 1e3 * plan.predicted_s,
        "released (ms)": 1e3 * seconds,
        "pairs": len(pairs),
        "ours (CPU s)": took,
        "released (CPU s)": they_took,
        "times as fast": statistics.median(b / a for a, b in pairs),
        "label": "measured",
    }


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Return CPU seconds of a call, the mean of as many as fill a sample, and what it returns."""
    start, calls = time.process_time(), 0
    while (passed := time.process_time() - start) < SAMPLE_SECONDS:
        result = call()
        calls += 1
    return passed / calls, result


def time_cases() -> pd.DataFrame:
    """Return the seconds that the planners take for each case, and the target."""
    rows = []
    for case, target, call in cases():
        seconds = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        rows.append((case, statistics.median(seconds), min(seconds), max(seconds), target))
    return pd.DataFrame(rows, columns=["case", "median", "least", "most", "target"])


def main(
    files: Annotated[list[Path] | None, typer.Argument(metavar="[GRAPH.txt ...]")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for the graphs' table.")] = None,
    graphs_only: Annotated[bool, typer.Option("--graphs-only")] = False,
) -> None:
    """Time the planners."""
    names = [str(file) for file in files or []]
    record = measured(graphs=["residual", *(Path(name).stem for name in names)])
    if not graphs_only:
        print(f"seconds, measured {REPEATS} times each")
        show(time_cases())
    table = compare_graphs(names)
    show(table)
    conclude("graphs", table, record, output)


if __name__ == "__main__":
    typer.run(main)
