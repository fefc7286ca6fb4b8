"""Seconds to simulate a schedule, by its number of tasks.

    python experiments/benchmarks/simulation.py

Each row is the best of three: build nothing, check, simulate with links that contend, follow every
byte.  To reach on two cores: 64 workers x 512 microbatches (65,536 passes with their transfers) in
under 1.5 s, and growth in proportion to the tasks.
"""

import time

import typer
from rich.console import Console
from rich.table import Table

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
    table = Table(title="Simulation (measured)")
    for heading in ("schedule", "workers", "microbatches", "passes", "s", "us a pass"):
        table.add_column(heading, justify="right")
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
            passes = 2 * workers * microbatches
            best = min(seconds)
            table.add_row(
                name,
                str(workers),
                str(microbatches),
                f"{passes:,}",
                f"{best:.2f}",
                f"{best / passes * 1e6:.1f}",
            )
    Console(width=100).print(table)


if __name__ == "__main__":
    typer.run(main)
