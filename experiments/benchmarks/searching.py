"""How good the schedules are that are found: beside the best named method, bounds and proofs.

    python -m experiments.benchmarks.searching --output results/reference/search

Three comparisons of simulated times on random instances, each defined by its number alone:

- ``named``: 200 of all sizes; no schedule found may be longer than the best named method that fits;
- ``large``: eight workers and 32 microbatches; how much shorter in the median;
- ``proved``: small ones, for which OR-tools proves the shortest; how far the heuristic is from it.

An instance has costs that are unequal between stages, links that take time, and a memory cap that
binds: see :func:`instance`.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from tqdm import tqdm
from typer import Option

from experiments.benchmarks.harness import conclude
from pipekit import simulate
from pipekit.clusters import Cluster, flat
from pipekit.host.provenance import provenance
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import check
from pipekit.schedules.methods.by_name import named_schedules
from pipekit.searching import optimal, search
from pipekit.searching.bound import bound
from pipekit.searching.judge import Found, Judge
from pipekit.searching.problem import homes_of

MEGABYTE = 1e6


@dataclass(frozen=True)
class Instance:
    """What to search a schedule for.

    Attributes:
        profile: a layer a stage.
        workers: that share the stages.
        microbatches: of the batch.
        cluster: a switch, to which each worker has a link.
        cap: bytes that each worker has.
        named: the named methods that fit, the shortest first.
    """

    profile: Profile
    workers: int
    microbatches: int
    cluster: Cluster
    cap: float
    named: list[Found]

    @property
    def plan(self) -> Plan:
        """A stage a layer."""
        return Plan.by_hand([1] * len(self.profile))


def instance(number: int, workers: int, microbatches: int, stages_a_worker: int) -> Instance:
    """Return an instance.

    Seconds of a stage's forward and of both parts of its backward are drawn evenly from 0.5 to 1.5
    each; a whole backward takes 1 to 1.15 times less than its parts.  A microbatch's activations
    are 0.5 to 1.5 MB a stage, of which the part for the input frees up to half; a message has 0.1
    to 0.3 MB and takes up to half a forward on the average; the weights of a stage are 0.5 to 1.5
    MB.  The cap is 1 to 2 times what the most frugal named method needs on its worst
    worker, the same on all workers.
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
    judge = Judge(profile, plan, cluster, None, workers, 0.0)
    named = [
        judge.found(schedule)
        for schedule in named_schedules(len(layers), workers, microbatches)
        if all(len(homes) == 1 for homes in schedule.stage_workers)
    ]
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


def small(number: int) -> Instance:
    """Return an instance of 2 to 4 workers with a stage each, and 2 to 6 microbatches."""
    chance = random.Random(f"small {number}")
    return instance(2000 + number, chance.randint(2, 4), chance.randint(2, 6), 1)


def searched(one: Instance, seconds: float, placement: list[int] | None = None) -> dict[str, Any]:
    """Return the best named method and the schedule found, and what they take (simulated)."""
    best, plan = one.named[0], one.plan
    found = search(
        one.profile,
        plan,
        one.cluster,
        one.cap,
        microbatches=one.microbatches,
        workers=one.workers,
        placement=placement,
        seconds=seconds,
    )
    check(found, joint_updates=True)
    trace = simulate(found, one.profile, plan, one.cluster)
    assert trace.memory is not None
    assert max(trace.memory.peak_bytes) <= one.cap + 1  # they are rounded
    judge = Judge(one.profile, plan, one.cluster, one.cap, one.workers, 0.0)
    return {
        "workers": one.workers,
        "stages": len(one.profile),
        "microbatches": one.microbatches,
        "cap_bytes": one.cap,
        "named_methods": len(one.named),
        "best_named": best.schedule.name,
        "named_s": best.makespan_s,
        "found_s": trace.makespan_s,
        "gain_percent": 100 * (1 - trace.makespan_s / best.makespan_s),
        "bound_of_placement_s": bound(judge.problem(homes_of(found))),
    }


def proved(one: Instance, seconds: float, most: float) -> dict[str, Any]:
    """Return likewise, with what is proved for stages in a row."""
    row = searched(one, seconds, list(range(one.workers)))
    best = optimal(
        one.profile,
        one.plan,
        one.cluster,
        one.cap,
        microbatches=one.microbatches,
        seconds=most,
        threads=1,
    )
    del row["bound_of_placement_s"]
    return row | {
        "bound_s": best.bound_s,
        "optimal_s": best.seconds,
        "is_proved": best.is_proved,
        "above_optimum_percent": 100 * (row["found_s"] / best.bound_s - 1),
    }


def rows(
    name: str, numbers: range, compare: Callable[[int], dict[str, Any]], kept: Path | None
) -> pd.DataFrame:
    """Return a row for each instance; those that are in a file already are taken from there."""
    done = pd.read_csv(kept).to_dict("records") if kept and kept.exists() else []
    known = {row["instance"] for row in done}
    for number in tqdm([n for n in numbers if n not in known], desc=name):
        done.append({"instance": number, **compare(number)})
        if kept:
            kept.parent.mkdir(parents=True, exist_ok=True)
            pd.DataFrame(done).to_csv(kept, index=False)
    return pd.DataFrame(done).sort_values("instance", ignore_index=True)


def main(
    only: Annotated[str, Option(help="named, large or proved; by default all three")] = "",
    seconds: Annotated[float, Option(help="of a search, in named and proved")] = 2.0,
    large_seconds: Annotated[float, Option(help="of a search, in large")] = 40.0,
    proof_seconds: Annotated[float, Option(help="of a proof, at most")] = 15.0,
    count: Annotated[int, Option(help="of instances, in place of 200, 12 and 80")] = 0,
    output: Annotated[Path | None, Option(help="folder for the tables")] = None,
) -> None:
    """Compare; with an output folder, a run that was interrupted is taken up where it ended."""
    comparisons: dict[str, tuple[int, Callable[[int], dict[str, Any]]]] = {
        "named": (200, lambda n: searched(of_any_size(n), seconds)),
        "large": (12, lambda n: searched(large(n), large_seconds)),
        "proved": (80, lambda n: proved(small(n), seconds, proof_seconds)),
    }
    for name, (instances, compare) in comparisons.items():
        if only not in ("", name):
            continue
        record = provenance(
            "exact" if name == "proved" else "simulated",
            0,
            seconds=large_seconds if name == "large" else seconds,
            load_average_at_start=os.getloadavg()[0],
        )
        kept = output and output / f"{name}.{str(record['commit'])[:8]}.partial.csv"
        table = rows(name, range(count or instances), compare, kept)
        print(summary(name, table))
        conclude(name, table, record, output)
        if kept:
            kept.unlink()


def summary(name: str, table: pd.DataFrame) -> str:
    """Return what a table comes to, in a line."""
    gains = table["gain_percent"]
    quarters = ", ".join(f"{each:.1f}" for each in gains.quantile([0.25, 0.5, 0.75]))
    text = (
        f"{name}: {len(table)} instances, {(gains < 0).sum()} longer than the best named method "
        f"and {(gains > 0).sum()} shorter; by {quarters} % (quartiles, simulated)"
    )
    if "is_proved" in table:
        known = table[table["is_proved"]]["above_optimum_percent"]
        text += (
            f"; {len(known)} proved (exact), {(known <= 2).sum()} of them found within 2 %, the "
            f"worst {known.max():.2f} % above"
        )
    return text


if __name__ == "__main__":
    typer.run(main)
