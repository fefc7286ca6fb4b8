"""How good the schedules are that are found, beside the best named method and a bound.

    python -m experiments.benchmarks.searching --output results/reference/search

Three comparisons of simulated times on random instances, each defined by its number alone:

- ``named``: 200 of all sizes, beside the best named method that fits;
- ``large``: eight workers and 32 microbatches, likewise;
- ``placements``: ten of two servers and a costly last stage, beside the best on 200 drawn
  placements, each of which is searched for a moment.
"""

import math
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from tqdm import tqdm
from typer import Option

from experiments.benchmarks.harness import conclude, show
from pipekit.choices import require_choice
from pipekit.clusters import Cluster, Device, Level, flat
from pipekit.host.provenance import provenance
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import ScheduleError, check
from pipekit.searching import search
from pipekit.searching.question import Found, Question

MEGABYTE = 1e6
_DRAWN, _MOMENT_S = 200, 0.05  # placements, and seconds of the search on each
_SHOWN = 12  # rows of a table that is printed whole


@dataclass(frozen=True)
class Instance:
    """What to search a schedule for."""

    profile: Profile  # a layer a stage
    workers: int  # that share the stages
    microbatches: int  # of the batch
    cluster: Cluster  # a switch, to which each worker has a link
    cap: float  # bytes that each worker has
    named: list[Found]  # the named methods that fit, the shortest first


def instance(number: int, workers: int, microbatches: int, stages_a_worker: int) -> Instance:
    """Return an instance with unequal stages, links that take time, and a memory cap that binds.

    The cap is 1 to 2 times what the most frugal named method needs on its worst worker.
    """
    chance = random.Random(number)
    slowest = chance.uniform(0, 0.5) or 1e-9  # seconds of a message of 0.2 MB
    layers = []
    for stage in range(workers * stages_a_worker):
        forward, inputs, weights = (chance.uniform(0.5, 1.5) for _ in range(3))
        saved = MEGABYTE * chance.uniform(0.5, 1.5)
        layers.append(
            LayerProfile(
                f"stage {stage}",
                forward_s=forward,
                backward_s=(inputs + weights) / chance.uniform(1, 1.15),
                backward_input_s=inputs,
                backward_weight_s=weights,
                output_bytes=MEGABYTE * chance.uniform(0.1, 0.3),
                saved_bytes=saved,
                saves_output=True,
                input_only_bytes=saved * chance.uniform(0, 0.5),
                parameter_bytes=MEGABYTE * chance.uniform(0.5, 1.5),
            )
        )
    profile = Profile(tuple(layers), input_bytes=0.2 * MEGABYTE)
    cluster = flat(workers, 0.2 * MEGABYTE / slowest)
    plan = Plan.by_hand([1] * len(layers))
    named = Question(profile, plan, cluster, None, workers, microbatches).methods
    cap = min(max(each.peak_bytes) for each in named) * chance.uniform(1, 2)
    fit = [each for each in named if max(each.peak_bytes) <= cap]
    fit.sort(key=lambda each: each.makespan_s)
    return Instance(profile, workers, microbatches, cluster, cap, fit)


def of_any_size(number: int) -> Instance:
    """Return an instance of 2 to 8 workers, once to four times as many microbatches."""
    chance = random.Random(f"any size {number}")
    workers = chance.choice([2, 3, 4, 6, 8])
    return instance(number, workers, workers * chance.choice([1, 2, 4]), chance.choice([1, 2]))


def large(number: int) -> Instance:
    """Return an instance of eight workers and 32 microbatches, with one or two stages a worker."""
    return instance(1000 + number, 8, 32, 1 + number % 2)


def searched(one: Instance, seconds: float) -> dict[str, Any]:
    """Return the best named method and the schedule found, and what they take (simulated)."""
    best, plan = one.named[0], Plan.by_hand([1] * len(one.profile))
    found = search(
        one.profile,
        plan,
        one.cluster,
        one.cap,
        microbatches=one.microbatches,
        workers=one.workers,
        seconds=seconds,
    )
    check(found.schedule, joint_updates=True)
    assert max(found.peak_bytes) <= one.cap + 1  # they are rounded
    asked = one.profile, plan, one.cluster, one.cap, one.workers, one.microbatches
    return {
        "workers": one.workers,
        "stages": len(one.profile),
        "microbatches": one.microbatches,
        "cap_bytes": one.cap,
        "named_methods": len(one.named),
        "best_named": best.schedule.name,
        "named_s": best.makespan_s,
        "found_s": found.makespan_s,
        "gain_percent": 100 * (1 - found.makespan_s / best.makespan_s),
        "bound_of_placement_s": Question(*asked, placement=found.placement).least_s,
    }


