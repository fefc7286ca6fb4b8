"""Is a simulated link as slow as a real one that several messages share?

    sudo .venv/bin/python -m experiments.benchmarks.shared_links [--repeats 3] [--output FOLDER]

Trainings of 3 to 8 workers run on the real engine, each a process behind a link that the kernel
holds to a rate (pipekit.clusters.namespaces).  Layers sleep in place of computing.  The simulator
is given the bytes, the bandwidth of one tensor that was sent alone, and what passes and updates
took on average.  "order" says how far simulations lie apart whose passes differ by 1 %, which may
change the order of messages.
"""

import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any, NamedTuple

import pandas as pd
import torch
import typer
from torch import Tensor, nn
from tqdm import tqdm

from experiments.benchmarks.harness import conclude, measured, show, transfer_seconds
from pipekit import Pipeline, simulate
from pipekit.clusters import flat, namespaces
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule, flush, pipedream

DRAWS, DIFFERENCE = 20, 0.01
PROBE_BYTES, PROBES = 4_000_000, 3
MESSAGE_BYTES, WEIGHT_BYTES = 1_000_000, 2_000_000
FORWARD_S = 0.03

Passes = list[dict[str, float]]  # of each stage, the mean seconds of its passes and updates, by op


@dataclass(frozen=True)
class Case:
    """A training; ``forward_s`` is of each stage, whose backward takes twice that."""

    name: str
    method: str
    replicas: tuple[int, ...]
    forward_s: tuple[float, ...]
    microbatches: int
    batches: int

    @property
    def method_schedule(self) -> Schedule:
        if self.method == "PipeDream":
            return pipedream(list(self.replicas))
        return flush(len(self.replicas), self.microbatches)

    def simulated_s(self, bandwidth: float, passes: Passes) -> float:
        layers = tuple(
            LayerProfile(
                str(number),
                seconds["FORWARD"],
                seconds["BACKWARD"],
                output_bytes=MESSAGE_BYTES,
                parameter_bytes=WEIGHT_BYTES,
                update_s=seconds["UPDATE"],
            )
            for number, seconds in enumerate(passes)
        )
        plan = Plan.by_hand([1] * len(layers), replicas=self.replicas)
        workers = flat(sum(self.replicas), bandwidth)
        # The engine's workers each add up a share of the gradients and send it to all others.
        links = replace(workers, all_reduce="sharded parameter server")
        schedule = self.method_schedule.take(self.batches)
        return simulate(schedule, Profile(layers), plan, links).makespan_s


def cases(workers: int) -> Iterator[Case]:
    """Yield trainings in which messages share links, each in its own way."""
    line = (FORWARD_S,) * workers
    yield Case("there and back", "PipeDream", (1,) * workers, line, 1, 3 * workers)
    yield Case("there and back, flushed", "PipeDream-Flush", (1,) * workers, line, 2 * workers, 2)
    wide = (workers - 1) * FORWARD_S, FORWARD_S
    yield Case("many into one, with sums", "PipeDream", (workers - 1, 1), wide, 1, 6 * workers - 6)
    yield Case("sums alone", "PipeDream", (workers,), (FORWARD_S,), 1, 6 * workers)


class Measured(NamedTuple):
    """Seconds of real trainings, with one link's bytes/s and the means of the passes."""

    seconds: list[float]
    bandwidth: list[float]
    passes: list[Passes]


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, forward_s: float, numbers: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.forward_s = forward_s
        time.sleep(forward_s)
        return x.new_zeros(1, numbers)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        time.sleep(2 * ctx.forward_s)
        return torch.zeros_like(x), torch.zeros_like(weight), None, None


class Sleeping(nn.Module):
    """A layer that sleeps, and twice as long in its backward: ``[1, n]`` to ``[1, numbers]``."""

    def __init__(self, forward_s: float, numbers: int, parameters: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(parameters))
        self._args = forward_s, numbers

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = _Sleep.apply(x, self.weight, *self._args)
        return found


