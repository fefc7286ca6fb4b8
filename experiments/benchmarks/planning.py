"""Seconds that the planners take.

    python -m experiments.benchmarks.planning

The median of some repeats on made-up profiles, once without a memory limit and once with one that
decides.  The targets are those that the project set itself; the optimizer that PipeDream's authors
released takes 12 s for the first case and 86 s for the second.  The last two rows are PipeDream's
planner and PipeDream-2BW's on the same model and workers (PipeDream-2BW, section 6, has 30 minutes
against a fraction of a second).
"""

import random
import statistics
import time
from collections.abc import Callable
from functools import partial

import pandas as pd

from experiments.benchmarks.harness import show
from pipekit.clusters import Cluster, Device, Level, flat, two_bw_v100
from pipekit.planning import parallel_pipelines, pipedream
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile

REPEATS = 5


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


if __name__ == "__main__":
    print(f"seconds, measured {REPEATS} times each")
    show(time_cases())