def placed(number: int, seconds: float) -> dict[str, Any]:
    """Return what is found on the best placement, and on the best of some that are drawn.

    Two servers of two workers, eight microbatches, whose activations cap the passes in flight.
    """
    chance = random.Random(f"placements {number}")
    stages, head = chance.choice([6, 8, 10]), chance.uniform(1, 4)
    link_s, cap = chance.uniform(0.5, 2), stages - chance.randint(0, 2) + 0.1
    layers = [
        LayerProfile(f"block {stage}", cost, 2 * cost, output_bytes=1, saved_bytes=MEGABYTE)
        for stage, cost in enumerate([1.0] * (stages - 1) + [head])
    ]
    levels = Level("inside", 2, 1e30), Level("network", 2, 1 / link_s)
    cluster = Cluster("two servers", Device("any", math.inf, {}, math.inf), levels)
    profile, plan = Profile(tuple(layers)), Plan.by_hand([1] * stages)

    def found(seconds: float, placement: list[int] | None = None) -> float:
        try:
            return search(
                profile,
                plan,
                cluster,
                cap * MEGABYTE,
                microbatches=8,
                workers=4,
                placement=placement,
                seconds=seconds,
            ).makespan_s
        except ScheduleError:  # nothing fits there
            return math.inf

    drawn = ([chance.randrange(4) for _ in range(stages)] for _ in count())
    all_used = islice((placement for placement in drawn if len({*placement}) == 4), _DRAWN)
    best, ours = min(found(_MOMENT_S, placement) for placement in all_used), found(seconds)
    return {
        **{"stages": stages, "head": head, "link_s": link_s, "cap_activations": int(cap)},
        **{"drawn": _DRAWN, "best_drawn_s": best, "found_s": ours},
        "gain_percent": 100 * (1 - ours / best),
    }


def main(
    only: Annotated[str, Option(help="named, large or placements; by default all")] = "",
    seconds: Annotated[float, Option(help="of a search, in named")] = 2.0,
    large_seconds: Annotated[float, Option(help="of a search, in large")] = 40.0,
    placed_seconds: Annotated[float, Option(help="of a search, in placements")] = 5.0,
    instances: Annotated[
        int, Option("--count", help="of instances, in place of 200, 12 and 10")
    ] = 0,
    output: Annotated[Path | None, Option(help="folder for the tables")] = None,
) -> None:
    """Compare what is found with what else could be had."""
    comparisons: dict[str, tuple[int, Callable[[int, float], dict[str, Any]], float]] = {
        "named": (200, lambda number, limit: searched(of_any_size(number), limit), seconds),
        "large": (12, lambda number, limit: searched(large(number), limit), large_seconds),
        "placements": (10, placed, placed_seconds),
    }
    require_choice("only", only, ["", *comparisons])
    for name, (usual, row, limit) in comparisons.items():
        if only not in ("", name):
            continue
        load = os.getloadavg()[0]
        record = provenance("simulated", 0, seconds=limit, load_average_at_start=load)
        numbers = tqdm(range(instances or usual), desc=name)
        table = pd.DataFrame({"instance": n, **row(n, limit)} for n in numbers)
        gains = table["gain_percent"]
        quarters = ", ".join(f"{each:.1f}" for each in gains.quantile([0.25, 0.5, 0.75]))
        print(
            f"{name}: {len(table)} instances, {(gains < 0).sum()} longer than the best that they "
            f"are compared with and {(gains > 0).sum()} shorter; by {quarters} % (quartiles, "
            f"simulated)"
        )
        if len(table) <= _SHOWN:
            show(table)
        conclude(name, table, record, output)


if __name__ == "__main__":
    typer.run(main)