def link_bandwidth() -> float:
    """Return the bytes/s of a tensor from worker 0 to worker 1 while nobody else sends."""
    _, *seconds = [transfer_seconds(PROBE_BYTES) for _ in range(PROBES + 1)]
    return PROBE_BYTES / statistics.median(seconds)  # the first has made the connection


def trained(cases: list[Case], repeats: int) -> list[Measured]:
    torch.set_num_threads(1)
    return [_trained(case, repeats) for case in cases]


def _trained(case: Case, repeats: int) -> Measured:
    numbers = MESSAGE_BYTES // 4
    layers = [Sleeping(s, numbers, WEIGHT_BYTES // 4) for s in case.forward_s]
    pipeline = Pipeline(
        nn.Sequential(*layers),
        case.method_schedule,
        balance=[1] * len(layers),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        loss=nn.MSELoss(),
        transport="distributed",
    )
    batch = torch.zeros(case.microbatches, 1), torch.zeros(case.microbatches, numbers)
    pipeline.train([batch] * max(case.replicas))  # connections are made at the first use
    found = Measured([], [], [])
    for _ in range(repeats):
        found.bandwidth.append(link_bandwidth())
        frame = pipeline.train([batch] * case.batches).trace.frame
        found.seconds.append(float(frame["end_s"].max() - frame["start_s"].min()))
        took = (frame["end_s"] - frame["start_s"]).groupby([frame["stage"], frame["op"]]).mean()
        found.passes.append([took[stage].to_dict() for stage in range(len(layers))])
    return found


def compared(case: Case, found: Measured) -> dict[str, object]:
    """Return a row: how long a training took, and how long the simulator says that it takes."""
    bandwidth, median_s = statistics.median(found.bandwidth), statistics.median(found.seconds)
    # Each run is simulated with its own passes: the host's timers have their moods.
    simulated_s = statistics.median(case.simulated_s(bandwidth, each) for each in found.passes)
    return {
        "workers": sum(case.replicas),
        "case": case.name,
        "one link (MB/s)": bandwidth / 1e6,
        "measured (s)": median_s,
        "spread (%)": 100 * (max(found.seconds) - min(found.seconds)) / median_s,
        "links free (s)": case.simulated_s(math.inf, found.passes[0]),
        "simulated (s)": simulated_s,
        "off (%)": 100 * (simulated_s / median_s - 1),
        "order (%)": 100 * order_spread(case, bandwidth, found.passes[0]),
    }


def order_spread(case: Case, bandwidth: float, passes: Passes) -> float:
    """Return how far simulations lie apart, for the shortest, whose passes differ a little."""
    draw, ends = Random(0), (1 - DIFFERENCE, 1 + DIFFERENCE)
    seconds = [
        case.simulated_s(
            bandwidth, [{op: s * draw.uniform(*ends) for op, s in each.items()} for each in passes]
        )
        for _ in range(DRAWS)
    ]
    return max(seconds) / min(seconds) - 1


def main(
    rate: Annotated[str, typer.Option(help="Of each link, as tc writes it.")] = "100mbit",
    workers: Annotated[list[int] | None, typer.Option(help="Default: 3 to 8.")] = None,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    output: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
) -> None:
    """Compare simulated seconds with those over shaped links."""
    namespaces.require_namespaces()
    record = measured(rate=rate, repeats=repeats)
    rows: list[dict[str, object]] = []
    for count in tqdm(workers or range(3, 9), unit="size"):
        todo = list(cases(count))
        found = namespaces.call(trained, count, rate, todo, repeats)
        rows += [compared(*each) for each in zip(todo, found, strict=True)]
        table = pd.DataFrame(rows)
        show(table, 3)
        worst = table["off (%)"].abs().max()
        print(f"the simulator is {worst:.1f} % off at most (measured against simulated)")
        conclude("shared_links", table, record, output)


if __name__ == "__main__":
    typer.run(main)
