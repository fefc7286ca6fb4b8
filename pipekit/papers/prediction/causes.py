"""Predictions beside real runs, and why one is off: by its passes, or by what lies between them."""

import copy
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from pipekit.clusters import flat
from pipekit.engine import Run
from pipekit.papers.prediction.runs import (
    MethodCase,
    TrainedModel,
    as_scheduled,
    pipeline_of,
    profiled,
)
from pipekit.planning import plan
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.profiling.layer_runs.background_load import background_load
from pipekit.simulation import simulate
from pipekit.simulation.one_host import Host
from pipekit.traces import Trace

LOOPS_WITHIN = 0.03
"""A run counts where the plain loops beside it and its profile differ by so little."""

MOST_TURNS = 4
"""For each run of a case that is to count, so many are made at most."""


def compared(
    model: TrainedModel,
    cases: Sequence[MethodCase],
    hosts: Mapping[str, Host],
    repeats: int,
    passes: int,
) -> list[dict[str, Any]]:
    """Predict and train a model by several methods again and again; return a row for each.

    A turn is a profile and a run of each case over each transport, with a plain loop before and
    after each of them.  A run counts if the two loops beside it and the two beside the profile
    differ by 3 % at most: else the machine was not equally fast, and nobody could have predicted
    it.  Beside the loops the other cores are at work, as in a run: a loop alone would not notice
    another program on these.  Turns are made until enough runs of each case count.  Numbers are
    medians of those that do.

    - ``error``: of the prediction from the profile and what the host takes beside passes.
    - ``error without host``: of one from the profile alone.
    - ``error of passes``: of the prediction against one from the seconds that the run's own passes
      and updates took; ``error between``: of that one against the run.
    - ``outcome``: "undecided" where too few count; then all of them are shown.

    Args:
        model: what is trained, cut in stages of equal time.
        cases: by which methods, all on as many stages.
        hosts: what this one takes beside passes, by transport: "threads", "distributed".
        repeats: how many runs of a case are to count, at least 1.
        passes: of a profile.
    """
    stages = cases[0].stages
    split = plan(profiled(model, stages, passes), flat(stages, float("inf")), "balance")
    batches = {case: model.batches(case.microbatches, case.batches) for case in cases}
    pipelines = {
        (transport, case): pipeline_of(model, case, split, transport)
        for transport in hosts
        for case in cases
    }
    for (_, case), pipeline in pipelines.items():
        pipeline.train(batches[case])  # to warm up
    found: dict[tuple[str, MethodCase], list[dict[str, Any]]] = {key: [] for key in pipelines}
    for _ in range(MOST_TURNS * repeats):
        loops = [plain_loop_s(model, cases[0])]
        costs = profiled(model, stages, passes)
        loops.append(plain_loop_s(model, cases[0]))
        for (transport, case), pipeline in pipelines.items():
            run = pipeline.train(batches[case])
            loops.append(plain_loop_s(model, cases[0]))
            beside = [*loops[:2], *loops[-2:]]
            found[transport, case].append(
                _errors(case, split, hosts[transport], costs, run)
                | {"plain loop (s)": beside[-2]}
                | {"counts": max(beside) <= (1 + LOOPS_WITHIN) * min(beside)}
            )
        if all(_counted(runs) >= repeats for runs in found.values()):
            break
    for pipeline in pipelines.values():
        pipeline.close()
    return [
        {
            "model": model.name,
            **asdict(case),
            "transport": transport,
            **_medians(runs, decided := _counted(runs) >= repeats),
            "counts agree": all(run["counts agree"] for run in runs),
            "balance": "-".join(map(str, split.balance)),
            "runs": len(runs),
            "runs that count": _counted(runs),
            "outcome": "decided" if decided else "undecided",
            "label": "measured",
        }
        for (transport, case), runs in found.items()
    ]


def _counted(runs: Sequence[Mapping[str, Any]]) -> int:
    return sum(run["counts"] for run in runs)


def _medians(runs: Sequence[Mapping[str, Any]], decided: bool) -> dict[str, float]:
    """Return the medians of the runs that count, or of all if the case is not decided."""
    used = [run for run in runs if run["counts"] or not decided]
    numbers = [name for name in used[0] if not name.startswith("counts")]
    return {name: statistics.median(run[name] for run in used) for name in numbers}


def _errors(case: MethodCase, split: Plan, host: Host, costs: Profile, run: Run) -> dict[str, Any]:
    schedule, trace = case.schedule(case.batches), run.trace
    predicted, bare = (simulate(schedule, costs, split, host=h).makespan_s for h in (host, Host()))
    hand_made = Plan.by_hand([1] * case.stages, rows=costs.rows)
    passes = as_it_ran(trace, costs, split)
    own = simulate(schedule, passes, hand_made, host=replace(host, pass_s=0.0)).makespan_s
    found = trace.makespan_s
    return {
        "predicted (s)": predicted,
        "found (s)": found,
        "error": predicted / found - 1,
        "error without host": bare / found - 1,
        "error of passes": predicted / own - 1,
        "error between": own / found - 1,
        "counts agree": as_scheduled(split, schedule, run)["counts agree"],
    }


def as_it_ran(trace: Trace, costs: Profile, split: Plan) -> Profile:
    """Return a layer for each stage that takes what its passes took on average in a run.

    Args:
        trace: of the run.
        costs: of the layers, which say what stages send.
        split: which layers each stage has.
    """
    frame = trace.frame.assign(seconds=trace.frame["end_s"] - trace.frame["start_s"])
    mean = frame.groupby(["stage", "op"])["seconds"].mean()
    layers = (
        LayerProfile(
            f"stage {number}",
            forward_s=float(mean[number, "FORWARD"]),
            backward_s=float(mean[number, "BACKWARD"]),
            update_s=float(mean.get((number, "UPDATE"), 0.0)),
            output_bytes=costs.boundary_bytes(stage.stop) if stage.stop < len(costs) else 0.0,
        )
        for number, stage in enumerate(split.stages)
    )
    return Profile(tuple(layers), rows=costs.rows)


def plain_loop_s(model: TrainedModel, case: MethodCase) -> float:
    """Return the seconds of the same training in a plain loop, beside as many as in a run."""
    module = copy.deepcopy(model.module).train()
    optimizer = model.optimizer(list(module.parameters()))
    with background_load(model.module, model.inputs, case.stages - 1):
        start = time.perf_counter()
        for _ in range(case.batches):
            optimizer.zero_grad()
            for _ in range(case.microbatches):
                loss = model.loss(module(model.inputs), model.targets)
                (loss / case.microbatches).backward()
            optimizer.step()
        return time.perf_counter() - start


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Return the mean and the worst error of the cases that are decided, in a sentence."""
    decided = [abs(row["error"]) for row in rows if row["outcome"] == "decided"]
    counts = f"{len(decided)} of {len(rows)} cases are decided"
    if not decided:
        return f"{counts}: the machine was not quiet"
    return (
        f"{counts}; seconds are predicted within {sum(decided) / len(decided):.1%} on average and "
        f"{max(decided):.1%} at most (measured)"
    )
