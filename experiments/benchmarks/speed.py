"""Seconds that planners and the simulator take, on made-up profiles.

    python -m experiments.benchmarks.speed

Each row is the median of five.  The targets are those that the project set itself, on two cores;
the optimizer that PipeDream's authors released takes 12 s for the first case and 86 s for the
third.  ``parallel_pipelines`` stands beside PipeDream's planner on the same model and workers
(PipeDream-2BW, section 6, has 30 minutes against a fraction of a second).  A simulation builds
nothing: it checks the table, lets links contend and follows every byte.
"""

import random
import statistics
import time
from collections.abc import Callable
from functools import partial

import pandas as pd

from experiments.benchmarks.harness import show
from pipekit import simulate
from pipekit.clusters import Cluster, Device, Level, flat, two_bw_v100
from pipekit.planning import parallel_pipelines, pipedream
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule, flush, gpipe, two_bw
from pipekit.schedules import pipedream as pipedream_schedule

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


def servers(memory: float) -> Cluster:
    """Return two servers of eight devices with so many bytes."""
    device = Device("any", memory, {}, 1e12)
    return Cluster("2 x 8", device, (Level("inside", 8, 1e10), Level("between", 2, 1e9)))


def simulated(schedule: Schedule) -> Callable[[], object]:
    """Return a simulation of a schedule."""
    profile = Profile.uniform(schedule.stages, output_bytes=1e6, parameter_bytes=1e6)
    return partial(simulate, schedule, profile, cluster=flat(schedule.stages, 1e6))


LONG, CHAIN, LARGE = layers(350), layers(180), gpt()
CASES: dict[str, tuple[str, Callable[[], object]]] = {
    "pipedream, 350 layers, 16 workers": ("< 1", partial(pipedream, LONG, flat(16, 1e9))),
    "  within 2 GB": ("< 1", partial(pipedream, LONG, flat(16, 1e9, 2e9))),
    "pipedream, 180 layers, 2 x 8 workers": ("< 2", partial(pipedream, CHAIN, servers(1e15))),
    "  within 1 GB": ("< 2", partial(pipedream, CHAIN, servers(1e9))),
    "pipedream, 99 layers, 64 workers (flat)": (
        "",
        partial(pipedream, LARGE, flat(64, 3.125e9, 16 * 2**30), optimizer_states=2),
    ),
    "parallel_pipelines, 99 layers, 8 x 8 workers": (
        "< 1",
        partial(parallel_pipelines, LARGE, two_bw_v100(8), max_batch=512),
    ),
    "GPipe, 64 x 512": ("< 1.5", simulated(gpipe(64, 512).take(1))),
    "PipeDream-Flush, 16 x 128": ("", simulated(flush(16, 128).take(1))),
    "PipeDream-Flush, 64 x 512": ("< 1.5", simulated(flush(64, 512).take(1))),
    "PipeDream-Flush, 64 x 1024": ("< 3", simulated(flush(64, 1024).take(1))),
    "PipeDream, 64 x 512": ("< 1.5", simulated(pipedream_schedule(64).take(512))),
    "PipeDream-2BW, 64 x 512": ("< 1.5", simulated(two_bw(64, 128).take(4))),
}
"""By name (of simulations: method, workers x microbatches), the target and the call."""


def seconds(call: Callable[[], object]) -> list[float]:
    """Return what each of some repeats takes."""
    found = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


if __name__ == "__main__":
    rows = []
    for name, (target, call) in CASES.items():
        took = seconds(call)
        rows.append((name, statistics.median(took), min(took), max(took), target))
    print(f"seconds, measured {REPEATS} times each")
    show(pd.DataFrame(rows, columns=["case", "median", "least", "most", "target"]))
