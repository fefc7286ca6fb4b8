"""Seconds to simulate a schedule, by its number of tasks.

    python -m experiments.benchmarks.simulation

Each row is the best of three: build nothing, check, simulate with links that contend, follow every
byte. To reach on two cores: 64 workers x 512 microbatches (65,536 passes with their transfers) in
under 1.5 s, and growth in proportion to the tasks.
"""

import time

import pandas as pd
import typer

from experiments.benchmarks.harness import show
from pipekit import simulate
from pipekit.clusters import flat
from pipekit.profiling import Profile
from pipekit.schedules import flush, gpipe, pipedream, two_bw

SIZES = [(16, 128), (32, 256), (64, 512), (64, 1024)]
METHODS = {
    "GPipe": lambda d, m: gpipe(d, m).take(1),
    "PipeDream-Flush": lambda d, m: flush(d, m).take(1),
    "PipeDream": lambda d, m: pipedream(d).take(m),
    "PipeDream-2BW": lambda d, m: two_bw(d, m // 4).take(4),
}


def main(repeats: int = 3) -> None:
    """Time the simulator."""
    rows = []
    for name, method in METHODS.items():
        for workers, microbatches in SIZES:
            schedule = method(workers, microbatches)
            profile = Profile.uniform(workers, output_bytes=1e6, parameter_bytes=1e6)
            cluster = flat(workers, 1e6)
            seconds = []
            for _ in range(repeats):
                start = time.perf_counter()
                simulate(schedule, profile, cluster=cluster)
                seconds.append(time.perf_counter() - start)
            best, passes = min(seconds), 2 * workers * microbatches
            rows.append((name, workers, microbatches, passes, best, best / passes * 1e6))
    columns = ["schedule", "workers", "microbatches", "passes", "s", "us a pass"]
    print("Simulation (measured)")
    show(pd.DataFrame(rows, columns=columns), 3)


if __name__ == "__main__":
    typer.run(main)
