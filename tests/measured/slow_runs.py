"""Random faults put into emulated runs, and what is said of them.

    python -m tests.measured.slow_runs FOLDER

The engine runs each case twice, with the fault and without, and what ``explain`` says of the first
is compared with the second.  Writes ``causes.csv``, a row a case.  A fault costs at least 8 % of a
step (simulated), twice of what any other cause costs in these runs; others are drawn anew.

Emulations run in a time of their own, which no other program slows down; with ``--real-time`` the
workers really wait, on a machine that has nothing else to do.
"""

import json
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import typer

import pipekit as pk
from pipekit import schedules
from pipekit.clusters import Cluster, Level, flat
from pipekit.host.provenance import provenance
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Op, Schedule
from pipekit.simulation import Costs
from tests.emulation.own_time import own_time

METHODS = {
    "gpipe": schedules.gpipe(4, 12).take(3),
    "flush": schedules.flush(4, 12).take(3),
    "interleaved": schedules.interleaved(8, 8, workers=4).take(3),
    "zb-h1": schedules.zb_h1(4, 12).take(3),
    "2bw": schedules.two_bw(4, 8).take(4),
    "pipedream": schedules.pipedream(4).take(32),
}
WORKERS, JITTER = 4, 0.03
LEAST = 0.08
"""The share of a step that a fault costs at least."""
NEAR = 0.05
"""How far from what the fault costs its saving may be, as a share of that."""
LAYER = LayerProfile("", 0.05, 0.1, output_bytes=5e6, update_s=0.01)
LINKS = flat(WORKERS, 1e9)
Run = Callable[[Schedule, Costs, Cluster], pk.Trace]
Times = Callable[[int, Op, int, int], float]


def alike(*_: object) -> float:
    return 1.0


@dataclass(frozen=True)
class Fault:
    """What is wrong with a run: the cause that is to be found, and what makes it.

    Attributes:
        kind: the cause that ``explain`` should name first.
        where: one of these, as there.
        said: in words.
        times: how many times as long a task takes.
        links: between the workers.
        update_s: seconds of an update in the run without it: none, if it is what lies between steps.
    """

    kind: str
    where: Sequence[Mapping[str, object] | None]
    said: str
    times: Times = alike
    links: Cluster = LINKS
    update_s: float = LAYER.update_s


def slow_worker(chance: np.random.Generator, schedule: Schedule) -> Fault:
    slow, times = int(chance.integers(WORKERS)), chance.uniform(1.15, 1.6)
    said = f"worker {slow} x {times:.2f}"
    return Fault("slow worker", [{"worker": slow}], said, lambda w, *_: times if w == slow else 1.0)


def heavy_stage(chance: np.random.Generator, schedule: Schedule) -> Fault:
    heavy, times = int(chance.integers(schedule.stages)), chance.uniform(1.2, 1.8)
    kind = "slow last stage" if heavy == schedule.stages - 1 else "unequal stages"

    def longer(_: int, op: Op, stage: int, __: int) -> float:
        return times if stage == heavy and op is not Op.UPDATE else 1.0

    return Fault(kind, [{"stage": heavy}], f"stage {heavy} x {times:.2f}", longer)


def _unequal(lengths: np.ndarray, said: str) -> Fault:
    def longer(_: int, op: Op, __: int, microbatch: int) -> float:
        return 1.0 if op is Op.UPDATE else float(lengths[microbatch])

    return Fault("unequal microbatches", [None], said, longer)


def unequal_lengths(chance: np.random.Generator, schedule: Schedule) -> Fault:
    spread = chance.uniform(0.2, 0.6)
    lengths = chance.uniform(1 - spread, 1 + spread, schedule.microbatches)
    return _unequal(lengths / lengths.mean(), f"lengths 1 +- {spread:.2f}")


def long_microbatches(chance: np.random.Generator, schedule: Schedule) -> Fault:
    lengths, count = np.ones(schedule.microbatches), int(chance.integers(1, 5))
    times = chance.uniform(2, 4)
    lengths[chance.choice(len(lengths), count, replace=False)] = times
    return _unequal(lengths / lengths.mean(), f"{count} microbatches x {times:.2f}")


def slow_link(chance: np.random.Generator, schedule: Schedule) -> Fault:
    """Slow what joins two servers of two workers each; looped stages cross it twice."""
    rate = LAYER.output_bytes / chance.uniform(0.025, 0.2)
    levels = Level("inside", 2, 1e9), Level("between", WORKERS // 2, rate)
    links = Cluster("two servers", LINKS.device, levels)
    said = f"link 1-2 at {rate / 1e6:.0f} MB/s"
    return Fault("links", [{"link": (1, 2)}, {"link": (0, 3)}], said, links=links)


def late_optimizer(chance: np.random.Generator, schedule: Schedule) -> Fault:
    times = chance.uniform(10, 40)

    def late(_: int, op: Op, *__: int) -> float:
        return times if op is Op.UPDATE else 1.0

    return Fault("between steps", [None], f"updates x {times:.0f}", late, update_s=0.0)


def pause(chance: np.random.Generator, schedule: Schedule) -> Fault:
    worker = int(chance.integers(WORKERS))
    tasks = [task for task in schedule.workers[worker] if task.op is not Op.UPDATE]
    paused, times = tasks[chance.integers(len(tasks))], chance.uniform(5, 20)
    said = f"{paused} of worker {worker} x {times:.0f}"
    place = worker, *paused[:3]
    return Fault("noise", [None], said, lambda *task: times if task == place else 1.0)


FAULTS = (
    slow_worker,
    heavy_stage,
    unequal_lengths,
    long_microbatches,
    slow_link,
    late_optimizer,
    pause,
)


def emulated(schedule: Schedule, costs: Costs, cluster: Cluster) -> pk.Trace:
    """Return the trace of a run of the engine whose passes are waits, in a time of their own."""
    with own_time():
        return in_real_time(schedule, costs, cluster)


def in_real_time(schedule: Schedule, costs: Costs, cluster: Cluster) -> pk.Trace:
    """Return the same of waits that are really waited for."""
    return pk.emulate(schedule, costs, cluster=cluster).trace


def simulated(schedule: Schedule, costs: Costs, cluster: Cluster) -> pk.Trace:
    """Return a computed trace."""
    return pk.simulate(schedule, costs, cluster=cluster)


def case(seed: int, run: Run = emulated) -> dict[str, Any]:
    """Draw a method and a fault, and return what is said of the run beside what it lost."""
    chance = np.random.default_rng(seed)
    while True:
        method = str(chance.choice([*METHODS]))
        schedule = METHODS[method]
        fault = FAULTS[chance.integers(len(FAULTS))](chance, schedule)
        jitter = chance.uniform(1 - JITTER, 1 + JITTER, len(schedule.dependencies.tasks))
        bad = _costs(schedule, jitter, fault.times), fault.links
        good = _costs(schedule, jitter, update_s=fault.update_s), LINKS
        lost = simulated(schedule, *bad).makespan_s / simulated(schedule, *good).makespan_s - 1
        if lost >= LEAST:
            return {"seed": seed, "method": method} | _judged(fault, schedule, bad, good, run)


def _costs(
    schedule: Schedule, jitter: np.ndarray, times: Times = alike, update_s: float = LAYER.update_s
) -> Costs:
    graph, layer = schedule.dependencies, replace(LAYER, update_s=update_s)
    tasks = {}
    for task, worker, by in zip(graph.tasks, graph.worker_of, jitter, strict=True):
        key = worker, *task[:3]
        tasks[key] = by * layer.seconds(task.op) * times(*key)
    return Costs(Profile((layer,) * schedule.stages, rows=1), tasks=tasks)


def _judged(fault: Fault, schedule: Schedule, bad: Any, good: Any, run: Run) -> dict[str, Any]:
    trace = run(schedule, *bad)
    found = pk.explain(trace)
    first, steps = found.causes[0], found.recognition.steps
    good_s = run(schedule, *good).makespan_s / steps
    off = first.saves_s / (found.step_s - good_s) - 1
    return {
        "fault": fault.said,
        "kind": fault.kind,
        "first cause": first.kind,
        "right": first.kind == fault.kind and first.where in fault.where,
        "step_s": found.step_s,
        "without_s": good_s,
        "saves_s": first.saves_s,
        "off": off,
        "near": abs(off) <= NEAR,
    }


def main(folder: Path, count: int = 200, real_time: bool = False, side_by_side: int = 2) -> None:
    """Write a table of so many cases."""
    folder.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    run = partial(case, run=in_real_time if real_time else emulated)
    with ProcessPoolExecutor(side_by_side, multiprocessing.get_context("spawn")) as pool:
        table = pd.DataFrame(pool.map(run, range(count)))
    table.to_csv(folder / "causes.csv", index=False, float_format="%.4g")
    about = provenance("emulated", real_time=real_time, load_before=load)
    (folder / "causes.json").write_text(json.dumps(about, indent=1) + "\n")
    print(table.groupby("kind")["right"].agg(["size", "mean"]))


if __name__ == "__main__":
    typer.run(main)
